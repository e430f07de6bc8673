// Products with packed weights on tensor cores, for any number of rows of x.
//
// The columns are divided into contiguous ranges, whose number follows from k alone; an element of the result is the sum of
// its ranges in order. Activations are split into bf16 numbers whose sum they are, so that products with integer codes are
// exact. `linear_few` has a warp for every range of a tile of 16 outputs, for few rows; `linear_many` has a warp for all ranges
// of two tiles. Both do the same sequence of operations for an element: its bits do not depend on the other rows.

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
    // Tiles of all segments, or of one if they are gated.
    int tiles;
    // Pairs of blocks that `linear_many` stages at once.
    int chunk;
    int unused;
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

// Codes of 4 bits as bf16 numbers 16 + code: the code is the upper part of the mantissa. Offsets are less 16 scales for it.
__device__ __forceinline__ u32 nibbles(u32 word) { return (word & 0x00780078u) | 0x41804180u; }

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
            u32 word = codes[b * 2 + side];
            a[0][side] = nibbles(j ? word >> 1 : word << 3);
            a[0][side + 2] = nibbles(j ? word >> 9 : word >> 5);
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
        float scale = half_to_float(scales[b] & 0xffff);
        return make_float2(scale, fmaf(-16.0f, scale, half_to_float(scales[b] >> 16)));
    }
    if (FORMAT == W4_FLOAT) {
        float scale = __uint_as_float(scales[b * 2]);
        return make_float2(scale, fmaf(-16.0f, scale, __uint_as_float(scales[b * 2 + 1])));
    }
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

// Where a lane finds the codes and scales of a tile.
struct Weights {
    const u8* codes;
    const u8* scales;
};

template <int FORMAT>
__device__ __forceinline__ Weights weights_of(const LinearArgs& a, int segment, int tile, int lane) {
    const Segment& s = a.segments[segment];
    long long pair = (long long)tile * a.pairs;
    Weights weights = {s.codes + (pair * WARP + lane) * code_words(FORMAT) * 4,
                       s.scales + (pair * 16 + lane / 4) * scale_bytes(FORMAT)};
    return weights;
}

// The codes and scales of a pair of blocks that a lane takes.
template <int FORMAT>
struct Slot {
    static constexpr int CODE_WORDS = code_words(FORMAT), SCALE_WORDS = scale_bytes(FORMAT) / 4;
    alignas(16) u32 codes[CODE_WORDS];
    alignas(16) u32 low[SCALE_WORDS + 1];
    alignas(16) u32 high[SCALE_WORDS + 1];

    // Loads a pair of the tile that begins at these addresses.
    __device__ __forceinline__ void load(const Weights& from, int pair) {
        load_words<CODE_WORDS>(from.codes + (u32)pair * (WARP * CODE_WORDS * 4), codes);
        if (SCALE_WORDS > 0) {
            const u8* scales = from.scales + (u32)pair * (16 * scale_bytes(FORMAT));
            load_words<SCALE_WORDS>(scales, low);
            load_words<SCALE_WORDS>(scales + 8 * scale_bytes(FORMAT), high);
        }
    }
};

// Rows of x as the fragments of all warps: for every four columns their bf16 parts, and for every 16 columns their sum.
template <int FORMAT>
struct Staged {
    static constexpr int PARTS = x_parts(FORMAT), WORDS = 2 * PARTS;
    u32* parts;   // [rows][stride], WORDS for every four columns
    float* sums;  // [groups of 16][columns]
    int stride;   // words of a row
    int columns;

