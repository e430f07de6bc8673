
// The choice of experts, the lists of their rows, and the sums of their results.

struct RouteArgs {
    const float* logits;
    const float* bias;
    float* out;
    int rows, experts, used, sigmoid, normalise;
    // With groups, experts are only chosen in `used_groups` of them.
    int groups, used_groups;
    float scale;
};

// Numbers in their total order, as integers. Zero is no number that is computed.
__device__ __forceinline__ u32 ordered(float x) {
    u32 bits = __float_as_uint(x);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float number_of(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// The index of the largest of `n` keys in shared memory, the first of equal ones, by one warp. Keys of zero are not chosen: returns
// -1 if there is no other.
__device__ __forceinline__ int largest_key(const u32* keys, int n, int lane) {
    u64 best = 0;
    for (int i = lane; i < n; i += WARP) {
        u64 key = (u64)keys[i] << 32 | (0xffffffffu - (u32)i);
        if (keys[i] != 0 && key > best) best = key;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        u64 other = __shfl_xor_sync(FULL_MASK, best, step);
        if (other > best) best = other;
    }
    return best == 0 ? -1 : (int)(0xffffffffu - (u32)best);
}

// A warp for each row. Shared memory: scores, keys, keys of groups, and marks of what is chosen, each as many as experts.
extern "C" __global__ void __launch_bounds__(32) route_experts(const __grid_constant__ RouteArgs a) {
    extern __shared__ __align__(16) float scores[];
    begin();
    int lane = threadIdx.x;
    u32* keys = (u32*)scores + a.experts;
    u32 *group_keys = keys + a.experts, *chosen = group_keys + a.experts;
    const float* logits = a.logits + (long long)blockIdx.x * a.experts;
    float* out = a.out + (long long)blockIdx.x * a.experts;
    float top = NEG_INF, sum = 0.0f;
    for (int i = lane; i < a.experts; i += WARP) top = fmaxf(top, logits[i]);
    top = warp_max(top);
    for (int i = lane; i < a.experts; i += WARP) {
        float score = a.sigmoid ? 1.0f / (1.0f + expf(-logits[i])) : expf(logits[i] - top);
        scores[i] = score;
        sum += score;
    }
    sum = warp_sum(sum);
    for (int i = lane; i < a.experts; i += WARP) {
        if (!a.sigmoid) scores[i] = scores[i] / sum;
        keys[i] = ordered(scores[i] + (a.bias ? a.bias[i] : 0.0f));
        chosen[i] = 0;
    }
    __syncwarp();
    if (a.groups) {
        int size = a.experts / a.groups;
        for (int group = lane; group < a.groups; group += WARP) {
            u32 best = 0, second = 0;
            for (int i = group * size; i < (group + 1) * size; i++) {
                u32 key = keys[i];
                if (key > best) {
                    second = best, best = key;
                } else if (key > second) {
                    second = key;
                }
            }
            group_keys[group] = ordered(size > 1 ? number_of(best) + number_of(second) : number_of(best));
        }
        __syncwarp();
        // A group that is kept loses its key.
        for (int i = 0; i < a.used_groups; i++) {
            int group = largest_key(group_keys, a.groups, lane);
            __syncwarp();
            if (lane == 0 && group >= 0) group_keys[group] = 0;
            __syncwarp();
        }
        for (int i = lane; i < a.experts; i += WARP) {
            if (group_keys[i / size] != 0) keys[i] = 0;
        }
        __syncwarp();
    }
    for (int i = 0; i < a.used; i++) {
        int expert = largest_key(keys, a.experts, lane);
        __syncwarp();
        if (lane == 0 && expert >= 0) keys[expert] = 0, chosen[expert] = 1;
        __syncwarp();
    }
    float factor = a.scale;
    if (a.normalise) {
        float total = 0.0f;
        for (int i = lane; i < a.experts; i += WARP) total += chosen[i] ? scores[i] : 0.0f;
        factor = factor / fmaxf(warp_sum(total), 1.17549435e-38f);
    }
    for (int i = lane; i < a.experts; i += WARP) out[i] = chosen[i] ? scores[i] * factor : 0.0f;
}

struct ListArgs {
    const float* weights;
    ExpertLists lists;
    int rows, experts, slots, chunk;
};

// Lists the pairs of each expert, by one block. The order of an expert's pairs is any; no result depends on it. Shared memory: a
// count and a cursor for each expert.
extern "C" __global__ void __launch_bounds__(1024) list_experts(const __grid_constant__ ListArgs a) {
    extern __shared__ __align__(16) u32 counts[];
    begin();
    u32* cursors = counts + a.experts;
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    for (int i = threadIdx.x; i < a.experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (int row = warp; row < a.rows; row += warps) {
        u32* experts = a.lists.experts + (long long)row * a.slots;
        const float* weights = a.weights + (long long)row * a.experts;
        int filled = 0;
        for (int base = 0; base < a.experts; base += WARP) {
            int expert = base + lane;
            bool used = expert < a.experts && weights[expert] != 0.0f;
            u32 mask = __ballot_sync(FULL_MASK, used);
            int slot = filled + __popc(mask & ((1u << lane) - 1));
            if (used && slot < a.slots) {
                experts[slot] = expert;
                atomicAdd(&counts[expert], 1);
            }
            filled += __popc(mask);
        }
        for (int slot = filled + lane; slot < a.slots; slot += WARP) experts[slot] = NO_EXPERT;
    }
    __syncthreads();
    if (warp == 0) {
        u32 pairs = 0, chunks = 0;
        for (int base = 0; base < a.experts; base += WARP) {
            int expert = base + lane;
            u32 own = expert < a.experts ? counts[expert] : 0, parts = (own + a.chunk - 1) / a.chunk;
            // Sums up to this expert's.
            u32 pair_sum = own, part_sum = parts;
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                u32 pair_below = __shfl_up_sync(FULL_MASK, pair_sum, step), part_below = __shfl_up_sync(FULL_MASK, part_sum, step);
                if (lane >= step) pair_sum += pair_below, part_sum += part_below;
            }
            u32 first = pairs + pair_sum - own;
            if (expert < a.experts) cursors[expert] = first;
            for (u32 i = 0; i < parts; i++) {
                u32 count = own - i * a.chunk;
                if (count > (u32)a.chunk) count = a.chunk;
                a.lists.chunks[chunks + part_sum - parts + i] = {(u32)expert, first + i * a.chunk, count, 0};
            }
            pairs += __shfl_sync(FULL_MASK, pair_sum, WARP - 1);
            chunks += __shfl_sync(FULL_MASK, part_sum, WARP - 1);
        }
        if (lane == 0) *a.lists.chunk_count = chunks;
    }
    __syncthreads();
    for (long long pair = threadIdx.x; pair < (long long)a.rows * a.slots; pair += blockDim.x) {
        u32 expert = a.lists.experts[pair];
        if (expert != NO_EXPERT) a.lists.pairs[atomicAdd(&cursors[expert], 1)] = pair;
    }
}

struct CombineArgs {
    const float* weights;
    // A row for each pair.
    const float* products;
    const u32* pair_experts;
    float* out;
    int rows, experts, slots, n;
};

// The weighted sum of a row's experts, in their order. Blocks of a row in x, of 256 columns in y.
extern "C" __global__ void __launch_bounds__(256) combine_experts(const __grid_constant__ CombineArgs a) {
    begin();
    int row = blockIdx.x, i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    float sum = 0.0f;
    for (int slot = 0; slot < a.slots; slot++) {
        long long pair = (long long)row * a.slots + slot;
        u32 expert = a.pair_experts[pair];
        if (expert == NO_EXPERT) break;
        sum = fmaf(a.weights[(long long)row * a.experts + expert], a.products[pair * a.n + i], sum);
    }
    a.out[(long long)row * a.n + i] = sum;
}
