/* Copies elements of `size` bytes; the view of the source has these steps, in elements, along up to four axes. */
void k_copy(const uint8_t *from, uint8_t *to, size_t size, struct view view)
{
    for (size_t a = 0; a < view.shape[0]; a++)
        for (size_t b = 0; b < view.shape[1]; b++)
            for (size_t c = 0; c < view.shape[2]; c++)
                for (size_t d = 0; d < view.shape[3]; d++) {
                    size_t source = view.start + a * view.from[0] + b * view.from[1] + c * view.from[2] + d * view.from[3];
                    size_t target = view.offset + a * view.to[0] + b * view.to[1] + c * view.to[2] + d * view.to[3];
                    memcpy(to + target * size, from + source * size, size);
                }
}
