static inline float gelu_tanh(float x)
{
    float cube = x * x * x;
    float inner = 0.7978846f * (0.044715f * cube + x);
    return 0.5f * x * (1.0f + tanh_lane(inner));
}

void k_gelu_tanh(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gelu_tanh(x[i]);
}

/* out = gelu_tanh(a) · b. */
void k_gelu_tanh_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gelu_tanh(a[i]) * b[i];
}
