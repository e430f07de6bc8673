// KV rows and attention over them.
//
// What a step writes and sees comes from its plan, which the host encodes into one buffer; the addresses of the cache's
// pools are there too. So a captured graph replays with any plan, any cache and pools that have grown.

// Numbered as `storage_code` in Rust numbers them.
#define KV_F32 0
#define KV_F16 1
#define KV_BF16 2
#define KV_Q8_32 3
#define KV_Q8_64 4
#define KV_Q4_32 5
#define KV_Q4_64 6

#define NO_CELL 0xffffffffu
// Positions of a part. A query's parts begin at multiples of it and are merged in order.
#define PART 256
#define HEADS 8
#define SLICE 64

struct KvLayer {
    u64 keys, values, frozen_keys, frozen_values;
    // Rows of a head in the cache's own pools and in those of a shared prefix.
    u32 rows, frozen_rows;
    // Cells below this number are those of the prefix.
    u32 frozen_cells;
    // The offset of the layer's class plan in the step's buffer.
    u32 plan;
    u32 key_storage, value_storage, key_row, value_row;
};

// What the plan of a class of layers is in the step's buffer, as offsets in 32-bit words.
struct ClassPlan {
    u32 writes, items, item_count, runs;
};

struct Item {
    int query;
    // The query's run list, and the positions that the item covers.
    int first_run, runs, begin, end;
    // The first slot of partial results, or -1 where one item covers all parts; this item's part and their number.
    int slot, part, parts;
};

struct Run {
    u32 position, cell, len;
};


__device__ __forceinline__ const u8* row_of(const KvLayer& kv, bool values, u32 cell, int head, int row_bytes) {
    bool frozen = cell < kv.frozen_cells;
    const u8* base = (const u8*)(values ? (frozen ? kv.frozen_values : kv.values) : (frozen ? kv.frozen_keys : kv.keys));
    u64 row = frozen ? (u64)head * kv.frozen_rows + cell : (u64)head * kv.rows + (cell - kv.frozen_cells);
    return base + row * row_bytes;
}

// One element of an encoded row.
__device__ float decoded(int storage, const u8* row, int i, int dim) {
    switch (storage) {
        case KV_F32: return ((const float*)row)[i];
        case KV_F16: return half_to_float(((const u16*)row)[i]);
        case KV_BF16: return bf16_to_float(((const u16*)row)[i]);
        default: {
            int group = storage == KV_Q8_32 || storage == KV_Q4_32 ? 32 : 64;
            const u16* params = (const u16*)row + i / group * 2;
            const u8* codes = row + (dim + group - 1) / group * 4;
            int code = storage <= KV_Q8_64 ? codes[i] : codes[i / 32 * 16 + i % 16] >> (i % 32 < 16 ? 0 : 4) & 15;
            return half_to_float(params[0]) * (float)code + half_to_float(params[1]);
        }
    }
}

struct WriteArgs {
    const float* keys;
    const float* values;
    const u32* step;
    const KvLayer* layers;
    // With a table, keys are rotated as they are stored.
    const float* table;
    int layer, tokens, kv_heads, key_dim, value_dim, rotated, interleaved;
};

// Encodes a row, by one warp.
__device__ void encode_row(int storage, const float* x, u8* to, int dim, int lane) {
    if (storage <= KV_BF16) {
        for (int i = lane; i < dim; i += WARP) {
            if (storage == KV_F32) ((float*)to)[i] = x[i];
            if (storage == KV_F16) ((u16*)to)[i] = float_to_half(x[i]);
            if (storage == KV_BF16) ((u16*)to)[i] = float_to_bf16(x[i]);
        }
        return;
    }
    int group = storage == KV_Q8_32 || storage == KV_Q4_32 ? 32 : 64;
    bool bytes = storage <= KV_Q8_64;
    int groups = (dim + group - 1) / group;
    float most = bytes ? 255.0f : 15.0f;
    u8* codes = to + groups * 4;
    // All codes of a group are in the lanes: element `start + lane` and, in groups of 64, the one 32 further on.
    for (int start = 0; start < groups * group; start += group) {
        int a = start + lane, b = group == 64 ? start + 32 + lane : dim;
        float low = INFINITY_F, high = NEG_INF;
        if (a < dim) low = high = x[a];
        if (b < dim) low = fminf(low, x[b]), high = fmaxf(high, x[b]);
        high = warp_max(high);
        low = -warp_max(-low);
        u16 offset_bits = float_to_half(low);
        float offset = half_to_float(offset_bits);
        u16 scale_bits = float_to_half((high - offset) / most);
        float scale = half_to_float(scale_bits);
        if (lane == 0) {
            ((u16*)to)[start / group * 2] = scale_bits;
            ((u16*)to)[start / group * 2 + 1] = offset_bits;
        }
        for (int at = a; at < start + group; at += 32) {
            float quotient = at < dim ? roundf((x[at] - offset) / scale) : 0.0f;
            // A group of equal elements has scale zero, and its quotients are not numbers.
            int code = quotient > 0.0f ? (int)fminf(quotient, most) : 0;
            if (bytes) {
                if (at < (dim + 15) / 16 * 16) codes[at] = code;
            } else {
                int other = __shfl_down_sync(FULL_MASK, code, 16);
                if (lane < 16 && at < (dim + 31) / 32 * 32) codes[at / 32 * 16 + lane] = code | other << 4;
            }
        }
    }
}

