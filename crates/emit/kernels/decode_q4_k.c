void k_decode_q4_k(const uint8_t *block, float *out)
{
    float d = load_half(block), dmin = load_half(block + 2);
    for (int group = 0; group < 8; group++) {
        int scale_bits, min_bits;
        scale_and_min(block + 4, group, &scale_bits, &min_bits);
        float scale = d * (float)scale_bits, min = dmin * (float)min_bits;
        for (int i = 0; i < 32; i++)
            out[group * 32 + i] = scale * (float)(block[16 + group / 2 * 32 + i] >> (group % 2 * 4) & 15) - min;
    }
}
