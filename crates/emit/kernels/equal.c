/* out[i][j] = whether a[i] and b[j] are equal. */
void k_equal(const int32_t *a, const int32_t *b, uint8_t *out, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            out[i * columns + j] = a[i] == b[j];
}
