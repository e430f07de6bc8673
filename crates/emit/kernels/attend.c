/* Attention over the KV cache.
 *
 * Positions are divided into splits of 512 and blocks of 64. Inside a split the softmax is computed block by block and sums
 * are rescaled when a larger score appears; the splits of a query are merged in order. Rows of a layer with a window are a
 * ring: position p is in row p modulo the rows.
 */
enum { KEY_BLOCK = 64, KV_SPLIT = 512, KEY_DIMS = MAX_KEY_DIM < 64 ? MAX_KEY_DIM : 64 };

/* 2 to the power of x, which is not positive. */
static inline float exp2_lane(float x)
{
    float clamped = x > -125.0f ? x : -125.0f;
    float n = round_small(clamped);
    float r = clamped - n;
    float p = 1.5345812e-4f;
    p = p * r + 1.3399931e-3f;
    p = p * r + 9.618489e-3f;
    p = p * r + 5.5503286e-2f;
    p = p * r + 0.24022646f;
    p = p * r + 0.693147180559945309417232121458176568f;
    p = p * r + 1.0f;
    float power = times_pow2(p, n);
    return x >= -125.0f ? power : 0.0f;
}

/* An FP8 number (e4m3fn): 120 is the difference of the exponents' biases, and subnormal numbers are multiples of 1/512. */
static inline float e4m3_to_float(uint8_t code)
{
    uint32_t rest = code & 0x7fu;
    uint32_t magnitude = rest < 8 ? float_to_bits((float)rest * (1.0f / 512.0f)) : (rest << 20) + (120u << 23);
    return bits_to_float((uint32_t)(code & 0x80u) << 24 | (rest == 0x7fu ? 0x7fc00000u : magnitude));
}

/* Decodes a stored row into floats that are `stride` apart. */
static void load_row(const uint8_t *row, float *to, size_t stride, size_t dim, int type)
{
    switch (type) {
    case KV_F16:
        for (size_t i = 0; i < dim; i++)
            to[i * stride] = load_half(row + 2 * i);
        break;
    case KV_E4M3:
        for (size_t i = 0; i < dim; i++)
            to[i * stride] = e4m3_to_float(row[i]);
        break;
    default:
        for (size_t i = 0; i < dim; i++)
            memcpy(to + i * stride, row + 4 * i, sizeof *to);
    }
}

/* An f32 as FP8 (e4m3fn), rounded to the nearest, ties to even; larger numbers become 448 with their sign. */
static inline uint8_t float_to_e4m3(float value)
{
    uint32_t bits = float_to_bits(value), sign = bits >> 24 & 0x80u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (rest >= 0x43e00000u)
        return (uint8_t)(sign | 0x7eu);
    if (rest < 0x3c800000u) {
        /* A subnormal: its last bit is worth as much as that of 2^14, so the addition rounds. */
        float sum = bits_to_float(rest) + 16384.0f;
        return (uint8_t)(sign | (float_to_bits(sum) - 0x46800000u));
    }
    rest += 0x7ffffu + (rest >> 20 & 1u);
    return (uint8_t)(sign | ((rest >> 20) - (120u << 3)));
}

static void store_row(uint8_t *row, const float *from, size_t dim, int type)
{
    switch (type) {
    case KV_F16:
        for (size_t i = 0; i < dim; i++) {
            uint16_t half = float_to_half(from[i]);
            memcpy(row + 2 * i, &half, sizeof half);
        }
        break;
    case KV_E4M3:
        for (size_t i = 0; i < dim; i++)
            row[i] = float_to_e4m3(from[i]);
        break;
    default:
        memcpy(row, from, dim * sizeof *from);
    }
}

/* Stores the keys and values of a step at their positions. */
static void kv_store(const struct kv_layer *kv, const float *keys, const float *values, size_t tokens, size_t position)
{
    size_t key_bytes = kv->key_dim * (size_t)kv->key_type, value_bytes = kv->value_dim * (size_t)kv->value_type;
    for (size_t head = 0; head < kv->heads; head++)
        for (size_t token = 0; token < tokens; token++) {
            size_t row = head * kv->rows + (position + token) % kv->rows, from = token * kv->heads + head;
            store_row(kv->keys + row * key_bytes, keys + from * kv->key_dim, kv->key_dim, kv->key_type);
            store_row(kv->values + row * value_bytes, values + from * kv->value_dim, kv->value_dim, kv->value_type);
        }
}

