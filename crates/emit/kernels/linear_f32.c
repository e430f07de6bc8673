/* Linear layers with f32 weights, in panels of 32 columns: the elements of one input of all columns are adjacent, columns
 * after the last are zero. An output is a chain of sums along 256 inputs; the chains are added in order.
 */
enum { PANEL = 32, K_BLOCK = 256 };

struct f32_task {
    const float *weight, *bias, *x;
    float *out;
    size_t m, n, k;
};

static void f32_panels(const void *context, size_t begin, size_t end)
{
    const struct f32_task *t = context;
    size_t k = t->k;
    for (size_t first = begin * PANEL; first < end * PANEL && first < t->n; first += PANEL) {
        const float *panel = t->weight + first * k;
        size_t count = t->n - first < PANEL ? t->n - first : PANEL;
        for (size_t row = 0; row < t->m; row++) {
            float total[PANEL] = {0}, *to = t->out + row * t->n + first;
            for (size_t depth = 0; depth < k; depth += K_BLOCK) {
                size_t depth_end = k - depth < K_BLOCK ? k : depth + K_BLOCK;
                float sums[PANEL] = {0};
                for (size_t i = depth; i < depth_end; i++)
                    for (int c = 0; c < PANEL; c++)
                        sums[c] += t->x[row * k + i] * panel[i * PANEL + c];
                for (int c = 0; c < PANEL; c++)
                    total[c] = depth ? total[c] + sums[c] : sums[c];
            }
            for (size_t c = 0; c < count; c++)
                to[c] = t->bias ? total[c] + t->bias[first + c] : total[c];
        }
    }
}

/* out[m][n] = x[m][k] times the packed weight, plus the bias, if there is one. */
void k_linear_f32(const float *weight, const float *bias, const float *x, float *out, size_t m, size_t n, size_t k)
{
    struct f32_task task = {weight, bias, x, out, m, n, k};
    parallel(f32_panels, &task, (n + PANEL - 1) / PANEL);
}
