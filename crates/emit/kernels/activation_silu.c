static inline float act_silu(float x)
{
    return x / (1.0f + exp_lane(0.0f - x));
}

void k_silu(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_silu(x[i]);
}

/* out = silu(a) · b. */
void k_silu_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_silu(a[i]) * b[i];
}
