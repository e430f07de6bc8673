void k_decode_q5_1(const uint8_t *block, float *out)
{
    float d = load_half(block), m = load_half(block + 2);
    for (int i = 0; i < 32; i++) {
        int low = i < 16 ? block[8 + i] & 15 : block[8 + i - 16] >> 4, high = block[4 + i / 8] >> (i % 8) & 1;
        out[i] = d * (float)(low | high << 4) + m;
    }
}