    // Parts of the four columns from 4 `quad` on, of one row. Those of a row that is not there stay as they are: zero.
    __device__ __forceinline__ void get(int row, int quad, bool valid, u32 to[PARTS][2]) const {
        const u32* from = parts + row * stride + quad * WORDS;
        if (!valid) return;
        if (PARTS == 2) {
            uint4 v = *(const uint4*)from;
            to[0][0] = v.x, to[0][1] = v.y, to[1][0] = v.z, to[1][1] = v.w;
        } else {
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                uint2 v = *(const uint2*)(from + 2 * p);
                to[p][0] = v.x, to[p][1] = v.y;
            }
        }
    }

    // Stores the four columns of a quad. Four neighbouring threads have a group of 16 columns, whose sum they make.
    __device__ __forceinline__ void put(int row, int quad, const float v[4]) {
        u32 out[PARTS][2];
        split<PARTS>(v, out);
        u32* to = parts + row * stride + quad * WORDS;
#pragma unroll
        for (int p = 0; p < PARTS; p++) *(uint2*)(to + 2 * p) = make_uint2(out[p][0], out[p][1]);
        float sum = (v[0] + v[1]) + (v[2] + v[3]);
        // The quads of a row are a multiple of 16, so that all four are here.
        u32 active = 0xfu << (threadIdx.x % WARP / 4 * 4);
        sum += __shfl_xor_sync(active, sum, 1);
        sum += __shfl_xor_sync(active, sum, 2);
        if (quad % 4 == 0) sums[quad / 4 * columns + row] = sum;
    }

    // Copies `rows` rows of the columns from `col0` on, `quads` times four of them, by all threads of the block.
    __device__ __forceinline__ void fill(const LinearArgs& a, const float* x, int rows, int col0, int quads,
                                         const float* inverse) {
        for (int i = threadIdx.x; i < rows * quads; i += blockDim.x) {
            int row = i / quads, quad = i % quads, col = col0 + 4 * quad;
            const float* from = x + (long long)row * a.k + col;
            float v[4] = {0.0f, 0.0f, 0.0f, 0.0f}, w[4] = {1.0f, 1.0f, 1.0f, 1.0f};
            if (a.k % 4 == 0) {
                if (col < a.k) {
                    *(float4*)v = *(const float4*)from;
                    if (a.norm) *(float4*)w = *(const float4*)(a.norm + col);
                }
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (col + e < a.k) {
                        v[e] = from[e];
                        if (a.norm) w[e] = a.norm[col + e];
                    }
                }
            }
            if (a.norm) {
                float inv = inverse[row];
#pragma unroll
                for (int e = 0; e < 4; e++) v[e] = v[e] * inv * w[e];
            }
            put(row, quad, v);
        }
    }
};

// Words of a row of staged fragments: rows lie in different banks.
__host__ __device__ constexpr int staged_stride(int words) { return words + 16 - words % 32; }

// The fragments of a pair of blocks, zero to begin with.
template <int FORMAT>
struct Operand {
    u32 parts[4][x_parts(FORMAT)][2];

    __device__ __forceinline__ Operand() {
#pragma unroll
        for (int i = 0; i < 4 * x_parts(FORMAT) * 2; i++) (&parts[0][0][0])[i] = 0;
    }
};

// Adds the products of a pair of blocks with eight rows of x to a sum. `quad` is the pair's first in the staged rows.
template <int FORMAT>
__device__ __forceinline__ void add_pair(const Slot<FORMAT>& slot, const Staged<FORMAT>& x, Operand<FORMAT>& operand, int quad,
                                         int row0, int rows, float total[4]) {
    int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    bool valid = row0 + g < rows;
#pragma unroll
    for (int i = 0; i < 4; i++) x.get(row0 + g, quad + i * 4 + t, valid, operand.parts[i]);
#pragma unroll
    for (int b = 0; b < 2; b++) {
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 (*parts)[2] = operand.parts[b * 2 + j];
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
            if (FORMAT == W8_FLOAT) {
                float2 s = *(const float2*)(x.sums + (quad / 4 + b * 2 + j) * x.columns + row0 + 2 * t);
                add_scaled(total, acc, scale_of<FORMAT>(slot.low, b, j), scale_of<FORMAT>(slot.high, b, j), s.x, s.y, true);
                acc[0] = acc[1] = acc[2] = acc[3] = 0.0f;
            }
        }
        if (FORMAT < W8_FLOAT) {
            float2 s = make_float2(0.0f, 0.0f);
            if (FORMAT <= W4_FLOAT) {
                const float* first = x.sums + (quad / 4 + b * 2) * x.columns + row0 + 2 * t;
                float2 low = *(const float2*)first, high = *(const float2*)(first + x.columns);
                s = make_float2(low.x + high.x, low.y + high.y);
            }
            add_scaled(total, acc, scale_of<FORMAT>(slot.low, b, 0), scale_of<FORMAT>(slot.high, b, 0), s.x, s.y,
                       FORMAT <= W4_FLOAT);
        }
    }
}