/* The largest score and the sum of weights of one query head, by lane until the split ends, and its weighted values. */
struct attend_head {
    float largest, sum;
    float lanes[LANES];
    float weighted[MAX_VALUE_DIM];
};

/* The largest score and the sum of weights of the splits of one query head so far. */
struct attend_sum {
    float largest, sum;
};

/* Turns the scores of a block into weights; columns outside of [from, to) have the weight zero. */
static void attend_softmax(struct attend_head *head, float *scores, size_t from, size_t to, size_t dim)
{
    for (size_t i = 0; i < KEY_BLOCK; i++)
        scores[i] = i >= from && i < to ? scores[i] : -INFINITY;
    float top = scores[0];
    for (size_t i = 1; i < KEY_BLOCK; i++)
        top = top > scores[i] ? top : scores[i];
    if (top > head->largest) {
        if (head->largest > -INFINITY) {
            float factor = exp2_lane(head->largest - top);
            for (size_t d = 0; d < dim; d++)
                head->weighted[d] *= factor;
            for (int lane = 0; lane < LANES; lane++)
                head->lanes[lane] *= factor;
        }
        head->largest = top;
    } else if (head->largest == -INFINITY) {
        memset(scores, 0, KEY_BLOCK * sizeof *scores);
        return;
    }
    for (int vector = 0; vector < KEY_BLOCK; vector += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            float weight = exp2_lane(scores[vector + lane] - head->largest);
            head->lanes[lane] += weight;
            scores[vector + lane] = weight;
        }
}

/* Merges a split into the splits before it, whose values are at `out`. */
static void attend_merge(struct attend_sum *all, const struct attend_head *split, float *out, size_t dim)
{
    if (split->largest == -INFINITY)
        return;
    if (all->largest == -INFINITY) {
        memcpy(out, split->weighted, dim * sizeof *out);
        all->largest = split->largest;
        all->sum = split->sum;
        return;
    }
    float largest = all->largest > split->largest ? all->largest : split->largest;
    float before = exp2_lane(all->largest - largest), factor = exp2_lane(split->largest - largest);
    for (size_t d = 0; d < dim; d++)
        out[d] = out[d] * before + split->weighted[d] * factor;
    all->largest = largest;
    all->sum = all->sum * before + split->sum * factor;
}

/* One block of positions from `base` on, of which [from, to) are seen, for the query heads of one KV head. */
static void attend_block(const struct kv_layer *kv, size_t kv_head, const float *q, size_t heads, struct attend_head *state,
                         size_t base, size_t from, size_t to, float scale, float softcap)
{
    /* Keys by dimension, so that one element of a query is multiplied with sixteen keys at once; KEY_DIMS of them at a time. */
    float keys[KEY_DIMS][KEY_BLOCK], weights[MAX_GROUP][KEY_BLOCK], value[MAX_VALUE_DIM];
    size_t key_bytes = kv->key_dim * (size_t)kv->key_type, value_bytes = kv->value_dim * (size_t)kv->value_type;
    size_t columns = (to + LANES - 1) / LANES * LANES;
    memset(weights, 0, heads * sizeof *weights);
    for (size_t part = 0; part < kv->key_dim; part += KEY_DIMS) {
        size_t dims = kv->key_dim - part < KEY_DIMS ? kv->key_dim - part : KEY_DIMS;
        for (size_t i = 0; i < columns; i++) {
            if (i < from || i >= to) {
                for (size_t d = 0; d < dims; d++)
                    keys[d][i] = 0.0f;
                continue;
            }
            const uint8_t *row = kv->keys + (kv_head * kv->rows + (base + i) % kv->rows) * key_bytes;
            load_row(row + part * (size_t)kv->key_type, &keys[0][i], KEY_BLOCK, dims, kv->key_type);
        }
        for (size_t h = 0; h < heads; h++) {
            const float *query = q + h * kv->key_dim + part;
            for (size_t first = 0; first < columns; first += LANES) {
                float sums[LANES];
                memcpy(sums, weights[h] + first, sizeof sums);
                for (size_t d = 0; d < dims; d++)
                    for (int lane = 0; lane < LANES; lane++)
                        sums[lane] += query[d] * keys[d][first + lane];
                memcpy(weights[h] + first, sums, sizeof sums);
            }
        }
    }
    for (size_t h = 0; h < heads; h++) {
        float *scores = weights[h];
        for (size_t i = 0; i < columns; i++)
            scores[i] = softcap > 0.0f ? softcap * LOG2_E * tanh_lane(scores[i] * (scale / softcap))
                                       : scores[i] * (scale * LOG2_E);
        for (size_t i = columns; i < KEY_BLOCK; i++)
            scores[i] = -INFINITY;
        attend_softmax(state + h, scores, from, to, kv->value_dim);
    }
    for (size_t i = from; i < to; i++) {
        const uint8_t *row = kv->values + (kv_head * kv->rows + (base + i) % kv->rows) * value_bytes;
        load_row(row, value, 1, kv->value_dim, kv->value_type);
        for (size_t h = 0; h < heads; h++)
            for (size_t d = 0; d < kv->value_dim; d++)
                state[h].weighted[d] += weights[h][i] * value[d];
    }
}

