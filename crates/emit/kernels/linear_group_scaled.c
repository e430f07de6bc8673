/* Linear layers with quants of a byte, or of four bits that index a table.
 *
 * Sixteen rows make a strip. Its quants come first, input by input for all sixteen rows; then the scales: sixteen f16 per 32
 * inputs, or sixteen f16 per 256 inputs and after all of those sixteen bytes per 32.
 * Activations are integers of 15 bits with a scale per 32. The sum of 32 inputs is exact; it is scaled and added in f32.
 */
static const uint8_t IQ4_TABLE[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

struct group_scaled_terms {
    float scale;
    int32_t offset;
};

struct group_scaled_row {
    struct group_scaled_terms *terms;
    int16_t *values;
};

static struct group_scaled_row group_scaled_at(uint8_t *scratch, size_t row, size_t k)
{
    struct group_scaled_row at;
    uint8_t *start = scratch + row * (2 * k + k / 32 * sizeof(struct group_scaled_terms));
    at.terms = (struct group_scaled_terms *)start;
    at.values = (int16_t *)(start + k / 32 * sizeof(struct group_scaled_terms));
    return at;
}

static void group_scaled_quantise(const float *x, struct group_scaled_row to, const struct group_scaled *format, size_t k)
{
    for (size_t block = 0; block < k / 32; block++) {
        const float *from = x + block * 32;
        int16_t *values = to.values + block * 32;
        float top = 0.0f;
        int32_t sum = 0;
        for (int i = 0; i < 32; i++) {
            float magnitude = fabsf(from[i]);
            top = top > magnitude ? top : magnitude;
        }
        int empty = top < 1e-30f;
        float inverse = empty ? 0.0f : 16256.0f / top;
        for (int i = 0; i < 32; i++) {
            values[i] = (int16_t)round_small(from[i] * inverse);
            sum += values[i];
        }
        to.terms[block].scale = empty ? 0.0f : top / 16256.0f;
        to.terms[block].offset = -format->zero * sum;
    }
}

/* The scales of sixteen rows of a block. */
static inline void group_scaled_scales(const uint8_t *scales, const struct group_scaled *format, size_t k, size_t block, float *to)
{
    uint16_t halves[LANES];
    memcpy(halves, scales + (format->two_level ? block / 8 : block) * sizeof halves, sizeof halves);
    for (int r = 0; r < LANES; r++)
        to[r] = half_to_float(halves[r]);
    if (format->two_level)
        for (int r = 0; r < LANES; r++)
            to[r] *= (float)(int8_t)scales[k / 256 * 32 + block * 16 + r];
}

static inline void group_scaled_add(const uint8_t *strip, const struct group_scaled *format, size_t k, size_t block,
                                    const struct group_scaled_terms *x, const int32_t *sums, float *out)
{
    float scales[LANES];
    group_scaled_scales(strip + k / 32 * (format->table ? 256 : 512), format, k, block, scales);
    for (int r = 0; r < LANES; r++)
        out[r] = (float)(sums[r] + x->offset) * (scales[r] * x->scale) + out[r];
}

#ifdef HAS_LANES
typedef uint8_t u8_strip __attribute__((vector_size(16)));
typedef uint16_t u16_strip __attribute__((vector_size(32)));
typedef int32_t i32_strip __attribute__((vector_size(64)));
#else
typedef uint8_t u8_strip[LANES];
#endif

static inline void group_scaled_strip(const uint8_t *strip, struct group_scaled_row x, const struct group_scaled *format, size_t k,
                                      int table, float *out)
{
    for (int r = 0; r < LANES; r++)
        out[r] = 0.0f;
    for (size_t block = 0; block < k / 32; block++) {
        const uint8_t *quants = strip + block * (table ? 256 : 512);
        int32_t sums[LANES] = {0};
#ifdef HAS_LANES
        i32_strip totals = {0};
#endif
        for (int i = 0; i < 32; i++) {
            u8_strip bytes;
            if (table)
                for (int r = 0; r < LANES; r++)
                    bytes[r] = IQ4_TABLE[i < 16 ? quants[i * 16 + r] & 15 : quants[(i - 16) * 16 + r] >> 4];
            else
                memcpy(&bytes, quants + i * 16, sizeof bytes);
#ifdef HAS_LANES
            totals += __builtin_convertvector(__builtin_convertvector(bytes, u16_strip), i32_strip) * (int32_t)x.values[block * 32 + i];
        }
        memcpy(sums, &totals, sizeof sums);
#else
            for (int r = 0; r < LANES; r++)
                sums[r] += bytes[r] * x.values[block * 32 + i];
        }
#endif
        group_scaled_add(strip, format, k, block, x.terms + block, sums, out);
    }
}

struct group_scaled_task {
    const uint8_t *weight;
    const float *bias;
    float *out;
    uint8_t *scratch;
    size_t m, n, k;
    struct group_scaled format;
};

static void group_scaled_strips(const void *context, size_t begin, size_t end)
{
    const struct group_scaled_task *t = context;
    const struct group_scaled *format = &t->format;
    for (size_t first = begin * LANES; first < end * LANES && first < t->n; first += LANES) {
        const uint8_t *strip = t->weight + first / LANES * format->strip_bytes;
        size_t count = t->n - first < LANES ? t->n - first : LANES;
        for (size_t row = 0; row < t->m; row++) {
            struct group_scaled_row from = group_scaled_at(t->scratch, row, t->k);
            float lanes[LANES], *to = t->out + row * t->n + first;
            if (format->table)
                group_scaled_strip(strip, from, format, t->k, 1, lanes);
            else
                group_scaled_strip(strip, from, format, t->k, 0, lanes);
            for (size_t r = 0; r < count; r++)
                to[r] = t->bias ? lanes[r] + t->bias[first + r] : lanes[r];
        }
    }
}

/* out[m][n] = x[m][k] times the transposed weight, plus the bias, if there is one. */
void k_linear_group_scaled(const uint8_t *weight, const float *bias, const float *x, float *out, uint8_t *scratch, size_t m,
                           size_t n, size_t k, struct group_scaled format)
{
    struct group_scaled_task task = {weight, bias, out, scratch, m, n, k, format};
    for (size_t row = 0; row < m; row++)
        group_scaled_quantise(x + row * k, group_scaled_at(scratch, row, k), &format, k);
    parallel(group_scaled_strips, &task, (n + LANES - 1) / LANES);
}
