static inline float act_sigmoid(float x)
{
    return x != x ? x : 1.0f / (1.0f + exp_lane(0.0f - x)) + 0.0f;
}

void k_sigmoid(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_sigmoid(x[i]);
}

/* out = sigmoid(a) · b. */
void k_sigmoid_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = act_sigmoid(a[i]) * b[i];
}
