/* Rotary embedding. `table` has the cosines and then the sines of every position; the first `rotated` elements of a head turn. */
void k_rope(const float *x, const float *table, float *out, size_t tokens, size_t heads, size_t dim, size_t rotated,
            int interleaved)
{
    size_t half = rotated / 2;
    for (size_t token = 0; token < tokens; token++) {
        const float *cosine = table + token * rotated, *sine = cosine + half;
        for (size_t head = 0; head < heads; head++) {
            const float *from = x + (token * heads + head) * dim;
            float *to = out + (token * heads + head) * dim;
            if (to != from)
                memmove(to, from, dim * sizeof *to);
            for (size_t i = 0; i < half; i++) {
                float *first = to + (interleaved ? 2 * i : i), *second = to + (interleaved ? 2 * i + 1 : half + i);
                float a = *first, b = *second;
                *first = a * cosine[i] - b * sine[i];
                *second = b * cosine[i] + a * sine[i];
            }
        }
    }
}
