/* Linear layers with weights of four to six bits.
 *
 * Sixteen rows make a panel. A block of a panel has 32 inputs. The low four bits of quants: byte 16 i + 2 r holds input i of row r
 * in its low half and input i + 16 in its high half, and byte 16 i + 2 r + 1 the same of row r + 8. The bits above follow, if there
 * are any: of one bit, byte 16 j + lane has those of inputs j, j + 4, j + 8 and so on, from its lowest bit on; of two bits, those of
 * inputs j, j + 8, j + 16 and j + 24. Sixteen scales and sixteen mins of each group follow, integers in units of one
 * f32 per row; those are the panel's last line. A weight is scale * (quant - centre) + min. Activations are integers of 14 bits in
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

/* The tokens that a panel is multiplied with at once: its quants are expanded once for all of them. */
enum { ROW_SCALED_TOKENS = 4 };

/* The sums of a chunk for the high and the low bytes. */
struct row_scaled_totals {
    int32_t high[LANES], low[LANES];
};

/* The quants of a block as bytes: byte 16 i + lane is input i. */
static inline void row_scaled_widen(const uint8_t *block, size_t upper, uint8_t *quants)
{
    unsigned mask = (1u << upper) - 1;
    for (size_t half = 0; half < 2; half++)
        for (size_t i = 0; i < 16; i++) {
            size_t input = 16 * half + i, bytes = 4 * upper;
            const uint8_t *low = block + 16 * i, *high = block + 256 + input % bytes * 16;
            unsigned shift = (unsigned)(input / bytes * upper);
            for (int lane = 0; lane < 16; lane++)
                quants[16 * input + lane] = (uint8_t)((low[lane] >> 4 * half & 15) | (high[lane] >> shift & mask) << 4);
        }
}

#ifdef HAS_LANES
typedef int16_t i16_eight __attribute__((vector_size(16)));
typedef uint16_t u16_eight __attribute__((vector_size(16)));
typedef int32_t i32_eight __attribute__((vector_size(32)));
typedef uint32_t u32_eight __attribute__((vector_size(32)));
typedef uint16_t u16_pairs __attribute__((vector_size(32)));

/* The quants of an input, or of two: the bytes of rows 0 and 8 twice, then those of rows 1 and 9 and so on. */
static inline void row_scaled_load(const uint8_t *quants, u16_pairs *to)
{
    u16_eight both;
    memcpy(&both, quants, sizeof both);
    u32_eight once = __builtin_convertvector(both, u32_eight);
    *to = (u16_pairs)(once | once << 16);
}

/* Adds the sums of eight rows of a group, scaled and with its mins. A pair has the sums of the high and the low bytes. */
static inline void row_scaled_add(struct row_scaled_totals *totals, int row, const u16_pairs *pairs, const int16_t *factors,
                                  const int32_t *activations)
{
    i16_eight scales, mins;
    i32_eight sums, high, low;
    memcpy(&sums, pairs, sizeof sums);
    memcpy(&scales, factors + row, sizeof scales);
    memcpy(&mins, factors + LANES + row, sizeof mins);
    memcpy(&high, totals->high + row, sizeof high);
    memcpy(&low, totals->low + row, sizeof low);
    i32_eight scale = __builtin_convertvector(scales, i32_eight), min = __builtin_convertvector(mins, i32_eight);
    high += scale * ((i32_eight)((u32_eight)sums << 16) >> 16) + min * activations[0];
    low += scale * (sums >> 16) + min * activations[1];
    memcpy(totals->high + row, &high, sizeof high);
    memcpy(totals->low + row, &low, sizeof low);
}

/* Adds a block of sixteen rows for some tokens. The sums of a group of centred quants fit sixteen bits. */
static inline void row_scaled_block(const uint8_t *quants, const struct row_scaled_row *x, int tokens, size_t block,
                                    struct row_scaled format, struct row_scaled_totals *totals)
{
    /* Of the groups, for rows 0 to 7 and 8 to 15. */
    u16_pairs sums[ROW_SCALED_TOKENS][2][2] = {{{{0}}}};
    uint32_t pairs[ROW_SCALED_TOKENS][32];
    const int16_t *factors = (const int16_t *)(quants + 256 + 64 * format.upper);
    uint8_t wide[512];
    if (format.upper) {
        row_scaled_widen(quants, format.upper, wide);
        quants = wide;
    }
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < 32; i++)
            pairs[t][i] = (uint16_t)x[t].high[block * 32 + i] | (uint32_t)x[t].low[block * 32 + i] << 16;
    for (int i = 0; i < 16; i++) {
        u16_pairs first, last;
        uint16_t mask = format.upper ? 255 : 15;
        row_scaled_load(quants + 16 * i, &first);
        last = first >> 4;
        if (format.upper)
            row_scaled_load(quants + 256 + 16 * i, &last);
        u16_pairs rows[2][2] = {{first & mask, first >> 8 & mask}, {last & mask, last >> 8 & mask}};
        for (int t = 0; t < tokens; t++)
            for (int half = 0; half < 2; half++) {
                u16_pairs pair = (u16_pairs)((u32_eight){0} + pairs[t][16 * half + i]);
                int group = format.group == 32 ? 0 : half;
                sums[t][group][0] += rows[half][0] * pair;
                sums[t][group][1] += rows[half][1] * pair;
            }
    }
    for (int t = 0; t < tokens; t++)
        for (int group = 0; group < (format.group == 32 ? 1 : 2); group++) {
            const int32_t *activations = x[t].sums + 2 * (block * 32 / format.group + group);
            uint32_t centre = (uint16_t)(format.centre * activations[0]) | (uint32_t)(format.centre * activations[1]) << 16;
            for (int rows = 0; rows < 2; rows++) {
                sums[t][group][rows] -= (u16_pairs)((u32_eight){0} + centre);
                row_scaled_add(totals + t, 8 * rows, &sums[t][group][rows], factors + 32 * group, activations);
            }
        }
}
#else
/* Adds a block of sixteen rows for some tokens. */
static inline void row_scaled_block(const uint8_t *quants, const struct row_scaled_row *x, int tokens, size_t block,
                                    struct row_scaled format, struct row_scaled_totals *totals)
{
    const int16_t *all_factors = (const int16_t *)(quants + 256 + 64 * format.upper);
    uint8_t wide[512];
    if (format.upper) {
        row_scaled_widen(quants, format.upper, wide);
        quants = wide;
    }
    for (int t = 0; t < tokens; t++)
        for (size_t g = 0; g < 32 / format.group; g++) {
            const int16_t *factors = all_factors + g * 2 * LANES;
            const int32_t *activations = x[t].sums + 2 * (block * 32 / format.group + g);
            for (int r = 0; r < LANES; r++) {
                int32_t high = 0, low = 0;
                for (size_t i = g * format.group; i < (g + 1) * format.group; i++) {
                    int quant = quants[(format.upper ? i : i % 16) * 16 + r % 8 * 2 + r / 8];
                    if (!format.upper)
                        quant = i < 16 ? quant & 15 : quant >> 4;
                    high += (quant - (int)format.centre) * x[t].high[block * 32 + i];
                    low += (quant - (int)format.centre) * x[t].low[block * 32 + i];
                }
                totals[t].high[r] += factors[r] * high + factors[LANES + r] * activations[0];
                totals[t].low[r] += factors[r] * low + factors[LANES + r] * activations[1];
            }
        }
}
#endif

