// Steps of one token: the products and the attention of all layers in one kernel, whose blocks stay resident.
//
// A kernel boundary costs more than the work of a small model's product. Here the blocks run a list of ops, and a row
// that one op computes for the next travels in flagged words, as in NCCL's LL protocol: an element and the launch's
// number in 8 bytes, written by a single store. A reader polls the words that it needs; there is no grid-wide barrier.
// Every element of a launch has its own word, and the launch's number tells it from the word of an earlier launch.
//
// Elements are summed in the order of `linear_few` and `attend_few`, with the same device functions. The ops of a small
// model are latency-bound: what does not depend on x is computed before x arrives, or on the host.
#if __CUDA_ARCH__ >= 900

// What a warp does in a product. Bits 0 to 11: its first pair of weight blocks; 12 to 23: the number of pairs; 24 to
// 27: which of the thread block's tiles; 28: gate or up of a gated product; 29: whether it multiplies. The epilogue of
// tile i is computed by the i-th warp from the end, which does not multiply in the products of small models.
struct WarpPart {
    u32 bits;

    __device__ __forceinline__ int first() const { return bits & 0xfff; }
    __device__ __forceinline__ int last() const { return first() + (bits >> 12 & 0xfff); }
    __device__ __forceinline__ int group() const { return bits >> 24 & 15; }
    __device__ __forceinline__ int side() const { return bits >> 28 & 1; }
    __device__ __forceinline__ bool multiplies() const { return bits >> 29 & 1; }
};

constexpr int BLOCK_THREADS = 512, BLOCK_WARPS = BLOCK_THREADS / WARP;

// Attention, with its layer and its plan, which each block copies here.
struct PersistentAttend {
    AttendArgs args;
    KvLayer kv;
    ClassPlan plan;
    // Ops are copied in units of 16 bytes.
    u64 unused;
};

struct PersistentOp {
    union {
        LinearArgs linear;
        PersistentAttend attend;
    };
    // Flagged words of x and of the residual, or of queries, keys and values. Without them a product's operand is plain memory,
    // which an earlier kernel wrote.
    const u64* inputs[3];
    // Flagged words of each segment, or of the attention's result. Results that later kernels read have plain memory, too.
    u64* outputs[3];
    int attends;
    // Tiles that a block multiplies at once.
    int groups;
    // Computed by each block: the next product in which it has tiles, and whether this op's weights are prefetched.
    int next, prefetched;
    WarpPart parts[BLOCK_WARPS];
};

struct PersistentArgs {
    const PersistentOp* ops;
    // The number of the last launch, and the number of blocks that have finished this one.
    u32* state;
    int count;
    // Offset of attention's shared memory, which follows that of products.
    int attend_offset;
    // Rope tables of queries and keys that are copied to shared memory, or null, and their elements.
    const float* tables[2];
    int rotated;
    // The most tiles of a product: blocks with this index or a higher one have none.
    int most_tiles;
};

// The longest rope table that is copied.
constexpr int MAX_ROTATED = 256;

// Waits for up to N of n quads, STRIDE apart. Polls the last one first, which usually arrives last, then reads all of
// them.
template <int N, int STRIDE>
__device__ __forceinline__ void receive_quads(const u64* from, u32 flag, int first, int n, float4 quads[N]) {
    int last = first < n ? (n - 1 - first) / STRIDE : -1;
    if (N > 1 && last > 0) {
        float4 quad;
        while (!receive(from + 4 * (first + last * STRIDE), flag, &quad)) {}
    }
    bool complete;
    do {
        complete = true;
#pragma unroll
        for (int i = 0; i < N; i++) {
            quads[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i <= last) complete &= receive(from + 4 * (first + i * STRIDE), flag, &quads[i]);
        }
    } while (!complete);
}

// A thread's rank among those that stage a row. Ranks begin at the last warp but one and go down, because the first
// warps multiply; the last warp, which computes an epilogue, has the highest ranks.
__device__ __forceinline__ int staging_rank() {
    return (BLOCK_WARPS - 2 - (int)threadIdx.x / WARP + BLOCK_WARPS) % BLOCK_WARPS * WARP + threadIdx.x % WARP;
}

