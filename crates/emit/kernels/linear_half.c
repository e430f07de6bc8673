/* Linear layers with f16 or bf16 weights, row after row: sixteen chains along the inputs, summed at the end. */

static inline float half_weight(uint16_t bits, int brain)
{
    return brain ? bits_to_float((uint32_t)bits << 16) : half_to_float(bits);
}

struct half_task {
    const uint16_t *weight;
    const float *bias, *x;
    float *out;
    size_t m, n, k;
    int brain;
};

static void half_columns(const void *context, size_t begin, size_t end)
{
    const struct half_task *t = context;
    for (size_t column = begin; column < end; column++) {
        const uint16_t *w = t->weight + column * t->k;
        for (size_t row = 0; row < t->m; row++) {
            const float *from = t->x + row * t->k;
            float sums[LANES] = {0};
            size_t i = 0;
            for (; i + LANES <= t->k; i += LANES)
                for (int lane = 0; lane < LANES; lane++)
                    sums[lane] += half_weight(w[i + lane], t->brain) * from[i + lane];
            for (int lane = 0; i + lane < t->k; lane++)
                sums[lane] += half_weight(w[i + lane], t->brain) * from[i + lane];
            t->out[row * t->n + column] = sum_lanes(sums) + (t->bias ? t->bias[column] : 0.0f);
        }
    }
}

/* out[m][n] = x[m][k] times the transposed weight, plus the bias, if there is one. */
void k_linear_half(const uint16_t *weight, const float *bias, const float *x, float *out, size_t m, size_t n, size_t k, int brain)
{
    struct half_task task = {weight, bias, x, out, m, n, k, brain};
    parallel(half_columns, &task, n);
}