// Stores one row of a step, by one warp; `buffer` has room for a key.
__device__ void store_row(const KvLayer& kv, const float* x, const float* table, int rotated, int interleaved, bool values,
                          u32 cell, int head, int dim, float* buffer, int lane) {
    u8* to = (u8*)row_of(kv, values, cell, head, values ? kv.value_row : kv.key_row);
    if (table) {
        for (int i = lane; i < dim; i += WARP) buffer[i] = rotated_at(x, table, i, rotated, interleaved);
        __syncwarp();
        x = buffer;
    }
    encode_row(values ? kv.value_storage : kv.key_storage, x, to, dim, lane);
}

// Stores the keys and values of a step, a warp for each row of a head.
extern "C" __global__ void write_kv(const __grid_constant__ WriteArgs a) {
    begin();
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (warp >= 2 * a.tokens * a.kv_heads) return;
    bool values = warp % 2;
    int token = warp / 2 / a.kv_heads, head = warp / 2 % a.kv_heads;
    const KvLayer& kv = a.layers[a.layer];
    const ClassPlan* plan = (const ClassPlan*)(a.step + kv.plan);
    u32 cell = a.step[plan->writes + token];
    if (cell == NO_CELL) return;
    int dim = values ? a.value_dim : a.key_dim;
    const float* x = (values ? a.values : a.keys) + ((long long)token * a.kv_heads + head) * dim;
    extern __shared__ __align__(16) float shared[];
    const float* table = a.table && !values ? a.table + (long long)token * a.rotated : nullptr;
    float* buffer = shared + threadIdx.x / WARP * a.key_dim;
    store_row(kv, x, table, a.rotated, a.interleaved, values, cell, head, dim, buffer, lane);
}

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
    // Query heads that share a KV head, how many lots they are, and the heads of a lot, at most HEADS.
    int group, lots, lot;
    float scale, softcap;
};

// Merges the state of a further part: maximum, sum, and one element of the weighted values.
__device__ __forceinline__ void merge(float* max, float* sum, float* acc, float part_max, float part_sum, float part_acc) {
    if (part_max == NEG_INF) return;
    float top = fmaxf(*max, part_max);
    float old = expf(*max - top), fresh = expf(part_max - top);
    *sum = fmaf(part_sum, fresh, *sum * old);
    *acc = fmaf(part_acc, fresh, *acc * old);
    *max = top;
}

__device__ u32 cell_at(const Run* runs, int count, u32 position) {
    for (int r = 0; r < count; r++) {
        u32 offset = position - runs[r].position;
        if (offset < runs[r].len) return runs[r].cell + offset;
    }
    return NO_CELL;
}

