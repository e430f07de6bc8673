// Products with packed weights on tensor cores, for any number of rows of x.
//
// The columns are divided into contiguous ranges, whose number follows from k alone. The products of a range are one chain of
// `mma` instructions, 16 columns each, and an element of the result is the sum of its ranges in order. All kernels do the same
// sequence of operations for an element, so its bits do not depend on the other rows.
//
// `linear_few` has a warp for every range of a tile of 16 outputs and stages up to 8 rows of x itself. The others read rows
// that `stage_rows` has staged: `linear_several` has a warp for every range of two tiles and 32 rows, `linear_many` has blocks
// of 128 outputs and 128 rows.
//
// Quantised weights are dequantised to f16 and multiplied with x in f16, x being a sixteenth and the weights sixteen times
// what they are: so small weights keep their bits, and x may be as large as a million. Weights of bf16 and f16 are multiplied
// as they are, and x is the sum of two such numbers. Weights of f32 and their x are sums of three bf16 numbers.

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
    // Rows of x as `stage_rows` stores them.
    u8* staged;
    Segment segments[3];
    int count, rows, k, pairs, ranges, pairs_per_range;
    int activation;
    // With a gate, the result is activation(segment 0) * segment 1.
    int gated;
    float eps;
    // Tiles of all segments, or of one if they are gated.
    int tiles;
    // Whether staged rows have the layout that `wgmma` reads.
    int swizzled, unused;
};

constexpr int FORMAT = LINEAR_FORMAT;
constexpr bool HALF = FORMAT <= W8_GROUPS || FORMAT == W_F16;
constexpr int WP = FORMAT == W_F32 ? 3 : 1;
constexpr int XP = FORMAT <= W8_GROUPS ? 1 : FORMAT == W_F32 ? 3 : 2;
constexpr int CODE_WORDS = code_words(FORMAT), SCALE_WORDS = scale_bytes(FORMAT) / 4;
// Bytes of a tile's codes and scales for a pair of blocks.
constexpr int CODE_BYTES = CODE_WORDS * 4 * WARP, SCALE_BYTES = scale_bytes(FORMAT) * 16;

__device__ __forceinline__ void product(float c[4], const u32 a[4], u32 b0, u32 b1) {
    if (HALF) {
        mma_f16(c, a, b0, b1);
    } else {
        mma_bf16(c, a, b0, b1);
    }
}

// Four elements of x as the parts that are multiplied: elements 0 and 2, and elements 1 and 3.
__device__ __forceinline__ void split(const float x[4], u32 parts[XP][2]) {
    float r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = FORMAT <= W8_GROUPS ? finite_f16(x[i] * 0.0625f) : HALF ? finite_f16(x[i]) : x[i];
#pragma unroll
    for (int p = 0; p < XP; p++) {
        if (HALF) {
            parts[p][0] = pack_f16(r[0], r[2]);
            parts[p][1] = pack_f16(r[1], r[3]);
        } else {
            parts[p][0] = pack_bf16(r[0], r[2]);
            parts[p][1] = pack_bf16(r[1], r[3]);
        }
        r[0] -= HALF ? half_to_float(parts[p][0] & 0xffff) : low_bf16(parts[p][0]);
        r[2] -= HALF ? half_to_float(parts[p][0] >> 16) : high_bf16(parts[p][0]);
        r[1] -= HALF ? half_to_float(parts[p][1] & 0xffff) : low_bf16(parts[p][1]);
        r[3] -= HALF ? half_to_float(parts[p][1] >> 16) : high_bf16(parts[p][1]);
    }
}

// The codes and scales of a pair of blocks that a lane takes.
struct Slot {
    alignas(16) u32 codes[CODE_WORDS];
    alignas(16) u32 low[SCALE_WORDS + 1];
    alignas(16) u32 high[SCALE_WORDS + 1];

    // Loads what lies at these addresses, which are those of the lane's codes and of the scales of its first row.
    __device__ __forceinline__ void load(const u8* code, const u8* scale) {
        load_words<CODE_WORDS>(code, codes);
        if (SCALE_WORDS > 0) {
            load_words<SCALE_WORDS>(scale, low);
            load_words<SCALE_WORDS>(scale + 8 * scale_bytes(FORMAT), high);
        }
    }
};

// Codes of 4 bits at bits 0 and 16, and at bits 4 and 20, as f16 numbers: the bits of 1024 and the code, or sixteen times it.
__device__ __forceinline__ u32 low_nibbles(u32 word) { return sub_f16(masked(word, 0x000f000fu, 0x64006400u), 0x64006400u); }
__device__ __forceinline__ u32 high_nibbles(u32 word) {
    return fma_f16(masked(word, 0x00f000f0u, 0x64006400u), 0x2c002c00u, 0xd400d400u);
}