// The segment and the tile of it that the kernel's tile `work` is.
struct Place {
    int segment, tile;
};

__device__ __forceinline__ Place place_of(const LinearArgs& a, int work) {
    Place place = {0, work};
    while (place.segment + 1 < a.count && place.tile >= a.segments[place.segment].tiles) {
        place.tile -= a.segments[place.segment++].tiles;
    }
    return place;
}

// Bias, activation, gate and sum of one element, and its place in memory. The residual may be loaded already.
__device__ __forceinline__ void finish(const LinearArgs& a, int segment, int output, int row, float y, float up,
                                       bool known, float residual) {
    const Segment& s = a.segments[segment];
    if (output >= s.n || row >= a.rows) return;
    if (s.bias) y += s.bias[output];
    y = activate(a.activation, y);
    if (a.gated) {
        if (a.segments[1].bias) up += a.segments[1].bias[output];
        y = y * up;
    }
    long long at = (long long)row * s.n + output;
    if (a.residual) y = (known ? residual : a.residual[at]) + y;
    s.out[at] = y;
}

// Pairs of blocks that a warp has loaded ahead.
__host__ __device__ constexpr int depth(int format) {
    return format <= W4_FLOAT ? 4 : format <= W_F16 ? 2 : 1;
}

// A narrow row that is normalised: every warp has it in registers, takes its norm, and stages a part of it.
struct NarrowRow {
    static constexpr int MOST = 1024, QUADS = MOST / 4 / WARP;
    float4 weight[QUADS];

    __device__ __forceinline__ static bool fits(const LinearArgs& a) {
        return a.norm && a.rows == 1 && a.k % 4 == 0 && a.k <= MOST;
    }

    __device__ __forceinline__ void load_weight(const LinearArgs& a, int lane) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int at = 4 * (lane + i * WARP);
            weight[i] = at < a.k ? *(const float4*)(a.norm + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }

    // The same sums as `inverse_rms`, in the same order.
    template <int FORMAT>
    __device__ __forceinline__ void stage(const LinearArgs& a, Staged<FORMAT>& x, int warp, int warps, int lane) const {
        float4 v[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int at = 4 * (lane + i * WARP);
            v[i] = at < a.k ? *(const float4*)(a.x + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            sum = fmaf(v[i].x, v[i].x, sum);
            sum = fmaf(v[i].y, v[i].y, sum);
            sum = fmaf(v[i].z, v[i].z, sum);
            sum = fmaf(v[i].w, v[i].w, sum);
        }
        sum = warp_sum(sum);
        float inv = __frcp_rn(__fsqrt_rn(sum / (float)a.k + a.eps));
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int quad = lane + i * WARP;
            if (i % warps != warp || quad >= a.pairs * 16) continue;
            float y[4] = {v[i].x * inv * weight[i].x, v[i].y * inv * weight[i].y, v[i].z * inv * weight[i].z,
                          v[i].w * inv * weight[i].w};
            x.put(0, quad, y);
        }
    }
};

