// Products with packed weights on tensor cores, for any number of rows of x.
//
// A thread block computes tiles of 16 outputs of up to 8 NT rows. Its warps divide the columns into contiguous ranges, whose number
// follows from k alone; their sums are added in order. Activations are split into bf16 numbers whose sum they are, so that
// products with integer codes are exact. An element of the result is the same sequence of operations in every variant:
// its bits do not depend on the other rows.

struct Segment {
    const u8* codes;
    const u8* scales;
    const float* bias;
    float* out;
    int n;
    int tiles;
};

struct LinearArgs {
    const float* x;
    // With a weight, x is normalised by its root mean square first.
    const float* norm;
    // Added to the result.
    const float* residual;
    Segment segments[3];
    int count, rows, k, pairs, ranges, pairs_per_range;
    int activation;
    // With a gate, the result is activation(segment 0) * segment 1.
    int gated;
    float eps;
    // Whether the rows of x are copied to shared memory first.
    int staged;
};

__device__ __forceinline__ void mma(float c[4], const u32 a[4], const u32 b[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four elements as bf16 numbers: the first part is rounded, each further one is the rounded rest.
template <int PARTS>
__device__ __forceinline__ void split(const float x[4], u32 parts[PARTS][2]) {
    float r[4] = {x[0], x[1], x[2], x[3]};
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        parts[p][0] = pack_bf16(r[0], r[2]);
        parts[p][1] = pack_bf16(r[1], r[3]);
        r[0] -= low_bf16(parts[p][0]);
        r[2] -= high_bf16(parts[p][0]);
        r[1] -= low_bf16(parts[p][1]);
        r[3] -= high_bf16(parts[p][1]);
    }
}

// Codes of 4 bits as bf16: 128 + code is exact, and so is the difference.
__device__ __forceinline__ u32 nibbles(u32 word) {
    u32 biased = (word & 0x000f000fu) | 0x43004300u, result;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(biased), "r"(0x3f803f80u), "r"(0xc300c300u));
    return result;
}

// Signed codes of 8 bits: bytes 0 and 2, and bytes 1 and 3.
__device__ __forceinline__ void bytes(u32 word, u32* even, u32* odd) {
    u32 biased = word ^ 0x80808080u;
    float f[4];
#pragma unroll
    for (int i = 0; i < 4; i++) f[i] = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7650 | i)) - 8388736.0f;
    *even = pack_bf16(f[0], f[2]);
    *odd = pack_bf16(f[1], f[3]);
}

__host__ __device__ constexpr int weight_parts(int format) { return format == W_F16 ? 2 : format == W_F32 ? 3 : 1; }
__host__ __device__ constexpr int x_parts(int format) { return format <= W8_FLOAT ? 2 : 3; }

// A fragment of 16 rows and 16 columns: half `j` of block `b` of a pair.
template <int FORMAT>
__device__ __forceinline__ void fragment(const u32* codes, int b, int j, u32 a[weight_parts(FORMAT)][4]) {
#pragma unroll
    for (int side = 0; side < 2; side++) {
        if (FORMAT <= W4_FLOAT) {
            u32 word = codes[b * 2 + side] >> (4 * j);
            a[0][side] = nibbles(word);
            a[0][side + 2] = nibbles(word >> 8);
        } else if (FORMAT <= W8_FLOAT) {
            bytes(codes[b * 4 + side * 2 + j], &a[0][side], &a[0][side + 2]);
        } else if (FORMAT == W_BF16) {
            a[0][side] = codes[b * 8 + side * 4 + j * 2];
            a[0][side + 2] = codes[b * 8 + side * 4 + j * 2 + 1];
        } else {
            float w[4];
            if (FORMAT == W_F16) {
                u32 first = codes[b * 8 + side * 4 + j * 2], second = codes[b * 8 + side * 4 + j * 2 + 1];
                w[0] = half_to_float(first & 0xffff);
                w[2] = half_to_float(first >> 16);
                w[1] = half_to_float(second & 0xffff);
                w[3] = half_to_float(second >> 16);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) w[i] = __uint_as_float(codes[b * 16 + side * 8 + j * 4 + i]);
            }
            u32 parts[weight_parts(FORMAT)][2];
            split<weight_parts(FORMAT)>(w, parts);
#pragma unroll
            for (int p = 0; p < weight_parts(FORMAT); p++) {
                a[p][side] = parts[p][0];
                a[p][side + 2] = parts[p][1];
            }
        }
    }
}

