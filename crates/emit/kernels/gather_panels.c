/* Rows of a table that is also the weight of a product: their codes are in the panels, the scales and mins of their blocks are kept
 * beside as the bytes that a block in the file has them in. */
void k_gather_panels(const uint8_t *panels, const uint8_t *scales, const int32_t *index, float *out, size_t count, size_t width,
                     struct panel_codes format, size_t block_len, size_t scale_bytes,
                     void (*decode)(const uint8_t *scales, const uint8_t *codes, float *out))
{
    size_t panel_bytes = width / 32 * format.stride + 64;
    for (size_t i = 0; i < count; i++) {
        size_t row = (size_t)index[i], r = row % LANES, lane = format.pairs ? r % 8 * 2 + r / 8 : r;
        const uint8_t *panel = panels + row / LANES * panel_bytes + lane;
        const uint8_t *own = scales + row * (width / block_len) * scale_bytes;
        uint8_t codes[256];
        for (size_t e = 0; e < width; e++) {
            const uint8_t *block = panel + e / 32 * format.stride;
            size_t at = e % 32, bytes = 4 * format.upper;
            unsigned code = format.is_byte ? block[at * LANES] : block[at % 16 * LANES] >> at / 16 * 4 & 15u;
            if (format.upper)
                code |= (block[256 + at % bytes * LANES] >> at / bytes * format.upper & ((1u << format.upper) - 1)) << 4;
            codes[e % block_len] = (uint8_t)code;
            if (e % block_len == block_len - 1)
                decode(own + e / block_len * scale_bytes, codes, out + i * width + e + 1 - block_len);
        }
    }
}
