/* Windows that slide along three axes: x is [batch][inner][axis 0][axis 1][axis 2], out is
 * [batch][places...][inner][elements of a window...]. What lies outside of x is `padding`.
 */
void k_windows(const float *x, float *out, size_t batch, size_t inner, struct windows w)
{
    const struct window_axis *a = w.axes, *b = w.axes + 1, *c = w.axes + 2;
    size_t plane = a->len * b->len * c->len;
    for (size_t n = 0; n < batch; n++)
        for (size_t place = 0; place < a->places * b->places * c->places; place++) {
            size_t pa = place / c->places / b->places, pb = place / c->places % b->places, pc = place % c->places;
            for (size_t channel = 0; channel < inner; channel++) {
                const float *from = x + (n * inner + channel) * plane;
                for (size_t i = 0; i < a->size; i++)
                    for (size_t j = 0; j < b->size; j++)
                        for (size_t k = 0; k < c->size; k++) {
                            size_t p = window_place(a, pa, i), q = window_place(b, pb, j), r = window_place(c, pc, k);
                            int inside = p < a->len && q < b->len && r < c->len;
                            *out++ = inside ? from[(p * b->len + q) * c->len + r] : w.padding;
                        }
            }
        }
}