// The sum of a token's elements over a group of columns, for the tokens of this lane's results.
__device__ __forceinline__ void group_sums(float sum, int t, float* first, float* second) {
    sum += __shfl_xor_sync(FULL_MASK, sum, 1);
    sum += __shfl_xor_sync(FULL_MASK, sum, 2);
    *first = __shfl_sync(FULL_MASK, sum, 8 * t);
    *second = __shfl_sync(FULL_MASK, sum, 8 * t + 4);
}

// p += scale * acc + offset * sums, for the rows g and g + 8.
__device__ __forceinline__ void add_scaled(float p[4], const float acc[4], float2 low, float2 high, float s0, float s1,
                                           bool offsets) {
    p[0] = fmaf(low.x, acc[0], p[0]);
    p[1] = fmaf(low.x, acc[1], p[1]);
    p[2] = fmaf(high.x, acc[2], p[2]);
    p[3] = fmaf(high.x, acc[3], p[3]);
    if (offsets) {
        p[0] = fmaf(low.y, s0, p[0]);
        p[1] = fmaf(low.y, s1, p[1]);
        p[2] = fmaf(high.y, s0, p[2]);
        p[3] = fmaf(high.y, s1, p[3]);
    }
}

// Scale and offset of a row for block `b` and half `j` of a pair.
template <int FORMAT>
__device__ __forceinline__ float2 scale_of(const u32* scales, int b, int j) {
    if (FORMAT == W4_HALF) {
        return make_float2(half_to_float(scales[b] & 0xffff), half_to_float(scales[b] >> 16));
    }
    if (FORMAT == W4_FLOAT) return make_float2(__uint_as_float(scales[b * 2]), __uint_as_float(scales[b * 2 + 1]));
    if (FORMAT == W8_HALF) return make_float2(half_to_float(scales[0] >> (16 * b) & 0xffff), 0.0f);
    return make_float2(__uint_as_float(scales[b * 4 + j * 2]), __uint_as_float(scales[b * 4 + j * 2 + 1]));
}

template <int WORDS>
__device__ __forceinline__ void load_words(const void* from, u32* to) {
    if (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) ((uint4*)to)[i] = ((const uint4*)from)[i];
    } else if (WORDS == 2) {
        *(uint2*)to = *(const uint2*)from;
    } else if (WORDS == 1) {
        *to = *(const u32*)from;
    }
}

// The codes and scales of a pair of blocks that a lane takes.
template <int FORMAT>
struct Slot {
    static constexpr int CODE_WORDS = code_words(FORMAT), SCALE_WORDS = scale_bytes(FORMAT) / 4;
    alignas(16) u32 codes[CODE_WORDS];
    alignas(16) u32 low[SCALE_WORDS + 1];
    alignas(16) u32 high[SCALE_WORDS + 1];

    __device__ __forceinline__ void load(const Segment& s, long long pair, int lane) {
        load_words<CODE_WORDS>(s.codes + (pair * WARP + lane) * CODE_WORDS * 4, codes);
        if (SCALE_WORDS > 0) {
            const u8* scales = s.scales + (pair * 16 + lane / 4) * scale_bytes(FORMAT);
            load_words<SCALE_WORDS>(scales, low);
            load_words<SCALE_WORDS>(scales + 8 * scale_bytes(FORMAT), high);
        }
    }
};

// Pairs of blocks that a warp has loaded ahead.
__host__ __device__ constexpr int depth(int format, int nt) {
    return format <= W4_FLOAT ? (nt > 2 ? 2 : 4) : format <= W8_FLOAT ? 2 : format <= W_F16 ? 2 : 1;
}

