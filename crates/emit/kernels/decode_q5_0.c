void k_decode_q5_0(const uint8_t *block, float *out)
{
    float d = load_half(block);
    for (int i = 0; i < 32; i++) {
        int low = i < 16 ? block[6 + i] & 15 : block[6 + i - 16] >> 4, high = block[2 + i / 8] >> (i % 8) & 1;
        out[i] = d * (float)((low | high << 4) - 16);
    }
}
