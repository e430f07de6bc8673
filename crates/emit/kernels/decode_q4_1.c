void k_decode_q4_1(const uint8_t *block, float *out)
{
    float d = load_half(block), m = load_half(block + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(block[4 + i] & 15) + m;
        out[i + 16] = d * (float)(block[4 + i] >> 4) + m;
    }
}
