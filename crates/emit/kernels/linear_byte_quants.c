/* Linear layers with quants of a signed byte, or of four bits that index a table of them.
 *
 * Sixteen rows make a panel. A block of a panel has 32 inputs: byte 16 i + r is input i of row r; with a table its low half is
 * input i and its high half input i + 16. Sixteen factors of two bytes follow. After all blocks come the scales of the rows. A
 * weight is quant * factor / 128, rounded to an integer in units of its row's scale. Activations and sums are those of
 * linear_row_scaled.
 */

/* The quants of sixteen rows of input i of a block. */
static inline void byte_quants_at(const uint8_t *block, const int8_t *table, int i, int8_t *to)
{
    if (!table)
        memcpy(to, block + 16 * i, LANES);
    else
        for (int r = 0; r < LANES; r++)
            to[r] = table[i < 16 ? block[16 * i + r] & 15 : block[16 * (i - 16) + r] >> 4];
}

#ifdef HAS_LANES
typedef int8_t i8_rows __attribute__((vector_size(16)));
typedef int16_t i16_rows __attribute__((vector_size(32)));
typedef int32_t i32_rows __attribute__((vector_size(64)));

/* Adds a block of sixteen rows. */
static inline void byte_quants_block(const uint8_t *block, const int8_t *table, const int8_t *x_high, const int8_t *x_low,
                                     int32_t *high, int32_t *low)
{
    i16_rows stored;
    i32_rows factors, highs, lows;
    memcpy(&stored, block + (table ? 256 : 512), sizeof stored);
    memcpy(&highs, high, sizeof highs);
    memcpy(&lows, low, sizeof lows);
    factors = __builtin_convertvector(stored, i32_rows);
    for (int i = 0; i < 32; i++) {
        i8_rows quants;
        byte_quants_at(block, table, i, (int8_t *)&quants);
        /* By way of two bytes: GCC converts single bytes to four one by one. */
        i16_rows wide = __builtin_convertvector(quants, i16_rows);
        i32_rows weights = (__builtin_convertvector(wide, i32_rows) * factors + 64) >> 7;
        highs += weights * (int32_t)x_high[i];
        lows += weights * (int32_t)x_low[i];
    }
    memcpy(high, &highs, sizeof highs);
    memcpy(low, &lows, sizeof lows);
}
#else
/* Adds a block of sixteen rows. */
static inline void byte_quants_block(const uint8_t *block, const int8_t *table, const int8_t *x_high, const int8_t *x_low,
                                     int32_t *high, int32_t *low)
{
    int16_t factors[LANES];
    memcpy(factors, block + (table ? 256 : 512), sizeof factors);
    for (int i = 0; i < 32; i++) {
        int8_t quants[LANES];
        byte_quants_at(block, table, i, quants);
        for (int r = 0; r < LANES; r++) {
            int32_t weight = (quants[r] * factors[r] + 64) >> 7;
            high[r] += weight * x_high[i];
            low[r] += weight * x_low[i];
        }
    }
}
#endif

static void byte_quants_panel(const uint8_t *panel, struct row_scaled_row x, size_t k, const int8_t *table, float *out)
{
    size_t stride = table ? 288 : 544;
    for (int r = 0; r < LANES; r++)
        out[r] = 0.0f;
    for (size_t chunk = 0; chunk < row_scaled_chunks(k); chunk++) {
        int32_t high[LANES] = {0}, low[LANES] = {0};
        size_t start = row_scaled_chunk_start(k, chunk) / 32, end = row_scaled_chunk_start(k, chunk + 1) / 32;
        for (size_t block = start; block < end; block++)
            byte_quants_block(panel + block * stride, table, x.high + block * 32, x.low + block * 32, high, low);
        for (int r = 0; r < LANES; r++)
            out[r] = ((float)high[r] * 128.0f + (float)low[r]) * x.scales[chunk] + out[r];
    }
    const float *units = (const float *)(panel + k / 32 * stride);
    for (int r = 0; r < LANES; r++)
        out[r] *= units[r];
}

struct byte_quants_task {
    const uint8_t *weight;
    const float *bias;
    float *out;
    uint8_t *scratch;
    size_t m, n, k;
    const int8_t *table;
};

static void byte_quants_panels(const void *context, size_t begin, size_t end)
{
    const struct byte_quants_task *t = context;
    size_t panel_bytes = t->k / 32 * (t->table ? 288 : 544) + 64;
    for (size_t first = begin * LANES; first < end * LANES && first < t->n; first += LANES) {
        size_t count = t->n - first < LANES ? t->n - first : LANES;
        const uint8_t *panel = t->weight + first / LANES * panel_bytes;
        for (size_t row = 0; row < t->m; row++) {
            float lanes[LANES], *to = t->out + row * t->n + first;
            struct row_scaled_row x = row_scaled_at(t->scratch, row, t->k, 32);
            if (t->table)
                byte_quants_panel(panel, x, t->k, t->table, lanes);
            else
                byte_quants_panel(panel, x, t->k, NULL, lanes);
            for (size_t r = 0; r < count; r++)
                to[r] = t->bias ? lanes[r] + t->bias[first + r] : lanes[r];
        }
    }
}

/* out[m][n] = x[m][k] times the transposed weight, plus the bias, if there is one. */
void k_linear_byte_quants(const uint8_t *weight, const float *bias, const float *x, float *out, uint8_t *scratch, size_t m,
                          size_t n, size_t k, const int8_t *table)
{
    struct byte_quants_task task = {weight, bias, out, scratch, m, n, k, table};
    for (size_t row = 0; row < m; row++)
        row_scaled_quantise(x + row * k, row_scaled_at(scratch, row, k, 32), k, 32);
    parallel(byte_quants_panels, &task, (n + LANES - 1) / LANES);
}
