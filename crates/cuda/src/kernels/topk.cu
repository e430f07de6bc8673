// The most likely tokens of rows of logits: each part of a row is ranked by a block of its own, then the best of its parts by the
// last of these blocks.

// Keys that a block ranks at a time, as in `topk.rs`.
#define RANKED_KEYS 2048

struct TopKArgs {
    const float* logits;
    // The best keys of every part, `[rows, parts, k]`, and of every row, `[rows, k]`, in memory of the host.
    u64* parts;
    u64* out;
    // The number of blocks of each row that have ranked their part.
    u32* arrived;
    u32 width, k, part_count;
};

// A token as a number that is larger for a better token: the logit in the order of numbers, then the lower id. NaN counts as
// negative infinity, and zeros of both signs are equal. No key is 0.
__device__ __forceinline__ u64 token_key(float logit, u32 id) {
    u32 bits = __float_as_uint(logit);
    if (logit != logit) bits = 0xff800000u;
    if (bits == 0x80000000u) bits = 0;
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (u64)bits << 32 | (u64)(0xffffffffu - id);
}

// Moves the `k` largest of `n` keys to the front, the largest first; `n` is a power of two. All threads of the block take
// part, and see the result.
__device__ void rank_keys(u64* keys, u32 n, u32 k) {
    if (k == 1) {
        __syncthreads();
        u64 best = 0;
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) best = keys[i] > best ? keys[i] : best;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            u64 other = __shfl_xor_sync(FULL_MASK, best, step);
            best = other > best ? other : best;
        }
        __syncthreads();
        if (threadIdx.x % WARP == 0) keys[threadIdx.x / WARP] = best;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (u32 i = 1; i < blockDim.x / WARP; i++) best = keys[i] > best ? keys[i] : best;
            keys[0] = best;
        }
        __syncthreads();
        return;
    }
    // A bitonic sort: sequences of `size` keys are sorted, every other one in ascending order.
    for (u32 size = 2; size <= n; size *= 2) {
        for (u32 stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            for (u32 pair = threadIdx.x; pair < n / 2; pair += blockDim.x) {
                u32 i = 2 * pair - (pair & (stride - 1)), j = i + stride;
                bool descends = (i & size) == 0;
                u64 a = keys[i], b = keys[j];
                if ((a < b) == descends) keys[i] = b, keys[j] = a;
            }
        }
    }
    __syncthreads();
}

// The most likely tokens of each row: a block for each part (x) of each row (y). The last block of a row ranks the best of its parts: what it
// has kept so far with the next keys of the parts.
extern "C" __global__ void topk_tokens(const __grid_constant__ TopKArgs a) {
    extern __shared__ __align__(16) u64 keys[];
    __shared__ bool last;
    begin();
    const float* row = a.logits + (u64)blockIdx.y * a.width;
    for (u32 i = threadIdx.x; i < RANKED_KEYS; i += blockDim.x) {
        u32 id = blockIdx.x * RANKED_KEYS + i;
        keys[i] = id < a.width ? token_key(row[id], id) : 0;
    }
    rank_keys(keys, RANKED_KEYS, a.k);
    u32 count = a.part_count * a.k, kept = 0;
    u64* parts = a.parts + (u64)blockIdx.y * count;
    for (u32 i = threadIdx.x; i < a.k; i += blockDim.x) parts[blockIdx.x * a.k + i] = keys[i];
    __threadfence();
    __syncthreads();
    // The counter is zero again after the last block.
    if (threadIdx.x == 0) last = atomicInc(a.arrived + blockIdx.y, a.part_count - 1) == a.part_count - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (u32 done = 0; done < count;) {
        u32 taken = count - done < RANKED_KEYS - kept ? count - done : RANKED_KEYS - kept;
        u32 n = 1;
        while (n < kept + taken) n *= 2;
        for (u32 i = kept + threadIdx.x; i < n; i += blockDim.x) {
            keys[i] = i - kept < taken ? ((const volatile u64*)parts)[done + i - kept] : 0;
        }
        rank_keys(keys, n, a.k);
        done += taken;
        kept = a.k;
    }
    u64* to = a.out + (u64)blockIdx.y * a.k;
    for (u32 i = threadIdx.x; i < a.k; i += blockDim.x) to[i] = keys[i];
}
