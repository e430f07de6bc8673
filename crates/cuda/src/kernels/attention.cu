// Attention over cached rows, a block for each item of the plan.

// 256 threads for each item, KV head and lot of query heads; the grid is fixed, the number of items is the plan's.
// Shared memory: fragments of queries, for every 16 elements, and of weights, for every 16 positions of a part, 1,024 bytes for
// each tile of rows.
template <int MT>
__device__ __forceinline__ void attend_all(const AttendArgs& a) {
    let_next_start();
    extern __shared__ __align__(16) uint4 fragments[];
    __shared__ AttendShared s;
    const KvLayer kv = a.layers[a.layer];
    const ClassPlan plan = *(const ClassPlan*)(a.step + kv.plan);
    const Item* items = (const Item*)(a.step + plan.items);
    int columns = a.kv_heads * a.lots;
    uint4* weights = fragments + (a.key_dim + 15) / 16 * MT * 2 * WARP;
    int works = (int)plan.item_count * columns;
    // The plan is older than the step's first kernel: only what other kernels compute is waited for.
    bool waited = false;
    for (int work = blockIdx.x; work < works; work += gridDim.x) {
        const Item item = items[work / columns];
        if ((item.queries > 1) != (MT > 1)) continue;
        int kv_head = work % columns / a.lots, lot = work % a.lots;
        u32 known = NO_CELL;
        bool looked = !waited;
        if (!waited) {
            // Rows of earlier steps are fetched while the queries are computed.
            known = prefetch_rows(a, kv, plan, item, kv_head);
            wait_for_previous();
        }
        waited = true;
        // The weights' memory is free until there are scores.
        u32 stored = NO_CELL;
        if (MT == 1 && a.keys) {
            stored = store_step(a, kv, plan, a.keys + (long long)kv_head * a.key_dim, a.values + (long long)kv_head * a.value_dim,
                                kv_head, (float*)weights, s);
        }
        attend_item<MT>(a, a.q, a.out, kv, plan, item, s, fragments, weights, kv_head, lot, looked, known, stored);
        __syncthreads();
    }
    if (!waited) wait_for_previous();
}

// Items with one query.
extern "C" __global__ void __launch_bounds__(256, 2) attend_few(const __grid_constant__ AttendArgs a) { attend_all<1>(a); }

// Items with several queries.
extern "C" __global__ void __launch_bounds__(256, 1) attend_many(const __grid_constant__ AttendArgs a) { attend_all<4>(a); }

