// Products with packed weights on tensor cores, for any number of rows of x.
//
// A thread block computes 16 outputs of up to 8 NT rows. Its warps divide the columns into contiguous ranges, whose number
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

template <int FORMAT, int NT>
__device__ __forceinline__ void linear_body(const LinearArgs& a) {
    extern __shared__ __align__(16) float shared[];
    constexpr int COLUMNS = 8 * NT;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int range = a.gated ? warp % a.ranges : warp;
    int row0 = blockIdx.y * COLUMNS;
    // The segment and the tile of this warp.
    int segment = 0, tile = blockIdx.x;
    if (a.gated) {
        segment = warp / a.ranges;
    } else {
        while (segment + 1 < a.count && tile >= a.segments[segment].tiles) tile -= a.segments[segment++].tiles;
    }
    const Segment& s = a.segments[segment];
    int first = range * a.pairs_per_range;
    int last = min(first + a.pairs_per_range, a.pairs);
    constexpr int CODE_WORDS = code_words(FORMAT), SCALE_WORDS = scale_bytes(FORMAT) / 4;
    // Weights are read before the kernel that computes x ends.
    let_next_start();
    for (int pair = first; pair < min(last, first + 4); pair++) {
        long long at = (long long)tile * a.pairs + pair;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(s.codes + (at * WARP + lane) * CODE_WORDS * 4));
    }
    wait_for_previous();
    float* inverse = shared;
    float* sums = shared + COLUMNS;

    if (a.norm) {
        for (int i = warp; i < COLUMNS; i += blockDim.x / WARP) {
            int row = row0 + i;
            float x = row < a.rows ? inverse_rms(a.x + (long long)row * a.k, a.k, a.eps, lane) : 0.0f;
            if (lane == 0) inverse[i] = x;
        }
        __syncthreads();
    }

    float total[NT][4];
#pragma unroll
    for (int i = 0; i < NT; i++) total[i][0] = total[i][1] = total[i][2] = total[i][3] = 0.0f;
    bool whole = a.k % 64 == 0;
#pragma unroll(NT == 1 && FORMAT <= W8_FLOAT ? 3 : 1)
    for (int pair = first; pair < last; pair++) {
        long long at = (long long)tile * a.pairs + pair;
        alignas(16) u32 codes[CODE_WORDS];
        alignas(16) u32 low[SCALE_WORDS + 1], high[SCALE_WORDS + 1];
        load_words<CODE_WORDS>(s.codes + (at * WARP + lane) * CODE_WORDS * 4, codes);
        if (SCALE_WORDS > 0) {
            const u8* scales = s.scales + at * 16 * scale_bytes(FORMAT);
            load_words<SCALE_WORDS>(scales + g * scale_bytes(FORMAT), low);
            load_words<SCALE_WORDS>(scales + (g + 8) * scale_bytes(FORMAT), high);
        }
#pragma unroll
        for (int i = 0; i < NT; i++) {
            int row = row0 + i * 8 + g;
            const float* xs = a.x + (long long)row * a.k;
            float inv = a.norm ? inverse[i * 8 + g] : 1.0f;
#pragma unroll
            for (int b = 0; b < 2; b++) {
                float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                float sum = 0.0f;
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    int col = pair * 64 + column(b, j, t, 0);
                    float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    if (row < a.rows) {
                        if (whole) {
                            *(float4*)x = *(const float4*)(xs + col);
                            if (a.norm) {
                                float4 w = *(const float4*)(a.norm + col);
                                x[0] = x[0] * inv * w.x;
                                x[1] = x[1] * inv * w.y;
                                x[2] = x[2] * inv * w.z;
                                x[3] = x[3] * inv * w.w;
                            }
                        } else {
#pragma unroll
                            for (int e = 0; e < 4; e++) {
                                if (col + e < a.k) x[e] = a.norm ? xs[col + e] * inv * a.norm[col + e] : xs[col + e];
                            }
                        }
                    }
                    u32 parts[x_parts(FORMAT)][2];
                    split<x_parts(FORMAT)>(x, parts);
                    u32 w[weight_parts(FORMAT)][4];
                    fragment<FORMAT>(codes, b, j, w);
                    float* to = FORMAT <= W8_FLOAT ? acc : total[i];
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
                        add_scaled(total[i], acc, scale_of<FORMAT>(low, b, j), scale_of<FORMAT>(high, b, j), s0, s1, true);
                        acc[0] = acc[1] = acc[2] = acc[3] = sum = 0.0f;
                    }
                }
                if (FORMAT < W8_FLOAT) {
                    float s0 = 0.0f, s1 = 0.0f;
                    if (FORMAT <= W4_FLOAT) group_sums(sum, t, &s0, &s1);
                    add_scaled(total[i], acc, scale_of<FORMAT>(low, b, 0), scale_of<FORMAT>(high, b, 0), s0, s1,
                               FORMAT <= W4_FLOAT);
                }
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
        long long place = (long long)row * s.n + output;
        if (a.residual) y = a.residual[place] + y;
        out.out[place] = y;
    }
}

extern "C" __global__ void __launch_bounds__(512) linear_1(const __grid_constant__ LinearArgs a) {
    linear_body<LINEAR_FORMAT, 1>(a);
}

extern "C" __global__ void __launch_bounds__(512) linear_2(const __grid_constant__ LinearArgs a) {
    linear_body<LINEAR_FORMAT, 2>(a);
}

extern "C" __global__ void __launch_bounds__(512) linear_4(const __grid_constant__ LinearArgs a) {
    linear_body<LINEAR_FORMAT, 4>(a);
}
