/* Linear layers with f32 weights, in panels of 32 columns: the elements of one input of all columns are adjacent, columns
 * after the last are zero. An output is a chain of sums along 256 inputs; the chains are added in order.
 */
enum { PANEL = 32, K_BLOCK = 256 };

/* out[m][n] = x[m][k] times the packed weight, plus the bias, if there is one. */
void k_linear_f32(const float *weight, const float *bias, const float *x, float *out, size_t m, size_t n, size_t k)
{
    for (size_t first = 0; first < n; first += PANEL) {
        const float *panel = weight + first * k;
        size_t count = n - first < PANEL ? n - first : PANEL;
        for (size_t row = 0; row < m; row++) {
            float total[PANEL] = {0};
            for (size_t depth = 0; depth < k; depth += K_BLOCK) {
                size_t end = k - depth < K_BLOCK ? k : depth + K_BLOCK;
                float sums[PANEL] = {0};
                for (size_t i = depth; i < end; i++)
                    for (int c = 0; c < PANEL; c++)
                        sums[c] += x[row * k + i] * panel[i * PANEL + c];
                for (int c = 0; c < PANEL; c++)
                    total[c] = depth ? total[c] + sums[c] : sums[c];
            }
            for (size_t c = 0; c < count; c++)
                out[row * n + first + c] = bias ? total[c] + bias[first + c] : total[c];
        }
    }
}
