static inline float act_hard_swish(float x)
{
    float gate = x + 3.0f;
    gate = 0.0f > gate ? 0.0f : gate;
    gate = 6.0f < gate ? 6.0f : gate;
    return x * gate * (1.0f / 6.0f);
}

void k_hard_swish(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_hard_swish(x[i]);
}

/* out = hard_swish(a) · b. */
void k_hard_swish_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_hard_swish(a[i]) * b[i];
}