static size_t row_scaled_stride(struct row_scaled format)
{
    return 256 + 64 * format.upper + 32 / format.group * 64;
}

static inline void row_scaled_panel(const uint8_t *panel, const struct row_scaled_row *x, int tokens, size_t k,
                                    struct row_scaled format, float (*out)[LANES])
{
    size_t stride = row_scaled_stride(format);
    const float *units = (const float *)(panel + k / 32 * stride);
    memset(out, 0, (size_t)tokens * sizeof *out);
    for (size_t chunk = 0; chunk < row_scaled_chunks(k); chunk++) {
        struct row_scaled_totals totals[ROW_SCALED_TOKENS] = {{{0}, {0}}};
        size_t start = row_scaled_chunk_start(k, chunk) / 32, end = row_scaled_chunk_start(k, chunk + 1) / 32;
        for (size_t block = start; block < end; block++)
            row_scaled_block(panel + block * stride, x, tokens, block, format, totals);
        for (int t = 0; t < tokens; t++)
            for (int r = 0; r < LANES; r++) {
                float total = (float)totals[t].high[r] * 128.0f + (float)totals[t].low[r];
                out[t][r] = total * x[t].scales[chunk] + out[t][r];
            }
    }
    for (int t = 0; t < tokens; t++)
        for (int r = 0; r < LANES; r++)
            out[t][r] *= units[r];
}

struct row_scaled_task {
    const uint8_t *weight;
    const float *bias;
    float *out;
    uint8_t *scratch;
    size_t m, n, k;
    struct row_scaled format;
};

/* Makes the format a constant, so that loops over groups and tokens are unrolled. */
static inline void row_scaled_outputs(const uint8_t *panel, const struct row_scaled_row *x, int tokens, size_t k,
                                      struct row_scaled format, float (*out)[LANES])
{
    if (format.group == 32 && format.upper == 1)
        row_scaled_panel(panel, x, tokens, k, (struct row_scaled){32, format.centre, 1}, out);
    else if (format.group == 16 && format.upper == 2)
        row_scaled_panel(panel, x, tokens, k, (struct row_scaled){16, format.centre, 2}, out);
    else if (format.upper)
        row_scaled_panel(panel, x, tokens, k, format, out);
    else if (format.group == 32)
        row_scaled_panel(panel, x, tokens, k, (struct row_scaled){32, 0, 0}, out);
    else
        row_scaled_panel(panel, x, tokens, k, (struct row_scaled){16, 0, 0}, out);
}

static void row_scaled_panels(const void *context, size_t begin, size_t end)
{
    const struct row_scaled_task *t = context;
    size_t panel_bytes = t->k / 32 * row_scaled_stride(t->format) + 64;
    for (size_t first = begin * LANES; first < end * LANES && first < t->n; first += LANES) {
        size_t count = t->n - first < LANES ? t->n - first : LANES;
        const uint8_t *panel = t->weight + first / LANES * panel_bytes;
        for (size_t row = 0; row < t->m;) {
            struct row_scaled_row x[ROW_SCALED_TOKENS];
            float lanes[ROW_SCALED_TOKENS][LANES];
            int tokens = t->m - row < ROW_SCALED_TOKENS ? 1 : ROW_SCALED_TOKENS;
            for (int i = 0; i < tokens; i++)
                x[i] = row_scaled_at(t->scratch, row + i, t->k, t->format.group);
            if (tokens == 1)
                row_scaled_outputs(panel, x, 1, t->k, t->format, lanes);
            else
                row_scaled_outputs(panel, x, ROW_SCALED_TOKENS, t->k, t->format, lanes);
            for (int i = 0; i < tokens; i++, row++)
                for (size_t r = 0; r < count; r++)
                    t->out[row * t->n + first + r] = t->bias ? lanes[i][r] + t->bias[first + r] : lanes[i][r];
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
    parallel(row_scaled_panels, &task, (n + LANES - 1) / LANES);
}
