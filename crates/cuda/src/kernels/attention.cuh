struct AttendArgs {
    const float* q;
    float* out;
    const u32* step;
    const KvLayer* layers;
    float* partial;
    u32* counters;
    // With a table, queries are rotated as they are read.
    const float* table;
    // With keys, the step has one token, whose row the kernel stores itself; with a table, its key is rotated.
    const float* keys;
    const float* values;
    const float* key_table;
    int layer, heads, kv_heads, key_dim, value_dim, rotated, interleaved;
    // Query heads that share a KV head, how many lots they are, and the heads of a lot: at most 4 where items may have
    // several queries, else at most 16.
    int group, lots, lot;
    float scale, softcap;
};

__device__ __forceinline__ float exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
    return y;
}

// Factors of a state and of a further part, and the merged maximum and sum.
__device__ __forceinline__ void merge(float* max, float* sum, float part_max, float part_sum, float* old, float* fresh) {
    *old = 1.0f;
    *fresh = 0.0f;
    if (part_max == NEG_INF) return;
    float top = fmaxf(*max, part_max);
    *old = exponential(*max - top);
    *fresh = exponential(part_max - top);
    *sum = fmaf(part_sum, *fresh, *sum * *old);
    *max = top;
}

__device__ u32 cell_at(const Run* runs, int count, u32 position) {
    for (int r = 0; r < count; r++) {
        u32 offset = position - runs[r].position;
        if (offset < runs[r].len) return runs[r].cell + offset;
    }
    return NO_CELL;
}

// Four numbers as f16, and what is left of them.
__device__ __forceinline__ void split_f16(const float x[4], uint2* high, uint2* low) {
    float r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = finite_f16(x[i]);
    *high = make_uint2(pack_f16(r[0], r[1]), pack_f16(r[2], r[3]));
    *low = make_uint2(pack_f16(r[0] - half_to_float(high->x & 0xffff), r[1] - half_to_float(high->x >> 16)),
                      pack_f16(r[2] - half_to_float(high->y & 0xffff), r[3] - half_to_float(high->y >> 16)));
}

// Four elements of an encoded row from `d` on, as f16 numbers and what is left of them. Those past the row's end are zero.
// Functions that few caches need are not inlined: the code of a kernel must stay in the instruction cache.
__device__ __noinline__ uint4 row_quad(int storage, const u8* row, int d, int dim) {
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = row != nullptr && d + i < dim ? decoded(storage, row, d + i, dim) : 0.0f;
    uint2 high, low;
    split_f16(x, &high, &low);
    return make_uint4(high.x, high.y, low.x, low.y);
}

__device__ __noinline__ float soft_capped(float x, float cap) { return cap * tanhf(x / cap); }

// Four elements of a query from `d` on, rotated if there is a table.
__device__ __noinline__ float4 query_quad(const float* from, const float* table, int d, int dim, int rotated, int interleaved) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        x[e] = 0.0f;
        if (d + e < dim) x[e] = table ? rotated_at(from, table, d + e, rotated, interleaved) : from[d + e];
    }
    return make_float4(x[0], x[1], x[2], x[3]);
}

// Transposes eight rows of eight f16 numbers.
__device__ __forceinline__ u32 transposed(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

template <bool VALUE>
struct Bool {
    static constexpr bool value = VALUE;
};

// The threads of an item: a block, or the first warps of one of the persistent kernel.
#define ATTEND_THREADS (WARPS * WARP)

__device__ __forceinline__ void attend_barrier() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Bytes of a row of the step that fit into shared memory.
#define STEP_ROW 512

struct AttendShared {
    // The key and the value of a step with one token.
    alignas(16) u8 step_rows[2][STEP_ROW];
    // Maxima and sums of a part by warp, and those of the item.
    float warp_top[WARPS][64], warp_norm[WARPS][64], top[64], norm[64], old[64], fresh[64];
    // The value rows of a part's positions; null where a position is not seen.
    const u8* rows[PART];
    // Positions of each warp that are seen.
    u32 seen[WARPS];
    int merges;
};

// The cell of this thread's position in an item's first part. Its rows are fetched into the cache.
__device__ __forceinline__ u32 prefetch_rows(const AttendArgs& a, const KvLayer& kv, const ClassPlan& plan, const Item& item,
                                             int kv_head) {
    u32 position = item.begin / PART * PART + threadIdx.x;
    bool covered = position >= (u32)item.begin && position < (u32)item.end;
    const Run* runs = (const Run*)(a.step + plan.runs) + item.first_run;
    u32 cell = covered ? cell_at(runs, item.runs, position) : NO_CELL;
    if (cell != NO_CELL) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(kv, false, cell, kv_head, kv.key_row)));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(kv, true, cell, kv_head, kv.value_row)));
    }
    return cell;
}