// Stages a normalised row of up to N quads for each thread of eight warps.
template <int N>
__device__ __forceinline__ void stage_normed(const PersistentOp& op, u32 flag, const Staged& x, float* squares, int rank) {
    const LinearArgs& a = op.linear;
    RowInRegisters<N> row;
    row.load_weight(a, rank);
    float4 v[N];
    if (op.inputs[0]) {
        receive_quads<N, SUB_SUMS * WARP>(op.inputs[0], flag, rank < SUB_SUMS * WARP ? rank : a.k, a.k / 4, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = row.load(a, a.x, rank, i);
    }
    row.stage(a, v, x, squares, rank);
}

// Stages the quads of a row from `begin` on, up to N for each thread.
template <int N>
__device__ __forceinline__ void stage_plain(const PersistentOp& op, u32 flag, const Staged& x, int begin, int rank) {
    const LinearArgs& a = op.linear;
    int first = begin + rank, n = min(a.k / 4, begin + N * BLOCK_THREADS);
    float4 v[N];
    if (op.inputs[0]) {
        receive_quads<N, BLOCK_THREADS>(op.inputs[0], flag, first, n, v);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) {
            int quad = first + i * BLOCK_THREADS;
            v[i] = quad < n ? ((const float4*)a.x)[quad] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        int quad = first + i * BLOCK_THREADS;
        if (quad < a.pairs * 16) x.put(x.base, 0, quad, (const float*)&v[i]);
    }
}

// Stages a row of up to MOST times 256 quads if it is normalised, and of any length otherwise.
template <int MOST>
__device__ __forceinline__ void stage_row(const PersistentOp& op, u32 flag, const Staged& x, float* squares) {
    const LinearArgs& a = op.linear;
    int rank = staging_rank();
    if (a.norm) {
        if (a.pairs * 16 <= SUB_SUMS * WARP) {
            stage_normed<1>(op, flag, x, squares, rank);
        } else {
            stage_normed<MOST>(op, flag, x, squares, rank);
        }
    } else if (a.pairs * 16 <= BLOCK_THREADS) {
        stage_plain<1>(op, flag, x, 0, rank);
    } else {
        // From the end of the row, which usually arrives last: the other chunks rarely have to be polled.
        constexpr int CHUNK = MOST * BLOCK_THREADS;
        for (int begin = (a.pairs * 16 - 1) / CHUNK * CHUNK; begin >= 0; begin -= CHUNK) stage_plain<MOST>(op, flag, x, begin, rank);
    }
}

// The segment of a warp's tile `work`, and the tile's index in it. `side` is gate (0) or up (1) of a gated product.
__device__ __forceinline__ Place warp_place(const LinearArgs& a, int side, int work) {
    Place place = {side, work};
    return a.gated ? place : place_of(a, work);
}

// The epilogue of one output element, which a lane computes: everything that it needs except the sums.
struct ElementEpilogue {
    int output, ranges, activation;
    bool stores, gated, added;
    u64 residual;
    u64* words;
    float* plain;
    const float *bias, *up_bias, *sums;

    __device__ __forceinline__ void prepare(const PersistentOp& op, const float* from, int work, u32 flag, int lane) {
        const LinearArgs& a = op.linear;
        Place place = warp_place(a, 0, work);
        const Segment& segment = a.segments[place.segment];
        output = place.tile * 16 + lane % 16, ranges = a.ranges, activation = a.activation;
        stores = lane < 16 && output < segment.n, gated = a.gated, added = a.residual != nullptr;
        words = op.outputs[place.segment], plain = segment.out, bias = segment.bias, up_bias = a.segments[1].bias;
        // Lanes from 16 on sum the up projection of gated products.
        sums = from + (lane >= 16 && gated ? ranges : 0) * 16 + lane % 16;
        // The residual is older than x and has usually arrived: it is loaded here, and polled in `apply` only if not.
        residual = (u64)flag << 32;
        if (stores && added) {
            residual = op.inputs[1] ? flagged_word(op.inputs[1] + output) : (u64)flag << 32 | __float_as_uint(a.residual[output]);
        }
    }

    __device__ __forceinline__ void apply(const PersistentOp& op, int buffer, u32 flag) {
        float y = 0.0f;
#pragma unroll
        for (int r = 0; r < 8; r++) {
            if (r < ranges) y += sums[buffer + r * 16];
        }
        float up = gated ? __shfl_down_sync(FULL_MASK, y, 16) : 0.0f;
        if (!stores) return;
        y = epilogue(bias, up_bias, activation, gated, output, y, up);
        if (added) {
            while (!has_flag(residual, flag)) residual = flagged_word(op.inputs[1] + output);
            y = element_of(residual) + y;
        }
        if (words) send(words + output, y, flag);
        if (plain) plain[output] = y;
    }
};

// Pairs of weight blocks per warp that are prefetched into registers one op early, and dequantised before x arrives.
constexpr int PREFETCHED_PAIRS = FORMAT == W4 ? 3 : FORMAT <= W8_GROUPS ? 2 : 1;
// Weights of f32 would need too many registers.
constexpr bool PREFETCHES_WEIGHTS = FORMAT != W_F32;

// Whether a thread block needs one iteration for a product, with at most PREFETCHED_PAIRS pairs per warp.
__device__ __forceinline__ bool prefetches(const PersistentOp& op) {
    return PREFETCHES_WEIGHTS && blockIdx.x + gridDim.x * op.groups >= op.linear.tiles && op.linear.pairs_per_range <= PREFETCHED_PAIRS;
}

// Prefetches a warp's weights of such a product into registers, and the norm's weights into L2. Both branches write
// `slots`, so that its registers are not live before this call.
__device__ __forceinline__ void prefetch_weights(const PersistentOp& op, Slot slots[PREFETCHED_PAIRS], int warp, int lane) {
    const LinearArgs& a = op.linear;
    WarpPart part = op.parts[warp];
    int work = blockIdx.x + gridDim.x * part.group(), rank = staging_rank();
    if (!op.attends && a.norm && 4 * rank < a.k) asm volatile("prefetch.global.L2 [%0];" ::"l"(a.norm + 4 * rank));
    if (PREFETCHES_WEIGHTS && op.prefetched && part.multiplies() && work < a.tiles) {
        Weights weights(a, warp_place(a, part.side(), work));
        int first = part.first(), count = part.last() - first;
#pragma unroll
        for (int i = 0; i < PREFETCHED_PAIRS; i++) weights.load(slots[i], i < count ? first + i : first, lane);
    } else {
#pragma unroll
        for (int i = 0; i < PREFETCHED_PAIRS; i++) slots[i] = Slot{};
    }
}

// A product of one row. Shared memory: sums of squares, two times [warps][16] sums, the staged row. The staged row is free when
// all warps have stored their sums, and the sums of an op are read before the first barrier of the next one is passed.
__device__ __forceinline__ void run_linear(const PersistentOp& op, const PersistentOp& next, Slot prefetched[PREFETCHED_PAIRS], u32 flag,
                                           float* shared) {
    const LinearArgs& a = op.linear;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float* squares = shared;
    float* sums = shared + SUB_SUMS;
    Staged x = {(u8*)(sums + 2 * BLOCK_WARPS * 16 + SUB_SUMS), 0, XP * 128, 128, 0};
    WarpPart part = op.parts[warp];
    int first = part.first(), last = part.last(), epilogue_tile = BLOCK_WARPS - 1 - warp;
    int begin = blockIdx.x, stride = gridDim.x * op.groups, work = begin + gridDim.x * part.group();
    bool valid = part.multiplies() && work < a.tiles;
    bool has_epilogue = epilogue_tile < op.groups && begin + gridDim.x * epilogue_tile < a.tiles;
    const float* own_sums = sums + epilogue_tile * (a.gated ? 2 * a.ranges : a.ranges) * 16;
    auto store_sums = [&](const float total[4], float* to) {
        if (t == 0) {
            to[warp * 16 + g] = total[0];
            to[warp * 16 + g + 8] = total[2];
        }
    };
    if (PREFETCHES_WEIGHTS && op.prefetched) {
        if (!valid) {
            // Warps without a tile: they only help to stage the row, and compute the epilogue.
            prefetch_weights(next, prefetched, warp, lane);
            ElementEpilogue element = {};
            if (has_epilogue) element.prepare(op, own_sums, begin + gridDim.x * epilogue_tile, flag, lane);
            stage_row<2>(op, flag, x, squares);
            __syncthreads();
            __syncthreads();
            if (has_epilogue) element.apply(op, 0, flag);
            return;
        }
        u32 w[PREFETCHED_PAIRS][4][WP][4];
#pragma unroll
        for (int i = 0; i < PREFETCHED_PAIRS; i++) {
            if (i == 0 || first + i < last) {
#pragma unroll
                for (int step = 0; step < 4; step++) fragment(prefetched[i], step, w[i][step]);
            } else {
#pragma unroll
                for (int e = 0; e < 4 * WP * 4; e++) (&w[i][0][0][0])[e] = 0;
            }
        }
        prefetch_weights(next, prefetched, warp, lane);
        stage_row<2>(op, flag, x, squares);
        __syncthreads();
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < PREFETCHED_PAIRS * 2; i++) {
            int pair = first + i / 2, h = i % 2;
            if (pair >= last) break;
            uint4 parts[XP];
#pragma unroll
            for (int p = 0; p < XP; p++) {
                const u8* from = x.base + pair * x.pair_stride + p * 128 + half_of_pair(0, t, h);
                parts[p] = g == 0 ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
            }
            add_step(total, w[i / 2][2 * h], parts, 2 * h);
            add_step(total, w[i / 2][2 * h + 1], parts, 2 * h + 1);
        }
        store_sums(total, sums);
        __syncthreads();
        if (has_epilogue) {
            ElementEpilogue element;
            element.prepare(op, own_sums, begin + gridDim.x * epilogue_tile, flag, lane);
            element.apply(op, 0, flag);
        }
        return;
    }
    // Initialised in all warps although only some need them: otherwise their registers are live across products.
    ElementEpilogue element = {};
    Slot slots[DEPTH] = {};
    Weights weights(a, warp_place(a, part.side(), min(work, a.tiles - 1)));
    if (valid) load_first(slots, weights, first, last, lane);
    stage_row<4>(op, flag, x, squares);
    __syncthreads();
    for (int turn = 0;; turn ^= 1) {
        has_epilogue = epilogue_tile < op.groups && begin + gridDim.x * epilogue_tile < a.tiles;
        if (has_epilogue) element.prepare(op, own_sums, begin + gridDim.x * epilogue_tile, flag, lane);
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (valid) multiply_range(total, slots, weights, x, first, last, g == 0, lane);
        bool more = begin + stride < a.tiles;
        work += stride;
        valid = part.multiplies() && work < a.tiles;
        if (more && valid) {
            weights = Weights(a, warp_place(a, part.side(), work));
            load_first(slots, weights, first, last, lane);
        }
        // Double buffering: this tile's sums may still be read when the first warp stores the next tile's.
        int buffer = turn ? BLOCK_WARPS * 16 : 0;
        store_sums(total, sums + buffer);
        __syncthreads();
        if (has_epilogue) element.apply(op, buffer, flag);
        begin += stride;
        if (!more) break;
    }
    prefetch_weights(next, prefetched, warp, lane);
}

