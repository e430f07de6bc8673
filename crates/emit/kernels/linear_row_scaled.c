/* Linear layers with weights of four to six bits.
 *
 * Sixteen rows make a strip. A block of a strip has 32 inputs. Four-bit quants: byte 16 i + 2 r holds input i of row r in its low
 * half and input i + 16 in its high half, and byte 16 i + 2 r + 1 the same of row r + 8. Wider quants: byte 16 i + 2 r is input i of
 * row r, and byte 16 i + 2 r + 1 that of row r + 8. Sixteen scales and sixteen mins of each group follow, integers in units of one
 * f32 per row; those are the strip's last line. A weight is scale * (quant - centre) + min. Activations are integers of 14 bits in
 * two planes of bytes, with a scale per chunk. Sums of a chunk are exact; only they are rounded.
 */
enum { ROW_SCALED_CHUNK = 960 };

static size_t row_scaled_chunks(size_t k)
{
    return (k + ROW_SCALED_CHUNK - 1) / ROW_SCALED_CHUNK;
}

static size_t row_scaled_chunk_start(size_t k, size_t chunk)
{
    size_t tiles = (k + 63) / 64, start = tiles * chunk / row_scaled_chunks(k) * 64;
    return start < k ? start : k;
}

/* A row of activations in scratch: high bytes, low bytes, the sums of both for each group, the scales of the chunks. */
struct row_scaled_row {
    int8_t *high, *low;
    int32_t *sums;
    float *scales;
};

static struct row_scaled_row row_scaled_at(uint8_t *scratch, size_t row, size_t k, size_t group)
{
    struct row_scaled_row at;
    uint8_t *start = scratch + row * (2 * k + k / group * 8 + row_scaled_chunks(k) * 4);
    at.sums = (int32_t *)start;
    at.scales = (float *)(start + k / group * 8);
    at.high = (int8_t *)(start + k / group * 8 + row_scaled_chunks(k) * 4);
    at.low = at.high + k;
    return at;
}

static void row_scaled_quantise(const float *x, struct row_scaled_row to, size_t k, size_t group)
{
    for (size_t chunk = 0; chunk < row_scaled_chunks(k); chunk++) {
        size_t start = row_scaled_chunk_start(k, chunk), end = row_scaled_chunk_start(k, chunk + 1);
        float top = 0.0f;
        for (size_t i = start; i < end; i++) {
            float magnitude = fabsf(x[i]);
            top = top > magnitude ? top : magnitude;
        }
        int empty = top < 1e-30f;
        float inverse = empty ? 0.0f : 8127.0f / top;
        to.scales[chunk] = empty ? 0.0f : top / 8127.0f;
        for (size_t i = start; i < end; i++) {
            int32_t value = (int32_t)round_small(x[i] * inverse);
            int32_t high = (value + 64) >> 7;
            to.high[i] = (int8_t)high;
            to.low[i] = (int8_t)(value - high * 128);
        }
    }
    for (size_t g = 0; g < k / group; g++) {
        int32_t high = 0, low = 0;
        for (size_t i = g * group; i < (g + 1) * group; i++) {
            high += to.high[i];
            low += to.low[i];
        }
        to.sums[2 * g] = high;
        to.sums[2 * g + 1] = low;
    }
}

/* The sums of a chunk: of rows 0, 2, 4, 6, of rows 1, 3, 5, 7, of rows 8, 10 and so on, for the high and the low bytes. */
struct row_scaled_totals {
    int32_t high[LANES], low[LANES];
};

static inline int row_scaled_lane(int row)
{
    return row / 8 * 8 + row % 2 * 4 + row % 8 / 2;
}

