void k_decode_f16(const uint8_t *block, float *out)
{
    *out = load_half(block);
}