// A product of a block that also has items of attention: its weights are not prefetched, because attention needs the
// registers.
__device__ __noinline__ void run_linear_alone(const PersistentOp& op, u32 flag, float* shared) {
    Slot prefetched[PREFETCHED_PAIRS];
    prefetch_weights(op, prefetched, threadIdx.x / WARP, threadIdx.x % WARP);
    run_linear(op, op, prefetched, flag, shared);
}

// Attention of one query, by the first ATTEND_THREADS threads; items begin at the last block, which has the fewest tiles.
// Shared memory: fragments as `attend_few` has them, then a query, a key, a value and a result for each head.
__device__ __noinline__ void run_attention(const PersistentOp& op, u32 flag, uint4* fragments, AttendShared& s, Item& item) {
    const AttendArgs& a = op.attend.args;
    const KvLayer& kv = op.attend.kv;
    const ClassPlan& plan = op.attend.plan;
    int columns = a.kv_heads * a.lots, lane = threadIdx.x % WARP;
    uint4* weights = fragments + (a.key_dim + 15) / 16 * 2 * WARP;
    float* queries = (float*)(weights + PART / 16 * 2 * WARP);
    float* key = queries + a.lot * a.key_dim;
    float* value = key + a.key_dim;
    float* results = value + a.value_dim;
    int works = (int)plan.item_count * columns;
    for (int work = gridDim.x - 1 - blockIdx.x; work < works; work += gridDim.x) {
        if (threadIdx.x < sizeof(Item) / 4) ((u32*)&item)[lane] = a.step[plan.items + work / columns * (sizeof(Item) / 4) + lane];
        attend_barrier();
        int kv_head = work % columns / a.lots, lot = work % a.lots;
        int first_head = kv_head * a.group + lot * a.lot, count = min(a.lot, a.group - lot * a.lot);
        u32 known = prefetch_rows(a, kv, plan, item, kv_head);
        auto send_results = [&]() {
            attend_barrier();
            int to = first_head * a.value_dim;
            for (int i = threadIdx.x; i < count * a.value_dim; i += ATTEND_THREADS) {
                send(op.outputs[0] + to + i, results[i], flag);
                if (a.out) a.out[to + i] = results[i];
            }
        };
        if (is_lone(a, kv, item)) {
            bool merged = attend_lone(a, op.inputs, flag, op.outputs[0], a.out, results - first_head * a.value_dim, kv, plan, item, s,
                                      fragments, weights, kv_head, lot, known);
            if (merged) send_results();
            attend_barrier();
            continue;
        }
        // Queries, the key and the value, in quads.
        int query_quads = count * a.key_dim / 4, key_quads = a.key_dim / 4;
        for (int i = threadIdx.x; i < query_quads + key_quads + a.value_dim / 4; i += ATTEND_THREADS) {
            const u64* from = op.inputs[0] + first_head * a.key_dim + 4 * i;
            float* to = queries + 4 * i;
            if (i >= query_quads) {
                int in = i - query_quads;
                from = in < key_quads ? op.inputs[1] + kv_head * a.key_dim + 4 * in
                                      : op.inputs[2] + kv_head * a.value_dim + 4 * (in - key_quads);
                to = in < key_quads ? key + 4 * in : value + 4 * (in - key_quads);
            }
            float4 quad;
            while (!receive(from, flag, &quad)) {}
            *(float4*)to = quad;
        }
        attend_barrier();
        // The weights' memory is free until there are scores.
        u32 stored = store_step(a, kv, plan, key, value, kv_head, (float*)weights, s);
        bool complete = attend_item<1>(a, queries - first_head * a.key_dim, results - first_head * a.value_dim, kv, plan, item, s,
                                       fragments, weights, kv_head, lot, true, known, stored);
        if (complete) send_results();
        attend_barrier();
    }
}