// Adds the products of a pair of blocks with 8 rows of x to a sum.
template <int FORMAT>
__device__ __forceinline__ void add_pair(const LinearArgs& a, const Slot<FORMAT>& slot, int pair, const float* xs, bool valid,
                                         bool whole, float inverse, float total[4]) {
    int t = threadIdx.x % 4;
#pragma unroll
    for (int b = 0; b < 2; b++) {
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int col = pair * 64 + column(b, j, t, 0);
            float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (valid && whole) {
                *(float4*)x = *(const float4*)(xs + col);
                if (a.norm && !a.staged) {
                    float4 w = *(const float4*)(a.norm + col);
                    x[0] = x[0] * inverse * w.x;
                    x[1] = x[1] * inverse * w.y;
                    x[2] = x[2] * inverse * w.z;
                    x[3] = x[3] * inverse * w.w;
                }
            } else if (valid) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (col + e >= a.k) continue;
                    x[e] = xs[col + e];
                    if (a.norm && !a.staged) x[e] = x[e] * inverse * a.norm[col + e];
                }
            }
            u32 parts[x_parts(FORMAT)][2];
            split<x_parts(FORMAT)>(x, parts);
            u32 w[weight_parts(FORMAT)][4];
            fragment<FORMAT>(slot.codes, b, j, w);
            float* to = FORMAT <= W8_FLOAT ? acc : total;
#pragma unroll
            for (int p = 0; p < weight_parts(FORMAT); p++) {
#pragma unroll
                for (int q = 0; q < x_parts(FORMAT); q++) {
                    if (p + q <= 2) mma(to, w[p], parts[q]);
                }
            }
            sum += (x[0] + x[1]) + (x[2] + x[3]);
            if (FORMAT == W8_FLOAT) {
                float s0, s1;
                group_sums(sum, t, &s0, &s1);
                add_scaled(total, acc, scale_of<FORMAT>(slot.low, b, j), scale_of<FORMAT>(slot.high, b, j), s0, s1, true);
                acc[0] = acc[1] = acc[2] = acc[3] = sum = 0.0f;
            }
        }
        if (FORMAT < W8_FLOAT) {
            float s0 = 0.0f, s1 = 0.0f;
            if (FORMAT <= W4_FLOAT) group_sums(sum, t, &s0, &s1);
            add_scaled(total, acc, scale_of<FORMAT>(slot.low, b, 0), scale_of<FORMAT>(slot.high, b, 0), s0, s1,
                       FORMAT <= W4_FLOAT);
        }
    }
}

// The segment and the tile of it that a warp computes as its part of the kernel's tile `work`.
struct Place {
    int segment, tile;
};

__device__ __forceinline__ Place place_of(const LinearArgs& a, int work, int warp) {
    Place place = {0, work};
    if (a.gated) {
        place.segment = warp / a.ranges;
        return place;
    }
    while (place.segment + 1 < a.count && place.tile >= a.segments[place.segment].tiles) {
        place.tile -= a.segments[place.segment++].tiles;
    }
    return place;
}

