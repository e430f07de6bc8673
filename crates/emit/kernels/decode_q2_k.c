void k_decode_q2_k(const uint8_t *block, float *out)
{
    float d = load_half(block + 80), dmin = load_half(block + 82);
    for (int group = 0; group < 16; group++) {
        float scale = d * (float)(block[group] & 15), min = dmin * (float)(block[group] >> 4);
        const uint8_t *from = block + 16 + group / 8 * 32 + group % 2 * 16;
        for (int i = 0; i < 16; i++)
            out[group * 16 + i] = scale * (float)(from[i] >> (group % 8 / 2 * 2) & 3) - min;
    }
}
