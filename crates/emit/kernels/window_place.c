/* The place under element `within` of a window; one before the axis wraps around and is behind its end. */
static size_t window_place(const struct window_axis *axis, size_t window, size_t within)
{
    return window * axis->stride + within * axis->dilation - axis->before;
}