// Products of the lot's queries with one key, each a sum over the elements in order.
__device__ __forceinline__ void scores_of(const AttendArgs& a, int storage, const u8* row, const float* q, int count, float dots[HEADS]) {
#pragma unroll
    for (int h = 0; h < HEADS; h++) dots[h] = 0.0f;
    int d = 0;
    if (storage == KV_F16 && a.key_dim % 8 == 0) {
        for (; d < a.key_dim; d += 64) {
            uint4 words[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (d + 8 * i < a.key_dim) words[i] = *(const uint4*)(row + 2 * (d + 8 * i));
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (d + 8 * i >= a.key_dim) break;
                u32 w[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
                float k[8];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    k[2 * e] = half_to_float(w[e] & 0xffff);
                    k[2 * e + 1] = half_to_float(w[e] >> 16);
                }
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    if (h >= count) break;
                    const float4* qs = (const float4*)(q + h * a.key_dim + d + 8 * i);
                    float4 x = qs[0], y = qs[1];
                    float s = dots[h];
                    s = fmaf(x.x, k[0], s), s = fmaf(x.y, k[1], s), s = fmaf(x.z, k[2], s), s = fmaf(x.w, k[3], s);
                    s = fmaf(y.x, k[4], s), s = fmaf(y.y, k[5], s), s = fmaf(y.z, k[6], s), s = fmaf(y.w, k[7], s);
                    dots[h] = s;
                }
            }
        }
        return;
    }
    for (; d < a.key_dim; d++) {
        float k = decoded(storage, row, d, a.key_dim);
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (h < count) dots[h] = fmaf(q[h * a.key_dim + d], k, dots[h]);
        }
    }
}

