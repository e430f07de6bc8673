/* Rows of an f32 table, which the result may overlap. */
void k_copy_rows(const float *table, const int32_t *index, float *out, size_t count, size_t width)
{
    for (size_t i = 0; i < count; i++)
        memmove(out + i * width, table + (size_t)index[i] * width, width * sizeof *out);
}