// Eight rows for each block in y. Shared memory: [8] inverses, two times [warps][16][8] sums, staged rows.
extern "C" __global__ void __launch_bounds__(512, 1) linear_few(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(16) float shared[];
    constexpr int FORMAT = LINEAR_FORMAT, COLUMNS = 8, DEPTH = depth(FORMAT);
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int range = warp % a.ranges, side = warp / a.ranges;
    int row0 = blockIdx.y * COLUMNS, rows = min(COLUMNS, a.rows - row0);
    const float* from = a.x + (long long)row0 * a.k;
    float* inverse = shared;
    float* sums = shared + COLUMNS;
    Staged<FORMAT> x;
    x.columns = COLUMNS;
    x.stride = staged_stride(a.pairs * 16 * x.WORDS);
    x.sums = sums + 2 * warps * 16 * COLUMNS;
    x.parts = (u32*)(x.sums + a.pairs * 4 * COLUMNS);
    Operand<FORMAT> operand;

    // Weights are read while the kernel that computes x ends.
    let_next_start();
    int first = range * a.pairs_per_range;
    int last = min(first + a.pairs_per_range, a.pairs);
    Slot<FORMAT> slots[DEPTH];
    Place place = place_of(a, blockIdx.x);
    if (a.gated) place.segment = side, place.tile = blockIdx.x;
    Weights weights = weights_of<FORMAT>(a, place.segment, place.tile, lane);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (first + i < last) slots[i].load(weights, first + i);
    }
    bool narrow = NarrowRow::fits(a);
    NarrowRow row;
    if (narrow) row.load_weight(a, lane);
    wait_for_previous();
    // The first tile's residual is there before its sums are.
    float early = 0.0f;
    int early_output = place.tile * 16 + threadIdx.x % 16;
    if (a.residual && threadIdx.x < 16 * rows && early_output < a.segments[0].n) {
        early = a.residual[(long long)(row0 + threadIdx.x / 16) * a.segments[0].n + early_output];
    }
    if (narrow) {
        row.stage<FORMAT>(a, x, warp, warps, lane);
    } else {
        if (a.norm) {
            for (int i = warp; i < rows; i += warps) {
                float value = inverse_rms(from + (long long)i * a.k, a.k, a.eps, lane);
                if (lane == 0) inverse[i] = value;
            }
            __syncthreads();
        }
        x.fill(a, from, rows, 0, a.pairs * 16, inverse);
    }
    __syncthreads();
    for (int work = blockIdx.x; work < a.tiles; work += gridDim.x) {
        int tile = place.tile, segment = place.segment;
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int base = first; base < last; base += DEPTH) {
#pragma unroll
            for (int d = 0; d < DEPTH; d++) {
                int pair = base + d;
                if (pair >= last) break;
                add_pair<FORMAT>(slots[d], x, operand, pair * 16, 0, rows, total);
                if (pair + DEPTH < last) slots[d].load(weights, pair + DEPTH);
            }
        }
        // The next tile's first weights.
        if (work + gridDim.x < a.tiles) {
            place = place_of(a, work + gridDim.x);
            if (a.gated) place.segment = side, place.tile = work + gridDim.x;
            weights = weights_of<FORMAT>(a, place.segment, place.tile, lane);
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (first + i < last) slots[i].load(weights, first + i);
            }
        }
        // Sums of the ranges: [warp][row of x][16].
        float* mine = sums + warp * 16 * COLUMNS;
        mine[2 * t * 16 + g] = total[0];
        mine[(2 * t + 1) * 16 + g] = total[1];
        mine[2 * t * 16 + g + 8] = total[2];
        mine[(2 * t + 1) * 16 + g + 8] = total[3];
        __syncthreads();
        for (int e = threadIdx.x; e < 16 * rows; e += blockDim.x) {
            float y = 0.0f, up = 0.0f;
            for (int r = 0; r < a.ranges; r++) y += sums[r * 16 * COLUMNS + e];
            if (a.gated) {
                for (int r = 0; r < a.ranges; r++) up += sums[(a.ranges + r) * 16 * COLUMNS + e];
            }
            bool known = work == blockIdx.x && e == threadIdx.x;
            finish(a, a.gated ? 0 : segment, tile * 16 + e % 16, row0 + e / 16, y, up, known, early);
        }
        // The next tile's sums lie in the other buffer: these may still be read when its first warp comes.
        sums = sums == shared + COLUMNS ? sums + warps * 16 * COLUMNS : shared + COLUMNS;
    }
}