#ifdef HAS_LANES
/* Adds the sums of eight rows of a group, scaled and with its mins. */
static inline void row_scaled_add(int32_t *totals, const u16_lanes *sums, const int16_t *factors, int32_t activations)
{
    i32_lanes both, scales, mins, even, odd;
    memcpy(&both, sums, sizeof both);
    memcpy(&scales, factors, sizeof scales);
    memcpy(&mins, factors + LANES, sizeof mins);
    memcpy(&even, totals, sizeof even);
    memcpy(&odd, totals + 4, sizeof odd);
    even += ((i32_lanes)((u32_lanes)scales << 16) >> 16) * ((i32_lanes)((u32_lanes)both << 16) >> 16) +
            ((i32_lanes)((u32_lanes)mins << 16) >> 16) * activations;
    odd += (scales >> 16) * (both >> 16) + (mins >> 16) * activations;
    memcpy(totals, &even, sizeof even);
    memcpy(totals + 4, &odd, sizeof odd);
}

/* Adds a block of sixteen rows. The sums of a group of centred quants fit sixteen bits. */
static inline void row_scaled_block(const uint8_t *quants, const int8_t *x_high, const int8_t *x_low, struct row_scaled format,
                                    const int32_t *activations, struct row_scaled_totals *totals)
{
    /* Of the first and last sixteen inputs, for rows 0 to 7 and 8 to 15. */
    u16_lanes high[2][2] = {{{0}}}, low[2][2] = {{{0}}};
    for (int i = 0; i < 16; i++) {
        u16_lanes first, last;
        memcpy(&first, quants + 16 * i, sizeof first);
        uint16_t first_high = (uint16_t)x_high[i], first_low = (uint16_t)x_low[i];
        uint16_t last_high = (uint16_t)x_high[i + 16], last_low = (uint16_t)x_low[i + 16];
        uint16_t mask = 255;
        if (format.wide) {
            memcpy(&last, quants + 256 + 16 * i, sizeof last);
        } else {
            last = first >> 4;
            mask = 15;
        }
        u16_lanes quant = first & mask;
        high[0][0] += quant * first_high;
        low[0][0] += quant * first_low;
        quant = last & mask;
        high[1][0] += quant * last_high;
        low[1][0] += quant * last_low;
        quant = first >> 8 & mask;
        high[0][1] += quant * first_high;
        low[0][1] += quant * first_low;
        quant = last >> 8 & mask;
        high[1][1] += quant * last_high;
        low[1][1] += quant * last_low;
    }
    const int16_t *factors = (const int16_t *)(quants + (format.wide ? 512 : 256));
    for (int rows = 0; rows < 2; rows++) {
        int at = 8 * rows;
        if (format.group == 32) {
            high[0][rows] += high[1][rows];
            low[0][rows] += low[1][rows];
        } else {
            high[1][rows] -= (uint16_t)(format.centre * activations[2]);
            low[1][rows] -= (uint16_t)(format.centre * activations[3]);
            row_scaled_add(totals->high + at, &high[1][rows], factors + 32 + at, activations[2]);
            row_scaled_add(totals->low + at, &low[1][rows], factors + 32 + at, activations[3]);
        }
        high[0][rows] -= (uint16_t)(format.centre * activations[0]);
        low[0][rows] -= (uint16_t)(format.centre * activations[1]);
        row_scaled_add(totals->high + at, &high[0][rows], factors + at, activations[0]);
        row_scaled_add(totals->low + at, &low[0][rows], factors + at, activations[1]);
    }
}
#else
/* Adds a block of sixteen rows. */
static inline void row_scaled_block(const uint8_t *quants, const int8_t *x_high, const int8_t *x_low, struct row_scaled format,
                                    const int32_t *activations, struct row_scaled_totals *totals)
{
    for (size_t g = 0; g < 32 / format.group; g++) {
        const int16_t *factors = (const int16_t *)(quants + (format.wide ? 512 : 256)) + g * 2 * LANES;
        for (int r = 0; r < LANES; r++) {
            int32_t high = 0, low = 0;
            for (size_t i = g * format.group; i < (g + 1) * format.group; i++) {
                int quant = quants[(format.wide ? i : i % 16) * 16 + r % 8 * 2 + r / 8];
                if (!format.wide)
                    quant = i < 16 ? quant & 15 : quant >> 4;
                high += (quant - (int)format.centre) * x_high[i];
                low += (quant - (int)format.centre) * x_low[i];
            }
            int lane = row_scaled_lane(r);
            totals->high[lane] += factors[r] * high + factors[LANES + r] * activations[2 * g];
            totals->low[lane] += factors[r] * low + factors[LANES + r] * activations[2 * g + 1];
        }
    }
}
#endif

