static inline float tanh_precise(float x)
{
    float square = x * x;
    float near = -5.7049887e-3f;
    near = near * square + 2.063909e-2f;
    near = near * square + -5.373971e-2f;
    near = near * square + 1.3331441e-1f;
    near = near * square + -3.333328e-1f;
    near = near * square * x + x;
    float clamped = 1.0f < near ? 1.0f : near;
    clamped = -1.0f > clamped ? -1.0f : clamped;
    return select_ge(absolute(x), 0.55f, tanh_lane(x), clamped);
}

static inline float act_tanh(float x)
{
    return x != x ? x : tanh_precise(x) + 0.0f;
}

void k_tanh(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_tanh(x[i]);
}

/* out = tanh(a) · b. */
void k_tanh_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_tanh(a[i]) * b[i];
}
