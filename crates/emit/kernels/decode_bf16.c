void k_decode_bf16(const uint8_t *block, float *out)
{
    *out = bits_to_float((uint32_t)block[1] << 24 | (uint32_t)block[0] << 16);
}
