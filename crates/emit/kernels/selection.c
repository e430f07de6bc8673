/* Shared by functions with two formulas. */
static inline float absolute(float x)
{
    return -x > x ? 0.0f - x : x;
}

/* a where x is at least the limit, b elsewhere; both are finite. */
static inline float select_ge(float x, float limit, float a, float b)
{
    return (x >= limit ? a : 0.0f) + (b - (x >= limit ? b : 0.0f));
}