// Stores a head's key and value of a step with one token, by the first two warps; `buffer` has room for a key. Returns the cell
// whose rows are in shared memory, too: they are read sooner there than from the memory that was just written.
__device__ __forceinline__ u32 store_step(const AttendArgs& a, const KvLayer& kv, const ClassPlan& plan, const float* key,
                                          const float* value, int kv_head, float* buffer, AttendShared& s) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 cell = a.step[plan.writes];
    bool fits = kv.key_row <= STEP_ROW && kv.value_row <= STEP_ROW;
    if (warp < 2 && cell != NO_CELL) {
        bool values = warp == 1;
        const float* x = values ? value : key;
        const float* table = values ? nullptr : a.key_table;
        int dim = values ? a.value_dim : a.key_dim, storage = values ? kv.value_storage : kv.key_storage;
        u8* to = (u8*)row_of(kv, values, cell, kv_head, values ? kv.value_row : kv.key_row);
        u8* near = fits ? s.step_rows[warp] : nullptr;
        if (storage == KV_F16 && fits) {
            for (int i = lane; i < dim; i += WARP) {
                u16 half = float_to_half(table ? rotated_at(x, table, i, a.rotated, a.interleaved) : x[i]);
                ((u16*)to)[i] = ((u16*)near)[i] = half;
            }
        } else {
            store_row(storage, x, table, a.rotated, a.interleaved, to, near, dim, buffer, lane);
        }
    }
    return fits ? cell : NO_CELL;
}

// Of several parts, the last to arrive merges all of them in order. Returns whether this is the last.
__device__ __forceinline__ bool merge_parts(const AttendArgs& a, const Item& item, AttendShared& s, int kv_head, int lot, int queries,
                                            float* results) {
    int first_head = kv_head * a.group + lot * a.lot, count = min(a.lot, a.group - lot * a.lot);
    int number = item.part >> 16, columns = a.kv_heads * a.lots, each = a.value_dim + 2;
    __threadfence();
    attend_barrier();
    if (threadIdx.x == 0) {
        u32* counter = a.counters + (long long)item.slot * columns + kv_head * a.lots + lot;
        u32 before = atomicAdd(counter, 1);
        s.merges = before == (u32)number - 1;
        if (s.merges) *counter = 0;
    }
    attend_barrier();
    if (!s.merges) return false;
    __threadfence();
    for (int i = threadIdx.x; i < queries * count * a.value_dim; i += ATTEND_THREADS) {
        int at = i % a.value_dim, head = first_head + i / a.value_dim % count, query = i / a.value_dim / count;
        float max = NEG_INF, sum = 0.0f, acc = 0.0f;
        for (int n = 0; n < number; n++) {
            const float* part = a.partial + ((long long)(item.slot + n * queries + query) * a.heads + head) * each;
            float old, fresh;
            merge(&max, &sum, __ldcg(part), __ldcg(part + 1), &old, &fresh);
            acc = fmaf(__ldcg(part + 2 + at), fresh, acc * old);
        }
        results[((long long)(item.query + query) * a.heads + head) * a.value_dim + at] = sum > 0.0f ? acc * __frcp_rn(sum) : 0.0f;
    }
    return true;
}

