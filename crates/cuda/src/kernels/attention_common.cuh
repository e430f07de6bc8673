// What the kernels of attention share: arguments, elements of rows, shared memory, and the merging of parts.

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
    // With sinks, a head attends to one more row, whose score is the head's sink and whose value is zero.
    const float* sinks;
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

// The sum of a row's weights with that of the head's sink. A row that saw nothing has none.
__device__ __forceinline__ float sum_with_sink(const AttendArgs& a, int head, float max, float sum) {
    return a.sinks && sum > 0.0f ? sum + exponential(a.sinks[head] - max) : sum;
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
        sum = sum_with_sink(a, head, max, sum);
        results[((long long)(item.query + query) * a.heads + head) * a.value_dim + at] = sum > 0.0f ? acc * __frcp_rn(sum) : 0.0f;
    }
    return true;
}
