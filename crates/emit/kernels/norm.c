/* RMS norm and layer norm of rows. */

static float norm_sum(const float *x, size_t width, float shift, int squared)
{
    float sums[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= width; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float value = x[i + lane] - shift;
            sums[lane] += squared ? value * value : value;
        }
    for (int lane = 0; i + lane < width; lane++) {
        float value = x[i + lane] - shift;
        sums[lane] += squared ? value * value : value;
    }
    return sum_lanes(sums);
}

/* out = x / sqrt(mean(x²) + eps) · weight; with a bias, the mean is subtracted first and the bias is added. */
void k_norm(const float *x, const float *weight, const float *bias, float *out, size_t rows, size_t width, float eps)
{
    size_t whole = width / LANES * LANES;
    for (size_t row = 0; row < rows; row++, x += width, out += width) {
        float mean = bias ? norm_sum(x, width, 0.0f, 0) / (float)width : 0.0f;
        float square = norm_sum(x, width, mean, 1);
        float inverse = 1.0f / sqrtf(square / (float)width + eps);
        for (size_t i = 0; i < width; i++) {
            float scaled = (x[i] - mean) * inverse * weight[i];
            if (bias)
                scaled += bias[i];
            else if (i >= whole)
                scaled += 0.0f;
            out[i] = scaled;
        }
    }
}
