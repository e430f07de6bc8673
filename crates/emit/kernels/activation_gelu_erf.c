static inline float gelu_erf(float x)
{
    float half = 0.5f * x, magnitude = absolute(half), a = magnitude * 1.41421356237309504880168872420969808f;
    a = 4.0f < a ? 4.0f : a;
    float p = -3.1440133e-5f;
    p = p * a + 3.088018e-4f;
    p = p * a + -1.0324001e-3f;
    p = p * a + -5.3693645e-4f;
    p = p * a + 1.9583963e-2f;
    p = p * a + -1.02919616e-1f;
    p = p * a + -6.3659775e-1f;
    p = p * a + -1.1283803f;
    return magnitude * (1.0f - exp_lane(p * a)) + half;
}

void k_gelu_erf(const float *x, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gelu_erf(x[i]);
}

/* out = gelu_erf(a) · b. */
void k_gelu_erf_gated(const float *a, const float *b, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = gelu_erf(a[i]) * b[i];
}
