/* The largest element (NaN if one is NaN) or the sum of windows that slide along three axes of every plane of x. */
void k_pool(const float *x, float *out, size_t planes, struct windows w, int is_max)
{
    const struct window_axis *a = w.axes, *b = w.axes + 1, *c = w.axes + 2;
    for (size_t plane = 0; plane < planes; plane++, x += a->len * b->len * c->len)
        for (size_t place = 0; place < a->places * b->places * c->places; place++) {
            size_t pa = place / c->places / b->places, pb = place / c->places % b->places, pc = place % c->places;
            float result = is_max ? -INFINITY : 0.0f;
            for (size_t i = 0; i < a->size; i++)
                for (size_t j = 0; j < b->size; j++)
                    for (size_t k = 0; k < c->size; k++) {
                        size_t p = window_place(a, pa, i), q = window_place(b, pb, j), r = window_place(c, pc, k);
                        if (p >= a->len || q >= b->len || r >= c->len)
                            continue;
                        float element = x[(p * b->len + q) * c->len + r];
                        if (!is_max)
                            result += element;
                        else if (element > result || element != element)
                            result = element;
                    }
            *out++ = result;
        }
}
