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
        if (a.sinks && item.slot < 0) {
            // By the threads that have merged the sums.
            int m = threadIdx.x / 16, row = threadIdx.x % 16;
            if (m < MT && row_exists(m, row)) {
                float* sum = &s.norm[threadIdx.x];
                *sum = sum_with_sink(a, first_head + (ONE ? row : m), s.top[threadIdx.x], *sum);
            }
            attend_barrier();
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