struct attend_task {
    const struct kv_layer *kv;
    const float *q;
    float *out;
    size_t heads, position, window;
    float scale, softcap;
};

/* The query heads of one KV head, for one token: piece `token` times the KV heads plus the KV head. */
static void attend_queries(const void *context, size_t begin, size_t end_piece)
{
    const struct attend_task *t = context;
    const struct kv_layer *kv = t->kv;
    size_t group = t->heads / kv->heads, dim = kv->value_dim;
    struct attend_head split[MAX_GROUP] = {{0}};
    struct attend_sum all[MAX_GROUP] = {{0}};
    for (size_t piece = begin; piece < end_piece; piece++) {
        size_t kv_head = piece % kv->heads, token = piece / kv->heads, first_head = token * t->heads + kv_head * group;
        size_t end = t->position + token + 1, start = t->window && end > t->window ? end - t->window : 0;
        float *out = t->out + first_head * dim;
        for (size_t h = 0; h < group; h++) {
            all[h].largest = -INFINITY;
            all[h].sum = 0.0f;
        }
        for (size_t first = start / KV_SPLIT * KV_SPLIT; first < end; first += KV_SPLIT) {
            for (size_t h = 0; h < group; h++) {
                split[h].largest = -INFINITY;
                memset(split[h].lanes, 0, sizeof split[h].lanes);
                memset(split[h].weighted, 0, dim * sizeof *split[h].weighted);
            }
            for (size_t base = first; base < first + KV_SPLIT && base < end; base += KEY_BLOCK) {
                if (base + KEY_BLOCK <= start)
                    continue;
                size_t from = start > base ? start - base : 0, to = end - base < KEY_BLOCK ? end - base : KEY_BLOCK;
                attend_block(kv, kv_head, t->q + first_head * kv->key_dim, group, split, base, from, to, t->scale, t->softcap);
            }
            for (size_t h = 0; h < group; h++) {
                split[h].sum = sum_lanes(split[h].lanes);
                attend_merge(all + h, split + h, out + h * dim, dim);
            }
        }
        for (size_t h = 0; h < group; h++) {
            float inverse = 1.0f / all[h].sum;
            for (size_t d = 0; d < dim; d++)
                out[h * dim + d] = all[h].sum > 0.0f ? out[h * dim + d] * inverse : 0.0f;
        }
    }
}

/* Stores the keys and values of a step, then computes the attention of each of its queries over the positions that it sees:
 * the last `window` up to its own, or all without a window. A softcap of zero is none. */
void k_update_and_attend(struct kv_layer kv, const float *q, const float *k, const float *v, float *out, size_t tokens,
                         size_t heads, size_t position, size_t window, float scale, float softcap)
{
    struct attend_task task = {&kv, q, out, heads, position, window, scale, softcap};
    kv_store(&kv, k, v, tokens, position);
    parallel(attend_queries, &task, tokens * kv.heads);
}
