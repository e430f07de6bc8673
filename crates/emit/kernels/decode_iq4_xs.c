void k_decode_iq4_xs(const uint8_t *block, float *out)
{
    float d = load_half(block);
    int high = block[2] | block[3] << 8;
    for (int run = 0; run < 8; run++) {
        int bits = (block[4 + run / 2] >> (run % 2 * 4) & 15) | (high >> (2 * run) & 3) << 4;
        float scale = d * (float)(bits - 32);
        for (int i = 0; i < 16; i++) {
            out[run * 32 + i] = scale * (float)IQ4_VALUES[block[8 + run * 16 + i] & 15];
            out[run * 32 + i + 16] = scale * (float)IQ4_VALUES[block[8 + run * 16 + i] >> 4];
        }
    }
}
