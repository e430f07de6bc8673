void k_round_f16(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = half_to_float(float_to_half(x[i]));
}

void k_round_bf16(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = float_to_bits(x[i]);
        if ((bits & 0x7fffffffu) > 0x7f800000u)
            bits |= 0x400000u;
        else
            bits += 0x7fffu + (bits >> 16 & 1u);
        out[i] = bits_to_float(bits & 0xffff0000u);
    }
}
