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
#define KV_F8_E4M3 7

#define NO_CELL 0xffffffffu
// Positions of a part. A query's parts begin at multiples of it and are merged in order.
#define PART 256
// Queries of an item, at most, and of a tile of `mma`.
#define TILE 16
#define WARPS 8

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
    // First position and end of what each query sees.
    u32 ranges, unused[3];
};

struct Item {
    // The first query and their number, at most TILE. All have one run list.
    int query, queries;
    // The run list, and the positions that the item covers.
    int first_run, runs, begin, end;
    // The first slot of partial results, or -1 where one item covers all parts; this item's part, and their number from bit
    // 16 on.
    int slot, part;
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

// An FP8 number (e4m3fn): 120 is the difference of the exponents' biases, and subnormal numbers are multiples of 1/512.
__device__ __forceinline__ float e4m3_to_float(u8 code) {
    u32 rest = code & 0x7f;
    u32 magnitude = rest < 8 ? __float_as_uint((float)rest * (1.0f / 512.0f)) : (rest << 20) + (120u << 23);
    return __uint_as_float((u32)(code & 0x80) << 24 | (rest == 0x7f ? 0x7fc00000u : magnitude));
}

// The nearest FP8 number, ties to the even code; larger numbers become 448 with their sign.
__device__ __forceinline__ u8 float_to_e4m3(float f) {
    u32 bits = __float_as_uint(f), rest = bits & 0x7fffffffu, code;
    if (rest > 0x7f800000u)
        code = 0x7f;
    else if (rest >= 0x43e00000u)
        code = 0x7e;
    else if (rest < 0x3c800000u)
        // A subnormal number: its last bit is worth as much as that of 2^14, so the addition rounds.
        code = __float_as_uint(__fadd_rn(__uint_as_float(rest), 16384.0f)) - 0x46800000u;
    else
        code = ((rest + 0x7ffffu + (rest >> 20 & 1)) >> 20) - (120u << 3);
    return (u8)(bits >> 24 & 0x80 | code);
}

// One element of an encoded row.
__device__ __forceinline__ float decoded(int storage, const u8* row, int i, int dim) {
    switch (storage) {
        case KV_F32: return ((const float*)row)[i];
        case KV_F16: return half_to_float(((const u16*)row)[i]);
        case KV_BF16: return bf16_to_float(((const u16*)row)[i]);
        case KV_F8_E4M3: return e4m3_to_float(row[i]);
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
__device__ __noinline__ void encode_row(int storage, const float* x, u8* to, int dim, int lane) {
    if (storage <= KV_BF16) {
        for (int i = lane; i < dim; i += WARP) {
            if (storage == KV_F32) ((float*)to)[i] = x[i];
            if (storage == KV_F16) ((u16*)to)[i] = float_to_half(x[i]);
            if (storage == KV_BF16) ((u16*)to)[i] = float_to_bf16(x[i]);
        }
        return;
    }
    if (storage == KV_F8_E4M3) {
        for (int i = lane; i < dim; i += WARP) to[i] = float_to_e4m3(x[i]);
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

// Stores one row of a step, by one warp, and again at `near` if it is not null; `buffer` has room for a key.
__device__ __noinline__ void store_row(int storage, const float* x, const float* table, int rotated, int interleaved, u8* to,
                                       u8* near, int dim, float* buffer, int lane) {
    if (table) {
        for (int i = lane; i < dim; i += WARP) buffer[i] = rotated_at(x, table, i, rotated, interleaved);
        __syncwarp();
        x = buffer;
    }
    encode_row(storage, x, to, dim, lane);
    if (near) encode_row(storage, x, near, dim, lane);
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
    u8* to = (u8*)row_of(kv, values, cell, head, values ? kv.value_row : kv.key_row);
    store_row(values ? kv.value_storage : kv.key_storage, x, table, a.rotated, a.interleaved, to, nullptr, dim, buffer, lane);
}