// The weights of 16 rows and 16 columns: step `s` of a pair of blocks.
__device__ __forceinline__ void fragment(const Slot& slot, int s, u32 a[WP][4]) {
    int b = s / 2, j = s % 2;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const u32* scales = side ? slot.high : slot.low;
        if (FORMAT == W4) {
            u32 word = slot.codes[b * 2 + side];
            u32 scale = low_twice(scales[b]), offset = high_twice(scales[b]);
            a[0][side] = fma_f16(j ? high_nibbles(word) : low_nibbles(word), scale, offset);
            a[0][side + 2] = fma_f16(j ? high_nibbles(word >> 8) : low_nibbles(word >> 8), scale, offset);
        } else if (FORMAT <= W8_GROUPS) {
            // A byte below 1024 in f16 is 1024 and the byte; codes are biased by 128.
            u32 biased = slot.codes[b * 4 + side * 2 + j] ^ 0x80808080u;
            u32 even = sub_f16(__byte_perm(biased, 0x64646464u, 0x4240), 0x64806480u);
            u32 odd = sub_f16(__byte_perm(biased, 0x64646464u, 0x4341), 0x64806480u);
            u32 scale, offset = 0;
            if (FORMAT == W8) {
                scale = b ? high_twice(scales[0]) : low_twice(scales[0]);
            } else {
                scale = low_twice(scales[s]);
                offset = high_twice(scales[s]);
            }
            a[0][side] = fma_f16(even, scale, offset);
            a[0][side + 2] = fma_f16(odd, scale, offset);
        } else if (FORMAT <= W_F16) {
            a[0][side] = slot.codes[b * 8 + side * 4 + j * 2];
            a[0][side + 2] = slot.codes[b * 8 + side * 4 + j * 2 + 1];
        } else {
            float w[4];
#pragma unroll
            for (int i = 0; i < 4; i++) w[i] = __uint_as_float(slot.codes[b * 16 + side * 8 + j * 4 + i]);
            u32 parts[XP][2];
            split(w, parts);
#pragma unroll
            for (int p = 0; p < WP; p++) {
                a[p][side] = parts[p][0];
                a[p][side + 2] = parts[p][1];
            }
        }
    }
}

// Adds the products of 16 columns: all parts of the weights with all parts of x whose product is not negligible.
__device__ __forceinline__ void add_step(float c[4], const u32 a[WP][4], const uint4 x[XP], int s) {
#pragma unroll
    for (int p = 0; p < WP; p++) {
#pragma unroll
        for (int q = 0; q < XP; q++) {
            if (p + q <= 2) product(c, a[p], s % 2 ? x[q].z : x[q].x, s % 2 ? x[q].w : x[q].y);
        }
    }
}

// Where the fragments of rows of x lie. A row has 128 bytes for each part of a pair of blocks: lane t of a row takes 16 bytes
// of each half of the pair, four columns of two steps. The halves of odd rows are exchanged, so that two rows lie in
// different banks.
struct Staged {
    u8* base;
    int row_stride, pair_stride, part_stride;
    int swizzled;

    // Stores the four columns of a quad of a row that begins at `at`.
    __device__ __forceinline__ void put(u8* at, int row, int quad, const float v[4]) const {
        u32 parts[XP][2];
        split(v, parts);
        int s = quad % 16 / 4, t = quad % 4;
        if (swizzled) {
            // The first and the second half of a step's columns, in the order in which weights have them, in 16 bytes each,
            // at a place that depends on the row.
            u8* step = at + quad / 16 * pair_stride + 4 * t;
            int first = (2 * s ^ (row & 7)) * 16, second = (2 * s + 1 ^ (row & 7)) * 16;
#pragma unroll
            for (int p = 0; p < XP; p++) {
                *(u32*)(step + p * part_stride + first) = parts[p][0];
                *(u32*)(step + p * part_stride + second) = parts[p][1];
            }
            return;
        }
        u8* to = at + quad / 16 * pair_stride + (2 * t + (s / 2 ^ (row & 1))) * 16 + s % 2 * 8;
#pragma unroll
        for (int p = 0; p < XP; p++) *(uint2*)(to + p * part_stride) = make_uint2(parts[p][0], parts[p][1]);
    }
};

// The bytes of half `h` of a pair of a row that lane t takes.
__device__ __forceinline__ int half_of_pair(int row, int t, int h) { return (2 * t + (h ^ (row & 1))) * 16; }