// An item of one KV head, by ATTEND_THREADS threads: MT tiles of 16 rows. The rows of an item with several queries are the
// queries, with a tile for each head; those of an item with one query are the heads. A row's operations depend neither on the
// other rows nor on MT: scores are one chain of `mma` over the key's elements, values one chain over a part's positions.
// The rows of the cell `stored` are in shared memory. Returns whether `results` has the item's rows: of several parts, the last
// to arrive stores them.
template <int MT>
__device__ __forceinline__ bool attend_item(const AttendArgs& a, const float* queries_from, float* results, const KvLayer& kv,
                                            const ClassPlan& plan, const Item& item, AttendShared& s, uint4* q, uint4* p,
                                            int kv_head, int lot, bool looked, u32 known, u32 stored) {
    constexpr bool ONE = MT == 1;
    // Units of 16 values and tiles that a warp computes.
    constexpr int UP = ONE ? 1 : 2, MP = ONE ? 1 : 2;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int first_head = kv_head * a.group + lot * a.lot, count = min(a.lot, a.group - lot * a.lot);
    const Run* runs = (const Run*)(a.step + plan.runs) + item.first_run;
    int steps = (a.key_dim + 15) / 16, units = (a.value_dim + 15) / 16;
    int queries = ONE ? 1 : item.queries;
    // The query and the head of a row, if there is one.
    auto row_exists = [&](int m, int row) { return ONE ? row < count : m < count && row < queries; };
    auto element = [&](int m, int row) -> long long {
        long long query = item.query + (ONE ? 0 : row);
        return query * a.heads + first_head + (ONE ? row : m);
    };
    // The first two warps may be storing the step's row.
    for (int i = (threadIdx.x + ATTEND_THREADS - 2 * WARP) % ATTEND_THREADS; i < steps * MT * WARP; i += ATTEND_THREADS) {
        int m = i / WARP % MT, d = i / WARP / MT * 16 + 4 * t;
        uint2 high[2], low[2];
#pragma unroll
        for (int side = 0; side < 2; side++) {
            int row = g + 8 * side;
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (row_exists(m, row)) {
                const float* from = queries_from + element(m, row) * a.key_dim;
                const float* table = a.table ? a.table + (long long)(item.query + (ONE ? 0 : row)) * a.rotated : nullptr;
                x = query_quad(from, table, d, a.key_dim, a.rotated, a.interleaved);
            }
            split_f16((float*)&x, &high[side], &low[side]);
        }
        q[i * 2 - lane] = make_uint4(high[0].x, high[1].x, high[0].y, high[1].y);
        q[i * 2 - lane + WARP] = make_uint4(low[0].x, low[1].x, low[0].y, low[1].y);
    }
    // What the rows of this lane see.
    int begins[2], ends[2];
#pragma unroll
    for (int side = 0; side < 2; side++) {
        int query = ONE ? 0 : min(g + 8 * side, queries - 1);
        begins[side] = ((const int*)a.step)[plan.ranges + 2 * (item.query + query)];
        ends[side] = ((const int*)a.step)[plan.ranges + 2 * (item.query + query) + 1];
    }
    bool half_keys = kv.key_storage == KV_F16 && a.key_dim % 4 == 0;
    bool half_values = kv.value_storage == KV_F16 && a.value_dim % 4 == 0;
    // More than eight units of values are further passes.
    for (int unit0 = 0; unit0 < units; unit0 += WARPS) {
        // A warp's first unit and its first tile.
        int unit = unit0 + (ONE ? warp : warp / 2 * 2), d = unit * 16 + 4 * t, first_tile = ONE ? 0 : warp % 2 * 2;
        float total[UP][2][MP][4];
#pragma unroll
        for (int i = 0; i < UP * 2 * MP * 4; i++) (&total[0][0][0][0])[i] = 0.0f;
        if (threadIdx.x < 16 * MT) {
            s.top[threadIdx.x] = NEG_INF;
            s.norm[threadIdx.x] = s.old[threadIdx.x] = s.fresh[threadIdx.x] = 0.0f;
        }
        attend_barrier();
        for (int start = item.begin / PART * PART; start < item.end; start += PART) {
            // Scores: 32 positions for each warp.
            int position = start + threadIdx.x;
            bool covered = position >= item.begin && position < item.end;
            u32 cell = looked ? known : covered ? cell_at(runs, item.runs, position) : NO_CELL;
            looked = false;
            bool exists = cell != NO_CELL;
            const u8 *key_row = nullptr, *value_row = nullptr;
            if (exists) {
                bool near = ONE && cell == stored;
                key_row = near ? s.step_rows[0] : row_of(kv, false, cell, kv_head, kv.key_row);
                value_row = near ? s.step_rows[1] : row_of(kv, true, cell, kv_head, kv.value_row);
            }
            s.rows[threadIdx.x] = value_row;
            u32 mask = __ballot_sync(FULL_MASK, exists);
            if (lane == 0) s.seen[warp] = mask;
            // The values of the first positions, which a lone query waits for, are loaded before its scores are computed.
            constexpr int VALUE_BLOCKS = 4;
            uint2 values[VALUE_BLOCKS][UP][2];
            // Loads the values of the positions from 16 b0 on.
            auto load_values = [&](int b0) {
#pragma unroll
                for (int i = 0; i < VALUE_BLOCKS * 2; i++) {
                    const u8* row = s.rows[b0 * 16 + i * 8 + g];
#pragma unroll
                    for (int u = 0; u < UP; u++) {
                        bool there = row != nullptr && d + u * 16 < a.value_dim;
                        values[i / 2][u][i % 2] = there ? *(const uint2*)(row + 2 * (d + u * 16)) : make_uint2(0, 0);
                    }
                }
            };
            bool weighs = unit < units && (ONE || first_tile < count);
            if (ONE) {
                attend_barrier();
                if (half_values && weighs) load_values(0);
            }
            // The scores of a tile lie where its weights will, each lane's at its own place.
            uint4* own = p + warp * 2 * MT * 2 * WARP + lane;
            constexpr int TILE_STRIDE = 2 * WARP, BLOCK_STRIDE = MT * 2 * WARP;
            if (mask != 0) {
                const u8* rows[4];
#pragma unroll
                for (int n = 0; n < 4; n++) rows[n] = (const u8*)__shfl_sync(FULL_MASK, (u64)key_row, n * 8 + g);
                auto add_scores = [&](auto half) {
                    constexpr bool PLAIN = decltype(half)::value;
                    // Keys of f16 are loaded for several steps at once, and kept for all tiles if these are all steps.
                    constexpr int KEY_STEPS = PLAIN ? (ONE ? 4 : 8) : 1;
                    uint2 keys[KEY_STEPS][4], rest[4];
#pragma unroll 1
                    for (int m = 0; m < (ONE ? 1 : count); m++) {
                        float acc[4][4];
#pragma unroll
                        for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = 0.0f;
#pragma unroll 1
                        for (int s0 = 0; s0 < steps; s0 += KEY_STEPS) {
                            if (m == 0 || steps > KEY_STEPS) {
#pragma unroll
                                for (int i = 0; i < KEY_STEPS * 4; i++) {
                                    int at = (s0 + i / 4) * 16 + 4 * t;
                                    const u8* row = rows[i % 4];
                                    if (PLAIN) {
                                        bool there = row != nullptr && at < a.key_dim;
                                        keys[i / 4][i % 4] = there ? *(const uint2*)(row + 2 * at) : make_uint2(0, 0);
                                    } else {
                                        uint4 quad = row_quad(kv.key_storage, row, at, a.key_dim);
                                        keys[i / 4][i % 4] = make_uint2(quad.x, quad.y);
                                        rest[i % 4] = make_uint2(quad.z, quad.w);
                                    }
                                }
                            }
#pragma unroll
                            for (int i = 0; i < KEY_STEPS; i++) {
                                if (s0 + i >= steps) break;
                                const uint4* from = q + ((s0 + i) * MT + m) * 2 * WARP + lane;
                                uint4 high = from[0], low = from[WARP];
#pragma unroll
                                for (int n = 0; n < 4; n++) mma_f16(acc[n], (u32*)&high, keys[i][n].x, keys[i][n].y);
#pragma unroll
                                for (int n = 0; n < 4; n++) mma_f16(acc[n], (u32*)&low, keys[i][n].x, keys[i][n].y);
#pragma unroll
                                for (int n = 0; n < 4 && !PLAIN; n++) mma_f16(acc[n], (u32*)&high, rest[n].x, rest[n].y);
                            }
                        }
                        float top[2] = {NEG_INF, NEG_INF};
#pragma unroll
                        for (int i = 0; i < 16; i++) acc[i / 4][i % 4] *= a.scale;
                        if (a.softcap > 0.0f) {
#pragma unroll
                            for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = soft_capped(acc[i / 4][i % 4], a.softcap);
                        }
#pragma unroll
                        for (int n = 0; n < 4; n++) {
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                int in = n * 8 + 2 * t + e % 2, at = start + warp * WARP + in, side = e / 2;
                                bool sees = (mask >> in & 1) && at >= begins[side] && at < ends[side];
                                float score = sees ? acc[n][e] : NEG_INF;
                                acc[n][e] = score;
                                top[side] = fmaxf(top[side], score);
                            }
                            own[n / 2 * BLOCK_STRIDE + m * TILE_STRIDE + n % 2 * WARP] = *(uint4*)acc[n];
                        }
#pragma unroll
                        for (int side = 0; side < 2; side++) {
                            top[side] = fmaxf(top[side], __shfl_xor_sync(FULL_MASK, top[side], 1));
                            top[side] = fmaxf(top[side], __shfl_xor_sync(FULL_MASK, top[side], 2));
                            if (t == 0) s.warp_top[warp][m * 16 + side * 8 + g] = top[side];
                        }
                    }
                };
                if (half_keys) {
                    add_scores(Bool<true>());
                } else {
                    add_scores(Bool<false>());
                }
            } else {
                for (int i = lane; i < 16 * MT; i += WARP) s.warp_top[warp][i] = NEG_INF, s.warp_norm[warp][i] = 0.0f;
            }
            attend_barrier();
            // Weights of the positions, as fragments for the product with the values.
            if (mask != 0) {
#pragma unroll 1
                for (int m = 0; m < (ONE ? 1 : count); m++) {
                    uint4 scores[4];
#pragma unroll
                    for (int n = 0; n < 4; n++) scores[n] = own[n / 2 * BLOCK_STRIDE + m * TILE_STRIDE + n % 2 * WARP];
                    float* score = (float*)scores;
#pragma unroll
                    for (int side = 0; side < 2; side++) {
                        int row = m * 16 + side * 8 + g;
                        float top = s.warp_top[0][row], sum = 0.0f;
#pragma unroll
                        for (int w = 1; w < WARPS; w++) top = fmaxf(top, s.warp_top[w][row]);
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            int at = i / 2 * 4 + side * 2 + i % 2;
                            score[at] = top == NEG_INF ? 0.0f : exponential(score[at] - top);
                            sum += score[at];
                        }
                        sum += __shfl_xor_sync(FULL_MASK, sum, 1);
                        sum += __shfl_xor_sync(FULL_MASK, sum, 2);
                        if (t == 0) s.warp_norm[warp][row] = sum;
                    }
#pragma unroll
                    for (int b = 0; b < 2; b++) {
                        uint2 high[2], low[2];
                        split_f16(score + b * 8, &high[0], &low[0]);
                        split_f16(score + b * 8 + 4, &high[1], &low[1]);
                        uint4* to = own + b * BLOCK_STRIDE + m * TILE_STRIDE;
                        to[0] = make_uint4(high[0].x, high[0].y, high[1].x, high[1].y);
                        to[WARP] = make_uint4(low[0].x, low[0].y, low[1].x, low[1].y);
                    }
                }
            }
            attend_barrier();
            if (threadIdx.x < 16 * (ONE ? 1 : count)) {
                int row = threadIdx.x;
                float top = NEG_INF, sum = 0.0f;
                for (int w = 0; w < WARPS; w++) {
                    top = fmaxf(top, s.warp_top[w][row]);
                    sum += s.warp_norm[w][row];
                }
                merge(&s.top[row], &s.norm[row], top, sum, &s.old[row], &s.fresh[row]);
            }
            // Values: 16 elements for each warp.
            float part[UP][2][MP][4];
#pragma unroll
            for (int i = 0; i < UP * 2 * MP * 4; i++) (&part[0][0][0][0])[i] = 0.0f;
            // Adds the products of the weights of 16 positions with their values: parts[0], and what is left of them.
            auto add_values = [&](int b, const uint2 (*of)[2], const uint2 (*rest)[2]) {
                uint4 high[MP], low[MP];
#pragma unroll
                for (int m = 0; m < MP; m++) {
                    const uint4* from = p + (b * MT + first_tile + m) * 2 * WARP + lane;
                    high[m] = from[0], low[m] = from[WARP];
                }
#pragma unroll
                for (int u = 0; u < UP; u++) {
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        const uint2* v = of[u];
                        u32 v0 = transposed(n ? v[0].y : v[0].x), v1 = transposed(n ? v[1].y : v[1].x);
#pragma unroll
                        for (int m = 0; m < MP; m++) mma_f16(part[u][n][m], (u32*)&high[m], v0, v1);
#pragma unroll
                        for (int m = 0; m < MP; m++) mma_f16(part[u][n][m], (u32*)&low[m], v0, v1);
                        if (rest != nullptr) {
                            const uint2* r = rest[u];
                            u32 r0 = transposed(n ? r[0].y : r[0].x), r1 = transposed(n ? r[1].y : r[1].x);
#pragma unroll
                            for (int m = 0; m < MP; m++) mma_f16(part[u][n][m], (u32*)&high[m], r0, r1);
                        }
                    }
                }
            };
            // Weights of positions that are not seen are zero: they add nothing.
            auto seen_block = [&](int b) { return (s.seen[b / 2] >> b % 2 * 16 & 0xffff) != 0; };
            if (weighs && half_values) {
                if (!ONE) load_values(0);
#pragma unroll 1
                for (int b0 = 0; b0 < PART / 16; b0 += VALUE_BLOCKS) {
#pragma unroll
                    for (int i = 0; i < VALUE_BLOCKS; i++) {
                        if (seen_block(b0 + i)) add_values(b0 + i, values[i], nullptr);
                    }
                    int next = b0 + VALUE_BLOCKS;
                    if (next < PART / 16 && (s.seen[next / 2] | s.seen[next / 2 + 1]) != 0) load_values(next);
                }
            } else if (weighs) {
#pragma unroll 1
                for (int b = 0; b < PART / 16; b++) {
                    if (!seen_block(b)) continue;
                    uint2 of[UP][2], rest[UP][2];
#pragma unroll
                    for (int i = 0; i < 2 * UP; i++) {
                        uint4 quad = row_quad(kv.value_storage, s.rows[b * 16 + i % 2 * 8 + g], d + i / 2 * 16, a.value_dim);
                        of[i / 2][i % 2] = make_uint2(quad.x, quad.y);
                        rest[i / 2][i % 2] = make_uint2(quad.z, quad.w);
                    }
                    add_values(b, of, rest);
                }
            }
            attend_barrier();
