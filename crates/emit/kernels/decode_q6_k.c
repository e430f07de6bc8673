void k_decode_q6_k(const uint8_t *block, float *out)
{
    float d = load_half(block + 208);
    for (int group = 0; group < 16; group++) {
        float scale = d * (float)(int8_t)block[192 + group];
        const uint8_t *low = block + group / 8 * 64 + group % 4 * 16, *high = block + 128 + group / 8 * 32 + group % 2 * 16;
        for (int i = 0; i < 16; i++) {
            int q = (low[i] >> (group % 8 / 4 * 4) & 15) | (high[i] >> (group % 8 / 2 * 2) & 3) << 4;
            out[group * 16 + i] = scale * (float)(q - 32);
        }
    }
}
