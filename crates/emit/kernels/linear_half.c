/* Linear layers with f16 or bf16 weights, row after row: sixteen chains along the inputs, summed at the end. */

static inline float half_weight(uint16_t bits, int brain)
{
    return brain ? bits_to_float((uint32_t)bits << 16) : half_to_float(bits);
}

/* out[m][n] = x[m][k] times the transposed weight, plus the bias, if there is one. */
void k_linear_half(const uint16_t *weight, const float *bias, const float *x, float *out, size_t m, size_t n, size_t k, int brain)
{
    for (size_t column = 0; column < n; column++) {
        const uint16_t *w = weight + column * k;
        for (size_t row = 0; row < m; row++) {
            const float *from = x + row * k;
            float sums[LANES] = {0};
            size_t i = 0;
            for (; i + LANES <= k; i += LANES)
                for (int lane = 0; lane < LANES; lane++)
                    sums[lane] += half_weight(w[i + lane], brain) * from[i + lane];
            for (int lane = 0; i + lane < k; lane++)
                sums[lane] += half_weight(w[i + lane], brain) * from[i + lane];
            out[row * n + column] = sum_lanes(sums) + (bias ? bias[column] : 0.0f);
        }
    }
}