// 256 threads for each item, KV head and lot of query heads; the grid is fixed, the number of items is the plan's.
extern "C" __global__ void __launch_bounds__(256, 1) attend(const __grid_constant__ AttendArgs a) {
    let_next_start();
    extern __shared__ __align__(16) float shared[];
    __shared__ float top[HEADS], norm[HEADS], part_top[HEADS], part_norm[HEADS];
    // The value rows of a part's positions; null where a position is not seen.
    __shared__ const u8* value_rows[PART];
    __shared__ bool merges;
    float* q = shared;                           // [HEADS][key_dim]
    float* weights = q + HEADS * a.key_dim;      // [HEADS][PART]
    float* slices = weights + HEADS * PART;      // [8][HEADS][SLICE]
    float* result = slices + 8 * HEADS * SLICE;  // [HEADS][value_dim]
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const KvLayer kv = a.layers[a.layer];
    const ClassPlan plan = *(const ClassPlan*)(a.step + kv.plan);
    const Item* items = (const Item*)(a.step + plan.items);
    const Run* all_runs = (const Run*)(a.step + plan.runs);
    int columns = a.kv_heads * a.lots;
    // The plan is older than the step's first kernel: only what other kernels compute is waited for.
    bool waited = false;
    for (int work = blockIdx.x; work < (int)plan.item_count * columns; work += gridDim.x) {
        const Item item = items[work / columns];
        int kv_head = work % columns / a.lots, lot = work % a.lots;
        int first_head = kv_head * a.group + lot * a.lot;
        int count = min(a.lot, a.group - lot * a.lot);
        const Run* runs = all_runs + item.first_run;
        const float* queries = a.q + ((long long)item.query * a.heads + first_head) * a.key_dim;
        float* out = a.out + ((long long)item.query * a.heads + first_head) * a.value_dim;
        const float* table = a.table + (long long)item.query * a.rotated;
        u32 known = NO_CELL;
        bool looked = !waited;
        if (!waited) {
            // Rows of earlier steps are fetched while the queries are computed.
            u32 position = item.begin / PART * PART + threadIdx.x;
            bool seen = position >= (u32)item.begin && position < (u32)item.end;
            u32 cell = known = seen ? cell_at(runs, item.runs, position) : NO_CELL;
            if (cell != NO_CELL) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(kv, false, cell, kv_head, kv.key_row)));
                asm volatile("prefetch.global.L2 [%0];" ::"l"(row_of(kv, true, cell, kv_head, kv.value_row)));
            }
            wait_for_previous();
        }
        waited = true;
        if (a.keys && warp < 2) {
            u32 cell = a.step[plan.writes];
            bool values = warp == 1;
            int dim = values ? a.value_dim : a.key_dim;
            const float* x = (values ? a.values : a.keys) + (long long)kv_head * dim;
            // The weights' memory is free until there are scores.
            if (cell != NO_CELL) {
                store_row(kv, x, values ? nullptr : a.key_table, a.rotated, a.interleaved, values, cell, kv_head, dim,
                          weights, lane);
            }
        }
        for (int i = threadIdx.x; i < count * a.key_dim; i += blockDim.x) {
            int d = i % a.key_dim;
            q[i] = a.table ? rotated_at(queries + i - d, table, d, a.rotated, a.interleaved) : queries[i];
        }
        for (int i = threadIdx.x; i < count * a.value_dim; i += blockDim.x) result[i] = 0.0f;
        if (threadIdx.x < HEADS) top[threadIdx.x] = NEG_INF, norm[threadIdx.x] = 0.0f;
        __syncthreads();
        for (int start = item.begin / PART * PART; start < item.end; start += PART) {
            // Scores: a position for each thread.
            int position = start + threadIdx.x;
            bool seen = position >= item.begin && position < item.end;
            u32 cell = looked ? known : seen ? cell_at(runs, item.runs, position) : NO_CELL;
            looked = false;
            value_rows[threadIdx.x] = cell == NO_CELL ? nullptr : row_of(kv, true, cell, kv_head, kv.value_row);
            float dots[HEADS];
            if (cell != NO_CELL) scores_of(a, kv.key_storage, row_of(kv, false, cell, kv_head, kv.key_row), q, count, dots);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                if (h >= count) break;
                float score = NEG_INF;
                if (cell != NO_CELL) {
                    score = dots[h] * a.scale;
                    if (a.softcap > 0.0f) score = a.softcap * tanhf(score / a.softcap);
                }
                weights[h * PART + threadIdx.x] = score;
            }
            __syncthreads();
            // Maximum and sum of a head, by one warp.
            if (warp < count) {
                float* w = weights + warp * PART;
                float values[PART / WARP], max = NEG_INF, sum = 0.0f;
#pragma unroll
                for (int i = 0; i < PART / WARP; i++) {
                    values[i] = w[i * WARP + lane];
                    max = fmaxf(max, values[i]);
                }
                max = warp_max(max);
#pragma unroll
                for (int i = 0; i < PART / WARP; i++) {
                    float e = max == NEG_INF ? 0.0f : expf(values[i] - max);
                    w[i * WARP + lane] = e;
                    sum += e;
                }
                sum = warp_sum(sum);
                if (lane == 0) part_top[warp] = max, part_norm[warp] = sum;
            }
            __syncthreads();
            // Values: each warp weighs 32 positions, two elements for each lane; then the warps' sums in order.
            for (int d0 = 0; d0 < a.value_dim; d0 += SLICE) {
                float acc[HEADS][2];
#pragma unroll
                for (int h = 0; h < HEADS; h++) acc[h][0] = acc[h][1] = 0.0f;
                int d = d0 + 2 * lane;
                bool pairs = kv.value_storage == KV_F16 && a.value_dim % 2 == 0;
                // Positions of this warp that are seen; of the others, weights are zero.
                const u8** rows = value_rows + warp * WARP;
                u32 mask = __ballot_sync(FULL_MASK, rows[lane] != nullptr);
                for (int i0 = 0; mask >> i0 != 0 && i0 < WARP; i0 += 16) {
                    if (!pairs) {
                        for (int i = i0; i < i0 + 16; i++) {
                            const u8* row = rows[i];
                            if (row == nullptr) continue;
                            float x = d < a.value_dim ? decoded(kv.value_storage, row, d, a.value_dim) : 0.0f;
                            float y = d + 1 < a.value_dim ? decoded(kv.value_storage, row, d + 1, a.value_dim) : 0.0f;
#pragma unroll
                            for (int h = 0; h < HEADS; h++) {
                                if (h >= count) break;
                                float w = weights[h * PART + warp * WARP + i];
                                acc[h][0] = fmaf(w, x, acc[h][0]);
                                acc[h][1] = fmaf(w, y, acc[h][1]);
                            }
                        }
                        continue;
                    }
                    u32 words[16];
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        const u8* row = rows[i0 + i];
                        words[i] = row != nullptr && d < a.value_dim ? *(const u32*)(row + 2 * d) : 0;
                    }
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        if (!(mask >> (i0 + i) & 1)) continue;
                        float x = half_to_float(words[i] & 0xffff), y = half_to_float(words[i] >> 16);
#pragma unroll
                        for (int h = 0; h < HEADS; h++) {
                            if (h >= count) break;
                            float w = weights[h * PART + warp * WARP + i0 + i];
                            acc[h][0] = fmaf(w, x, acc[h][0]);
                            acc[h][1] = fmaf(w, y, acc[h][1]);
                        }
                    }
                }
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    if (h >= count) break;
                    ((float2*)(slices + (warp * HEADS + h) * SLICE))[lane] = make_float2(acc[h][0], acc[h][1]);
                }
                __syncthreads();
                for (int i = threadIdx.x; i < count * SLICE; i += blockDim.x) {
                    int h = i / SLICE, e = d0 + i % SLICE;
                    if (e >= a.value_dim) continue;
                    float sum = 0.0f;
                    for (int w = 0; w < 8; w++) sum += slices[(w * HEADS + h) * SLICE + i % SLICE];
                    float max = top[h], total = norm[h];
                    merge(&max, &total, &result[h * a.value_dim + e], part_top[h], part_norm[h], sum);
                }
                __syncthreads();
            }
            if (threadIdx.x < count) {
                float unused = 0.0f;
                merge(&top[threadIdx.x], &norm[threadIdx.x], &unused, part_top[threadIdx.x], part_norm[threadIdx.x], 0.0f);
            }
            __syncthreads();
        }
        if (item.slot >= 0) {
            // One of several parts: store it; the last one to arrive merges all of them in order.
            int each = a.value_dim + 2;
            float* slot = a.partial + ((long long)(item.slot + item.part) * a.heads + first_head) * each;
            for (int i = threadIdx.x; i < count * a.value_dim; i += blockDim.x) {
                slot[i / a.value_dim * each + 2 + i % a.value_dim] = result[i];
            }
            if (threadIdx.x < count) {
                slot[threadIdx.x * each] = top[threadIdx.x];
                slot[threadIdx.x * each + 1] = norm[threadIdx.x];
            }
            __threadfence();
            __syncthreads();
            if (threadIdx.x == 0) {
                u32* counter = a.counters + (long long)item.slot * columns + work % columns;
                u32 before = atomicAdd(counter, 1);
                merges = before == (u32)item.parts - 1;
                if (merges) *counter = 0;
            }
            __syncthreads();
            if (!merges) continue;
            __threadfence();
            const float* parts = a.partial + ((long long)item.slot * a.heads + first_head) * each;
            for (int i = threadIdx.x; i < count * a.value_dim; i += blockDim.x) {
                int h = i / a.value_dim, d = i % a.value_dim;
                float max = NEG_INF, sum = 0.0f, acc = 0.0f;
                for (int p = 0; p < item.parts; p++) {
                    const float* part = parts + ((long long)p * a.heads + h) * each;
                    merge(&max, &sum, &acc, __ldcg(part), __ldcg(part + 1), __ldcg(part + 2 + d));
                }
                out[i] = sum > 0.0f ? acc / sum : 0.0f;
            }
        } else {
            for (int i = threadIdx.x; i < count * a.value_dim; i += blockDim.x) {
                float sum = norm[i / a.value_dim];
                out[i] = sum > 0.0f ? result[i] / sum : 0.0f;
            }
        }
        __syncthreads();
    }
    if (!waited) wait_for_previous();
}

struct CopyArgs {
    u8* to;
    const u8* from;
    const u32* rows;
    u64 to_stride, from_stride;
    u32 count, row_bytes, base, ring, in_place;
};

// Copies rows: row i of the result is row `rows[i]`. A block for each head; in place, one row after the other.
extern "C" __global__ void copy_rows(const __grid_constant__ CopyArgs a) {
    begin();
    u8* to = a.to + blockIdx.x * a.to_stride;
    const u8* from = a.from + blockIdx.x * a.from_stride;
    if (!a.in_place) {
        for (u64 i = threadIdx.x; i < (u64)a.count * a.row_bytes; i += blockDim.x) {
            to[i] = from[(u64)a.rows[i / a.row_bytes] * a.row_bytes + i % a.row_bytes];
        }
        return;
    }
    for (u32 i = 0; i < a.count; i++) {
        u64 source = a.rows[i] % a.ring, target = (a.base + i) % a.ring;
        if (source != target) {
            for (u32 b = threadIdx.x; b < a.row_bytes; b += blockDim.x) {
                to[target * a.row_bytes + b] = to[source * a.row_bytes + b];
            }
        }
        __syncthreads();
    }
}
