void k_decode_iq4_nl(const uint8_t *block, float *out)
{
    float d = load_half(block);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)IQ4_VALUES[block[2 + i] & 15];
        out[i + 16] = d * (float)IQ4_VALUES[block[2 + i] >> 4];
    }
}
