void k_decode_q3_k(const uint8_t *block, float *out)
{
    float d = load_half(block + 108);
    const uint8_t *packed = block + 96;
    for (int group = 0; group < 16; group++) {
        int low_bits = packed[group % 8] >> (group / 8 * 4) & 15, high_bits = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        float scale = d * (float)((low_bits | high_bits << 4) - 32);
        const uint8_t *low = block + 32 + group / 8 * 32 + group % 2 * 16, *high = block + group % 2 * 16;
        for (int i = 0; i < 16; i++) {
            int q = (low[i] >> (group % 8 / 2 * 2) & 3) | (high[i] >> (group / 2) & 1) << 2;
            out[group * 16 + i] = scale * (float)(q - 4);
        }
    }
}