// Blocks of `linear_many` that a multiprocessor runs at once: two where few registers spill for it.
#if __CUDA_ARCH__ == 900 && (LINEAR_FORMAT == W4_HALF || LINEAR_FORMAT == W8_HALF)
#define MANY_BLOCKS 2
#else
#define MANY_BLOCKS 1
#endif

// 32 rows for each block in y; each warp has two tiles: neighbours, or those of the gate and of what it gates.
// Shared memory: [32] inverses, staged rows of one range.
extern "C" __global__ void __launch_bounds__(256, MANY_BLOCKS) linear_many(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(16) float shared[];
    constexpr int FORMAT = LINEAR_FORMAT, NT = 4, COLUMNS = 8 * NT;
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    float* inverse = shared;
    Staged<FORMAT> x;
    x.columns = COLUMNS;
    x.stride = staged_stride(a.chunk * 16 * x.WORDS);
    x.sums = shared + COLUMNS;
    x.parts = (u32*)(x.sums + a.chunk * 4 * COLUMNS);
    int row0 = blockIdx.y * COLUMNS, rows = min(COLUMNS, a.rows - row0);
    const float* from = a.x + (long long)row0 * a.k;
    int work = (blockIdx.x * warps + warp) * (a.gated ? 1 : 2);
    Place places[2];
    bool valid[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        places[m] = place_of(a, a.gated ? work : work + m);
        if (a.gated) places[m].segment = m, places[m].tile = work;
        valid[m] = (a.gated ? work : work + m) < a.tiles;
    }
    // The next pair's weights are loaded while a pair is multiplied, except where they would fill the registers.
    constexpr bool AHEAD = FORMAT != W_F32;
    Slot<FORMAT> ahead[2];
    Weights weights[2];
    let_next_start();
#pragma unroll
    for (int m = 0; m < 2; m++) {
        weights[m] = weights_of<FORMAT>(a, places[m].segment, places[m].tile, lane);
        if (AHEAD && valid[m]) ahead[m].load(weights[m], 0);
    }
    wait_for_previous();
    if (a.norm) {
        for (int i = warp; i < rows; i += warps) {
            float value = inverse_rms(from + (long long)i * a.k, a.k, a.eps, lane);
            if (lane == 0) inverse[i] = value;
        }
        __syncthreads();
    }
    float total[2][NT][4];
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) (&total[0][0][0])[i] = 0.0f;
    for (int range = 0; range < a.ranges; range++) {
        int first = range * a.pairs_per_range, last = min(first + a.pairs_per_range, a.pairs);
        float part[2][NT][4];
#pragma unroll
        for (int i = 0; i < 2 * NT * 4; i++) (&part[0][0][0])[i] = 0.0f;
        int staged = first;
        for (int pair = first; pair < last; pair++) {
            if ((pair - first) % a.chunk == 0) {
                __syncthreads();
                staged = pair;
                x.fill(a, from, rows, pair * 64, min(a.chunk, last - pair) * 16, inverse);
                __syncthreads();
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (!valid[m]) continue;
                Slot<FORMAT> slot;
                if (AHEAD) {
                    slot = ahead[m];
                    if (pair + 1 < a.pairs) ahead[m].load(weights[m], pair + 1);
                } else {
                    slot.load(weights[m], pair);
                }
#pragma unroll
                for (int i = 0; i < NT; i++) {
                    Operand<FORMAT> operand;
                    add_pair<FORMAT>(slot, x, operand, (pair - staged) * 16, i * 8, rows, part[m][i]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * NT * 4; i++) (&total[0][0][0])[i] += (&part[0][0][0])[i];
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (!valid[m] || (a.gated && m == 1)) continue;
#pragma unroll
        for (int i = 0; i < NT; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int output = places[m].tile * 16 + g + e / 2 * 8, row = row0 + i * 8 + 2 * t + e % 2;
                finish(a, places[m].segment, output, row, total[m][i][e], total[1][i][e], false, 0.0f);
            }
        }
    }
}