template <int FORMAT, int NT>
__device__ __forceinline__ void linear_body(const LinearArgs& a) {
    extern __shared__ __align__(16) float shared[];
    constexpr int COLUMNS = 8 * NT, DEPTH = depth(FORMAT, NT);
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int range = a.gated ? warp % a.ranges : warp;
    int row0 = blockIdx.y * COLUMNS;
    int tiles = a.segments[0].tiles;
    for (int i = 1; i < a.count && !a.gated; i++) tiles += a.segments[i].tiles;
    float* inverse = shared;
    float* sums = shared + COLUMNS;
    // Rows of x in shared memory, and the norm's weight behind them.
    float* staged = sums + warps * 16 * COLUMNS;
    int stride = a.staged ? a.k + 4 : a.k;
    int rows = min(COLUMNS, a.rows - row0);

    // Weights are read while the kernel that computes x ends.
    let_next_start();
    int first = range * a.pairs_per_range;
    int last = min(first + a.pairs_per_range, a.pairs);
    Slot<FORMAT> slots[DEPTH];
    Place place = place_of(a, blockIdx.x, warp);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (first + i < last) slots[i].load(a.segments[place.segment], (long long)place.tile * a.pairs + first + i, lane);
    }
    float* weight = staged + rows * stride;
    if (a.staged && a.norm) {
        for (int i = threadIdx.x; i < a.k; i += blockDim.x) weight[i] = a.norm[i];
    }
    wait_for_previous();
    const float* x = a.x + (long long)row0 * a.k;
    if (a.staged) {
        if (a.k % 4 == 0) {
            int each = a.k / 4;
            for (int i = threadIdx.x; i < rows * each; i += blockDim.x) {
                int row = i / each, at = i % each * 4;
                *(float4*)(staged + row * stride + at) = *(const float4*)(x + (long long)row * a.k + at);
            }
        } else {
            for (int i = threadIdx.x; i < rows * a.k; i += blockDim.x) staged[i / a.k * stride + i % a.k] = x[i];
        }
        __syncthreads();
        x = staged;
    }
    if (a.norm) {
        for (int i = warp; i < rows; i += warps) {
            float value = inverse_rms(x + (long long)i * stride, a.k, a.eps, lane);
            if (lane == 0) inverse[i] = value;
        }
        __syncthreads();
        if (a.staged) {
            for (int row = 0; row < rows; row++) {
                float* to = staged + row * stride;
                for (int i = threadIdx.x; i < a.k; i += blockDim.x) to[i] = to[i] * inverse[row] * weight[i];
            }
            __syncthreads();
        }
    }
    bool whole = a.k % 64 == 0;
    for (int work = blockIdx.x; work < tiles; work += gridDim.x) {
        const Segment& s = a.segments[place.segment];
        int tile = place.tile;
        long long pair0 = (long long)tile * a.pairs;
        // What the sum at the end needs.
        int output0 = tile * 16 + threadIdx.x % 16, row_of_thread = row0 + threadIdx.x / 16;
        float residual = 0.0f;
        if (a.residual && threadIdx.x < 16 * COLUMNS && output0 < s.n && row_of_thread < a.rows) {
            residual = a.residual[(long long)row_of_thread * s.n + output0];
        }
        float total[NT][4];
#pragma unroll
        for (int i = 0; i < NT; i++) total[i][0] = total[i][1] = total[i][2] = total[i][3] = 0.0f;
        for (int base = first; base < last; base += DEPTH) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                int pair = base + d;
                if (pair >= last) break;
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    int row = i * 8 + g;
                    bool valid = row < rows;
                    float inv = a.norm && !a.staged && valid ? inverse[row] : 1.0f;
                    add_pair<FORMAT>(a, slots[d], pair, x + (long long)row * stride, valid, whole, inv, total[i]);
                }
                if (pair + DEPTH < last) slots[d].load(s, pair0 + pair + DEPTH, lane);
            }
        }
        // The next tile's first weights.
        if (work + gridDim.x < tiles) {
            place = place_of(a, work + gridDim.x, warp);
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (first + i < last) {
                    slots[i].load(a.segments[place.segment], (long long)place.tile * a.pairs + first + i, lane);
                }
            }
        }

        // Sums of the ranges: [warp][16][COLUMNS].
        float* mine = sums + warp * 16 * COLUMNS;
#pragma unroll
        for (int i = 0; i < NT; i++) {
            int c = i * 8 + 2 * t;
            mine[g * COLUMNS + c] = total[i][0];
            mine[g * COLUMNS + c + 1] = total[i][1];
            mine[(g + 8) * COLUMNS + c] = total[i][2];
            mine[(g + 8) * COLUMNS + c + 1] = total[i][3];
        }
        __syncthreads();
        for (int e = threadIdx.x; e < 16 * COLUMNS; e += blockDim.x) {
            int output = tile * 16 + e % 16, column = e / 16, row = row0 + column;
            if (output >= s.n || row >= a.rows) continue;
            int at = e % 16 * COLUMNS + column;
            float y = 0.0f;
            for (int r = 0; r < a.ranges; r++) y += sums[r * 16 * COLUMNS + at];
            const Segment& out = a.gated ? a.segments[0] : s;
            if (out.bias) y += out.bias[output];
            y = activate(a.activation, y);
            if (a.gated) {
                float up = 0.0f;
                for (int r = 0; r < a.ranges; r++) up += sums[(a.ranges + r) * 16 * COLUMNS + at];
                if (a.segments[1].bias) up += a.segments[1].bias[output];
                y = y * up;
            }
            long long at_out = (long long)row * s.n + output;
            if (a.residual) y = (e == threadIdx.x ? residual : a.residual[at_out]) + y;
            out.out[at_out] = y;
        }
        if (work + gridDim.x < tiles) __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_1(const __grid_constant__ LinearArgs a) {
    linear_body<LINEAR_FORMAT, 1>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_2(const __grid_constant__ LinearArgs a) {
    linear_body<LINEAR_FORMAT, 2>(a);
}

extern "C" __global__ void __launch_bounds__(512, 1) linear_4(const __grid_constant__ LinearArgs a) {
    linear_body<LINEAR_FORMAT, 4>(a);
}
