/* Rows of a table, decoded to f32. */
void k_gather_rows(const uint8_t *table, const int32_t *index, float *out, size_t count, size_t width, size_t row_bytes,
                   size_t block_len, size_t block_bytes, void (*decode)(const uint8_t *block, float *out))
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t *row = table + (size_t)index[i] * row_bytes;
        for (size_t block = 0; block < width / block_len; block++)
            decode(row + block * block_bytes, out + i * width + block * block_len);
    }
}