// The four columns of a quad, normalised if there is a norm.
__device__ __forceinline__ void load_quad(const LinearArgs& a, const float* x, int quad, float inverse, float v[4]) {
    int col = 4 * quad;
    float w[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    v[0] = v[1] = v[2] = v[3] = 0.0f;
    if (a.k % 4 == 0) {
        if (col < a.k) {
            *(float4*)v = *(const float4*)(x + col);
            if (a.norm) *(float4*)w = *(const float4*)(a.norm + col);
        }
    } else {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (col + e < a.k) {
                v[e] = x[col + e];
                if (a.norm) w[e] = a.norm[col + e];
            }
        }
    }
    if (a.norm) {
#pragma unroll
        for (int e = 0; e < 4; e++) v[e] = v[e] * inverse * w[e];
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

// Bias, activation and gate of one element.
__device__ __forceinline__ float epilogue(const float* bias, const float* up_bias, int activation, bool gated, int output, float y,
                                          float up) {
    if (bias) y += bias[output];
    y = activate(activation, y);
    if (gated) {
        if (up_bias) up += up_bias[output];
        y = y * up;
    }
    return y;
}

// The epilogue and the sum of one element, and its place in memory.
__device__ __forceinline__ void store_element(const LinearArgs& a, int segment, int output, int row, float y, float up) {
    const Segment& s = a.segments[segment];
    if (output >= s.n || row >= a.rows) return;
    y = epilogue(s.bias, a.segments[1].bias, a.activation, a.gated, output, y, up);
    long long at = (long long)row * s.n + output;
    if (a.residual) y = a.residual[at] + y;
    s.out[at] = y;
}

__device__ __noinline__ void store_quad(const LinearArgs& a, int segment, int output, int row, float4 y) {
    store_element(a, segment, output, row, y.x, 0.0f);
    store_element(a, segment, output + 1, row, y.y, 0.0f);
    store_element(a, segment, output + 2, row, y.z, 0.0f);
    store_element(a, segment, output + 3, row, y.w, 0.0f);
}

// Where the codes and scales of a tile are.
struct Weights {
    const u8* codes;
    const u8* scales;

    __device__ __forceinline__ Weights(const LinearArgs& a, Place place) {
        const Segment& s = a.segments[place.segment];
        long long pair = (long long)place.tile * a.pairs;
        codes = s.codes + pair * CODE_BYTES;
        scales = s.scales + pair * SCALE_BYTES;
    }

    __device__ __forceinline__ void load(Slot& slot, int pair, int lane) const {
        slot.load(codes + (long long)pair * CODE_BYTES + lane * CODE_WORDS * 4,
                  scales + (long long)pair * SCALE_BYTES + lane / 4 * scale_bytes(FORMAT));
    }
};

// Pairs of blocks that a warp of `linear_few` or of the persistent kernel prefetches into registers.
constexpr int DEPTH = FORMAT == W4 ? 4 : FORMAT == W_F32 ? 1 : 2;

// A normalised row whose quads are in the registers of eight warps, or of fewer if they are enough: those of rank 0 to 255. Norm
// weights are read before x is there.
template <int QUADS>
struct RowInRegisters {
    static constexpr int THREADS = SUB_SUMS * WARP;
    float4 weight[QUADS];

    __device__ __forceinline__ static bool fits(const LinearArgs& a, int warps) {
        int most = warps < SUB_SUMS ? warps * WARP : QUADS * THREADS;
        return a.norm && a.rows == 1 && a.k % 4 == 0 && a.pairs * 16 <= most;
    }

    __device__ __forceinline__ static float4 load(const LinearArgs& a, const float* from, int rank, int i) {
        int quad = rank + i * THREADS;
        return rank < THREADS && 4 * quad < a.k ? ((const float4*)from)[quad] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    __device__ __forceinline__ void load_weight(const LinearArgs& a, int rank) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) weight[i] = load(a, a.norm, rank, i);
    }

    // Stages the row of these quads. The same sums as `inverse_rms`, in the same order.
    __device__ __forceinline__ void stage(const LinearArgs& a, const float4 v[QUADS], const Staged& x, float* squares, int rank) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < QUADS; i++) sum = add_squares(v[i], sum);
        sum = warp_sum(sum);
        if (rank % WARP == 0 && rank < THREADS) squares[rank / WARP] = sum;
        if (rank < SUB_SUMS && rank >= blockDim.x / WARP) squares[rank] = 0.0f;
        __syncthreads();
        if (rank >= THREADS) return;
        float inverse = inverse_of(squares, a.k, a.eps);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int quad = rank + i * THREADS;
            if (quad >= a.pairs * 16) break;
            float y[4] = {v[i].x * inverse * weight[i].x, v[i].y * inverse * weight[i].y, v[i].z * inverse * weight[i].z,
                          v[i].w * inverse * weight[i].w};
            x.put(x.base, 0, quad, y);
        }
    }
};

// Adds the products of a range of a tile's pairs with rows of x, one for each g. The first pairs' weights are in `slots`.
__device__ __forceinline__ void multiply_range(float total[4], Slot slots[DEPTH], const Weights& weights, const Staged& x, int first,
                                               int last, bool valid, int lane) {
    int g = lane / 4, t = lane % 4;
    const u8* mine = x.base + g * x.row_stride;
    for (int base = first; base < last; base += DEPTH) {
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int pair = base + d;
            if (pair >= last) break;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint4 parts[XP];
#pragma unroll
                for (int p = 0; p < XP; p++) {
                    const u8* from = mine + pair * x.pair_stride + p * 128 + half_of_pair(g, t, h);
                    parts[p] = valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
                }
#pragma unroll
                for (int s = 2 * h; s < 2 * h + 2; s++) {
                    u32 w[WP][4];
                    fragment(slots[d], s, w);
                    add_step(total, w, parts, s);
                }
            }
            if (pair + DEPTH < last) weights.load(slots[d], pair + DEPTH, lane);
        }
    }
}

// Loads the first pairs of a range.
__device__ __forceinline__ void load_first(Slot slots[DEPTH], const Weights& weights, int first, int last, int lane) {
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (first + i < last) weights.load(slots[i], first + i, lane);
    }
}
