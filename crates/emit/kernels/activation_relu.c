static inline float act_relu(float x)
{
    return 0.0f > x ? 0.0f : x;
}

void k_relu(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_relu(x[i]);
}

/* out = relu(a) · b. */
void k_relu_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_relu(a[i]) * b[i];
}