#pragma unroll
            for (int i = 0; i < UP * 2 * MP * 4; i++) {
                int row = (first_tile + i / 4 % MP) * 16 + i / 2 % 2 * 8 + g;
                float* to = &(&total[0][0][0][0])[i];
                *to = fmaf((&part[0][0][0][0])[i], s.fresh[row], *to * s.old[row]);
            }
        }
        // The state of a part, or the result.
        int each = a.value_dim + 2;
#pragma unroll
        for (int i = 0; i < MP * 2; i++) {
            int m = first_tile + i / 2, side = i % 2, row = side * 8 + g;
            if (!row_exists(m, row) || unit >= units) continue;
            float norm = s.norm[m * 16 + row], inverse = norm > 0.0f ? __frcp_rn(norm) : 0.0f;
            int slot = item.slot + (item.part & 0xffff) * queries + (ONE ? 0 : row);
            float* parts = a.partial + ((long long)slot * a.heads + first_head + (ONE ? row : m)) * each;
            float* out = results + element(m, row) * a.value_dim;
            if (item.slot >= 0 && unit == 0 && t == 0) parts[0] = s.top[m * 16 + row], parts[1] = norm;
#pragma unroll
            for (int e = 0; e < UP * 4; e++) {
                int at = d + e / 4 * 16 + e % 4;
                if (at >= a.value_dim) continue;
                float x = total[e / 4][e % 4 / 2][i / 2][side * 2 + e % 2];
                if (item.slot >= 0) {
                    parts[2 + at] = x;
                } else {
                    out[at] = x * inverse;
                }
            }
        }
        attend_barrier();
    }
    return item.slot < 0 || merge_parts(a, item, s, kv_head, lot, queries, results);
}
