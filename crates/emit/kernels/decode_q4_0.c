void k_decode_q4_0(const uint8_t *block, float *out)
{
    float d = load_half(block);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((block[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((block[2 + i] >> 4) - 8);
    }
}
