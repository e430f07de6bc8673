void k_decode_q8_0(const uint8_t *block, float *out)
{
    float d = load_half(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}
