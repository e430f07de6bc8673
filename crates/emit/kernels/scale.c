void k_scale(const float *x, float *out, size_t n, float factor)
{
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * factor;
}

void k_soft_cap(const float *x, float *out, size_t n, float cap)
{
    for (size_t i = 0; i < n; i++)
        out[i] = cap * tanh_lane(x[i] / cap);
}