// As many blocks as the device has multiprocessors, all of them resident. Shared memory: the ops, then that of a product, then
// that of attention: warps that have no part in attention go on to the next product.
extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, 1) persistent_decode(const __grid_constant__ PersistentArgs p) {
    extern __shared__ __align__(128) u8 memory[];
    __shared__ AttendShared s;
    __shared__ Item item;
    __shared__ __align__(16) float tables[2][MAX_ROTATED];
    PersistentOp* ops = (PersistentOp*)memory;
    u8* shared = memory + (sizeof(PersistentOp) * p.count + 127) / 128 * 128;
    let_next_start();
    // The list of ops does not change: it is copied while the kernels before this one end.
    for (int i = threadIdx.x; i < p.count * (int)(sizeof(PersistentOp) / 16); i += BLOCK_THREADS) {
        ((uint4*)ops)[i] = ((const uint4*)p.ops)[i];
    }
    wait_for_previous();
    u32 flag = *(volatile u32*)p.state + 1;
    __syncthreads();
    // Whether this block has items of attention.
    bool attends = false;
    for (int i = threadIdx.x; i < p.count; i += BLOCK_THREADS) {
        int next = blockIdx.x < p.most_tiles ? i + 1 : p.count;
        while (next < p.count && (ops[next].attends || blockIdx.x >= ops[next].linear.tiles)) next++;
        ops[i].next = next, ops[i].prefetched = !ops[i].attends && prefetches(ops[i]);
        if (!ops[i].attends) continue;
        PersistentAttend& attend = ops[i].attend;
        AttendArgs& a = attend.args;
        attend.kv = a.layers[a.layer];
        attend.plan = *(const ClassPlan*)(a.step + attend.kv.plan);
        attends |= gridDim.x - 1 - blockIdx.x < attend.plan.item_count * a.kv_heads * a.lots;
        // Ops that use the rope tables of the first attention op read them from shared memory.
        if (a.rotated > MAX_ROTATED) continue;
        if (a.table == p.tables[0]) a.table = tables[0];
        if (a.key_table == p.tables[1]) a.key_table = tables[1];
    }
    for (int i = threadIdx.x; i < 2 * p.rotated; i += BLOCK_THREADS) {
        int which = i >= p.rotated, at = which ? i - p.rotated : i;
        if (p.tables[which]) tables[which][at] = p.tables[which][at];
    }
    if (__syncthreads_or(attends)) {
        for (int i = 0; i < p.count; i++) {
            const PersistentOp& op = ops[i];
            if (op.attends) {
                if (threadIdx.x < ATTEND_THREADS) run_attention(op, flag, (uint4*)(shared + p.attend_offset), s, item);
            } else if (blockIdx.x < op.linear.tiles) {
                run_linear_alone(op, flag, (float*)shared);
            }
        }
    } else {
        Slot prefetched[PREFETCHED_PAIRS];
        int i = ops[0].attends || blockIdx.x >= ops[0].linear.tiles ? ops[0].next : 0;
        if (i < p.count) prefetch_weights(ops[i], prefetched, threadIdx.x / WARP, threadIdx.x % WARP);
        while (i < p.count) {
            int next = ops[i].next;
            run_linear(ops[i], ops[min(next, p.count - 1)], prefetched, flag, (float*)shared);
            i = next;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(p.state + 1, 1) == gridDim.x - 1) {
        p.state[1] = 0;
        p.state[0] = flag;
    }
}

#endif