static size_t row_scaled_stride(struct row_scaled format)
{
    return (format.wide ? 512 : 256) + 32 / format.group * 64;
}

static void row_scaled_strip(const uint8_t *strip, struct row_scaled_row x, size_t k, struct row_scaled format, float *out)
{
    size_t stride = row_scaled_stride(format);
    for (int r = 0; r < LANES; r++)
        out[r] = 0.0f;
    for (size_t chunk = 0; chunk < row_scaled_chunks(k); chunk++) {
        struct row_scaled_totals totals = {{0}, {0}};
        size_t start = row_scaled_chunk_start(k, chunk) / 32, end = row_scaled_chunk_start(k, chunk + 1) / 32;
        for (size_t block = start; block < end; block++) {
            const int32_t *activations = x.sums + 2 * (block * 32 / format.group);
            row_scaled_block(strip + block * stride, x.high + block * 32, x.low + block * 32, format, activations, &totals);
        }
        for (int r = 0; r < LANES; r++) {
            int lane = row_scaled_lane(r);
            float total = (float)totals.high[lane] * 128.0f + (float)totals.low[lane];
            out[r] = total * x.scales[chunk] + out[r];
        }
    }
    const float *units = (const float *)(strip + k / 32 * stride);
    for (int r = 0; r < LANES; r++)
        out[r] *= units[r];
}

struct row_scaled_task {
    const uint8_t *weight;
    const float *bias;
    float *out;
    uint8_t *scratch;
    size_t m, n, k;
    struct row_scaled format;
};

static void row_scaled_strips(const void *context, size_t begin, size_t end)
{
    const struct row_scaled_task *t = context;
    struct row_scaled wide = {t->format.group, t->format.centre, 1}, narrow = {t->format.group, 0, 0};
    size_t strip_bytes = t->k / 32 * row_scaled_stride(t->format) + 64;
    for (size_t first = begin * LANES; first < end * LANES && first < t->n; first += LANES) {
        size_t count = t->n - first < LANES ? t->n - first : LANES;
        const uint8_t *strip = t->weight + first / LANES * strip_bytes;
        for (size_t row = 0; row < t->m; row++) {
            float lanes[LANES], *to = t->out + row * t->n + first;
            struct row_scaled_row x = row_scaled_at(t->scratch, row, t->k, t->format.group);
            if (t->format.wide)
                row_scaled_strip(strip, x, t->k, wide, lanes);
            else
                row_scaled_strip(strip, x, t->k, narrow, lanes);
            for (size_t r = 0; r < count; r++)
                to[r] = t->bias ? lanes[r] + t->bias[first + r] : lanes[r];
        }
    }
}

/* out[m][n] = x[m][k] times the transposed weight, plus the bias, if there is one. */
void k_linear_row_scaled(const uint8_t *weight, const float *bias, const float *x, float *out, uint8_t *scratch, size_t m,
                         size_t n, size_t k, struct row_scaled format)
{
    struct row_scaled_task task = {weight, bias, out, scratch, m, n, k, format};
    for (size_t row = 0; row < m; row++)
        row_scaled_quantise(x + row * k, row_scaled_at(scratch, row, k, format.group), k, format.group);
    parallel(row_scaled_strips, &task, (n + LANES - 1) / LANES);
}
