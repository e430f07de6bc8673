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

// Stages rows of x for the kernels of many rows: eight rows of a part of a pair are 1,024 bytes. A block of eight warps for
// each row.
extern "C" __global__ void __launch_bounds__(256) stage_rows(const __grid_constant__ LinearArgs a) {
    __shared__ float squares[SUB_SUMS];
    begin();
    int row = blockIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Staged x = {a.staged, 128, XP * 1024, 1024, a.swizzled};
    u8* at = x.base + (long long)(row / 8) * a.pairs * x.pair_stride + row % 8 * 128;
    const float* from = a.x + (long long)row * a.k;
    bool valid = row < a.rows;
    if (a.norm && valid) {
        float sum = warp_sum(sub_sum(from, a.k, warp, lane));
        if (lane == 0) squares[warp] = sum;
        __syncthreads();
    }
    float inverse = a.norm && valid ? inverse_of(squares, a.k, a.eps) : 1.0f;
#pragma unroll 4
    for (int quad = threadIdx.x; quad < a.pairs * 16; quad += 256) {
        float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (valid) load_quad(a, from, quad, inverse, v);
        x.put(at, row, quad, v);
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

// Bias, activation, gate and sum of one element, and its place in memory.
__device__ __forceinline__ void finish(const LinearArgs& a, int segment, int output, int row, float y, float up) {
    const Segment& s = a.segments[segment];
    if (output >= s.n || row >= a.rows) return;
    if (s.bias) y += s.bias[output];
    y = activate(a.activation, y);
    if (a.gated) {
        if (a.segments[1].bias) up += a.segments[1].bias[output];
        y = y * up;
    }
    long long at = (long long)row * s.n + output;
    if (a.residual) y = a.residual[at] + y;
    s.out[at] = y;
}

__device__ __noinline__ void finish_quad(const LinearArgs& a, int segment, int output, int row, float4 y, float4 up) {
    finish(a, segment, output, row, y.x, up.x);
    finish(a, segment, output + 1, row, y.y, up.y);
    finish(a, segment, output + 2, row, y.z, up.z);
    finish(a, segment, output + 3, row, y.w, up.w);
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

// Pairs of blocks that a warp of `linear_few` has loaded ahead.
constexpr int DEPTH = FORMAT == W4 ? 4 : FORMAT == W_F32 ? 1 : 2;

// A normalised row whose quads are in the registers of the first eight warps: norm weights are read before x is there.
struct RowInRegisters {
    static constexpr int QUADS = 4, THREADS = SUB_SUMS * WARP;
    float4 weight[QUADS];

    __device__ __forceinline__ static bool fits(const LinearArgs& a, int warps) {
        int most = warps < SUB_SUMS ? warps * WARP : QUADS * THREADS;
        return a.norm && a.rows == 1 && a.k % 4 == 0 && a.pairs * 16 <= most;
    }

    __device__ __forceinline__ static float4 load(const LinearArgs& a, const float* from, int i) {
        int quad = threadIdx.x + i * THREADS;
        return threadIdx.x < THREADS && 4 * quad < a.k ? ((const float4*)from)[quad] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    __device__ __forceinline__ void load_weight(const LinearArgs& a) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) weight[i] = load(a, a.norm, i);
    }

    // The same sums as `inverse_rms`, in the same order.
    __device__ __forceinline__ void stage(const LinearArgs& a, const Staged& x, float* squares) const {
        float4 v[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; i++) v[i] = load(a, a.x, i);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < QUADS; i++) sum = add_squares(v[i], sum);
        sum = warp_sum(sum);
        if (threadIdx.x % WARP == 0 && threadIdx.x < THREADS) squares[threadIdx.x / WARP] = sum;
        if (threadIdx.x < SUB_SUMS && threadIdx.x >= blockDim.x / WARP) squares[threadIdx.x] = 0.0f;
        __syncthreads();
        float inverse = inverse_of(squares, a.k, a.eps);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int quad = threadIdx.x + i * THREADS;
            if (threadIdx.x >= THREADS || quad >= a.pairs * 16) break;
            float y[4] = {v[i].x * inverse * weight[i].x, v[i].y * inverse * weight[i].y, v[i].z * inverse * weight[i].z,
                          v[i].w * inverse * weight[i].w};
            x.put(x.base, 0, quad, y);
        }
    }
};

// Up to eight rows. Shared memory: [8][8] sums of squares, two times [warps][rows][16] sums, staged rows.
extern "C" __global__ void __launch_bounds__(512, 1) linear_few(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(128) float shared[];
    int warp = threadIdx.x / WARP, warps = blockDim.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int range = warp % a.ranges, side = warp / a.ranges, rows = a.rows;
    float* squares = shared;
    float* all_sums = shared + 8 * SUB_SUMS;
    Staged x = {(u8*)(all_sums + 2 * warps * 16 * rows), a.pairs * XP * 128, XP * 128, 128, 0};

    // Weights are read while the kernel that computes x ends.
    let_next_start();
    int first = range * a.pairs_per_range, last = min(first + a.pairs_per_range, a.pairs);
    Slot slots[DEPTH];
    Place place = place_of(a, blockIdx.x);
    if (a.gated) place.segment = side, place.tile = blockIdx.x;
    Weights weights(a, place);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        if (first + i < last) weights.load(slots[i], first + i, lane);
    }
    if (RowInRegisters::fits(a, warps)) {
        RowInRegisters row;
        row.load_weight(a);
        wait_for_previous();
        row.stage(a, x, squares);
    } else {
        wait_for_previous();
        if (a.norm) {
            for (int i = warp; i < rows * SUB_SUMS; i += warps) {
                float sum = warp_sum(sub_sum(a.x + (long long)(i / SUB_SUMS) * a.k, a.k, i % SUB_SUMS, lane));
                if (lane == 0) squares[i] = sum;
            }
            __syncthreads();
        }
        for (int row = 0; row < rows; row++) {
            float inverse = a.norm ? inverse_of(squares + row * SUB_SUMS, a.k, a.eps) : 1.0f;
#pragma unroll 4
            for (int quad = threadIdx.x; quad < a.pairs * 16; quad += blockDim.x) {
                float v[4];
                load_quad(a, a.x + (long long)row * a.k, quad, inverse, v);
                x.put(x.base + row * x.row_stride, row, quad, v);
            }
        }
    }
    __syncthreads();
    const u8* mine = x.base + g * x.row_stride;
    bool valid = g < rows;
    int turn = 0;
    for (int work = blockIdx.x; work < a.tiles; work += gridDim.x) {
        int tile = place.tile, segment = place.segment;
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
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
        // The next tile's first weights.
        if (work + gridDim.x < a.tiles) {
            place = place_of(a, work + gridDim.x);
            if (a.gated) place.segment = side, place.tile = work + gridDim.x;
            weights = Weights(a, place);
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
                if (first + i < last) weights.load(slots[i], first + i, lane);
            }
        }
        // Sums of the ranges: [warp][row of x][16]. The next tile's lie in the other buffer: these may still be read when its
        // first warp comes.
        float* sums = all_sums + (turn ? warps * 16 * rows : 0);
        turn ^= 1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = 2 * t + i % 2;
            if (row < rows) sums[(warp * rows + row) * 16 + g + i / 2 * 8] = total[i];
        }
        __syncthreads();
        for (int e = threadIdx.x; e < 16 * rows; e += blockDim.x) {
            float y = 0.0f, up = 0.0f;
#pragma unroll 4
            for (int r = 0; r < a.ranges; r++) y += sums[r * 16 * rows + e];
            if (a.gated) {
#pragma unroll 4
                for (int r = 0; r < a.ranges; r++) up += sums[(a.ranges + r) * 16 * rows + e];
            }
            finish(a, a.gated ? 0 : segment, tile * 16 + e % 16, e / 16, y, up);
        }
    }
}

// Staged rows, 32 for each block in y. A warp for each range of two tiles: neighbours, or those of the gate and of what it
// gates. Shared memory: [ranges][2][32][16] sums.
extern "C" __global__ void __launch_bounds__(256, 1) linear_several(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(128) float shared[];
    constexpr int NT = 4, COLUMNS = 8 * NT;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int first = warp * a.pairs_per_range, last = min(first + a.pairs_per_range, a.pairs);
    int unit = blockIdx.x * (a.gated ? 1 : 2), row0 = blockIdx.y * COLUMNS;
    Place places[2];
    bool valid[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        valid[m] = (a.gated ? unit : unit + m) < a.tiles;
        places[m] = place_of(a, a.gated || !valid[m] ? unit : unit + m);
        if (a.gated) places[m].segment = m, places[m].tile = unit;
    }
    Weights weights[2] = {Weights(a, places[0]), Weights(a, places[1])};
    // The next pair's weights are loaded while a pair is multiplied, except where they would fill the registers.
    constexpr bool AHEAD = FORMAT <= W8;
    Slot ahead[2];
    let_next_start();
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (AHEAD && first < last) weights[m].load(ahead[m], first, lane);
    }
    wait_for_previous();
    long long octet = (long long)a.pairs * XP * 1024;
    const u8* x = a.staged + row0 / 8 * octet + g * 128;
    int octets = min(NT, (a.rows - row0 + 7) / 8);
    float total[2][NT][4];
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) (&total[0][0][0])[i] = 0.0f;
    for (int pair = first; pair < last; pair++) {
        Slot slot[2];
#pragma unroll
        for (int m = 0; m < 2; m++) {
            if (AHEAD) {
                slot[m] = ahead[m];
                if (pair + 1 < last) weights[m].load(ahead[m], pair + 1, lane);
            } else {
                weights[m].load(slot[m], pair, lane);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint4 parts[NT][XP];
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const u8* from = x + i * octet + (long long)pair * XP * 1024 + half_of_pair(g, t, h);
#pragma unroll
                for (int p = 0; p < XP; p++) {
                    parts[i][p] = i < octets ? *(const uint4*)(from + p * 1024) : make_uint4(0, 0, 0, 0);
                }
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int s = 2 * h; s < 2 * h + 2; s++) {
                    u32 w[WP][4];
                    fragment(slot[m], s, w);
#pragma unroll
                    for (int i = 0; i < NT; i++) add_step(total[m][i], w, parts[i], s);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int i = 0; i < NT; i++) {
            float* to = shared + ((warp * 2 + m) * COLUMNS + i * 8 + 2 * t) * 16 + g;
            to[0] = total[m][i][0];
            to[16] = total[m][i][1];
            to[8] = total[m][i][2];
            to[24] = total[m][i][3];
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < 2 * COLUMNS * 16; e += blockDim.x) {
        int m = e / (COLUMNS * 16), output = places[m].tile * 16 + e % 16, row = row0 + e / 16 % COLUMNS;
        if (!valid[m] || (a.gated && m == 1)) continue;
        float y = 0.0f, up = 0.0f;
        for (int r = 0; r < a.ranges; r++) y += shared[r * 2 * COLUMNS * 16 + e];
        if (a.gated) {
            for (int r = 0; r < a.ranges; r++) up += shared[(r * 2 + 1) * COLUMNS * 16 + e];
        }
        finish(a, places[m].segment, output, row, y, up);
    }
}

constexpr int MANY_TILES = 8, MANY_ROWS = 128;
constexpr int MANY_THREADS = 256;
constexpr int X_BYTES = MANY_ROWS * 128 * XP;

// The stride of rows of a block's sums, in which outputs lie next to each other as they do in the result.
constexpr int OUTPUTS = MANY_TILES * 16, STRIDE = OUTPUTS + 4;

// The tile in place `i` of a block: neighbours, or gates and what they gate in turn.
__device__ __forceinline__ Place many_place(const LinearArgs& a, int unit0, int i) {
    Place place = {i % 2, unit0 + i / 2};
    return a.gated ? place : place_of(a, unit0 + i);
}

// Stores the sums of a block: four outputs for each thread, of every row that its warp takes.
__device__ __forceinline__ void store_block(const LinearArgs& a, const float* sums, int row0, int unit0) {
    constexpr int WARPS = MANY_THREADS / WARP;
    int warp = threadIdx.x / WARP;
    int quad = threadIdx.x % WARP, tile = quad / 4, unit = unit0 + (a.gated ? tile / 2 : tile);
    if (unit >= a.tiles || (a.gated && tile % 2 == 1)) return;
    Place place = many_place(a, unit0, tile);
    const Segment& segment = a.segments[place.segment];
    int output = place.tile * 16 + quad % 4 * 4;
    bool plain = !segment.bias && !a.gated && a.activation == ACT_NONE;
    bool vector = segment.n % 4 == 0 && output < segment.n && (plain || (a.gated && !segment.bias && !a.segments[1].bias));
    constexpr int AHEAD = 4;
    for (int i0 = 0; i0 < MANY_ROWS / WARPS; i0 += AHEAD) {
        float4 y[AHEAD], up[AHEAD], residual[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int row = warp + (i0 + i) * WARPS;
            const float* sum = sums + row * STRIDE + quad * 4;
            y[i] = *(const float4*)sum;
            up[i] = residual[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (a.gated) up[i] = *(const float4*)(sum + 16);
            if (vector && a.residual && row0 + row < a.rows) {
                residual[i] = *(const float4*)(a.residual + (long long)(row0 + row) * segment.n + output);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int row = row0 + warp + (i0 + i) * WARPS;
            if (row >= a.rows) continue;
            if (!vector) {
                finish_quad(a, place.segment, output, row, y[i], up[i]);
                continue;
            }
            if (a.gated) {
                y[i].x = activate(a.activation, y[i].x) * up[i].x;
                y[i].y = activate(a.activation, y[i].y) * up[i].y;
                y[i].z = activate(a.activation, y[i].z) * up[i].z;
                y[i].w = activate(a.activation, y[i].w) * up[i].w;
            }
            if (a.residual) {
                y[i].x = residual[i].x + y[i].x;
                y[i].y = residual[i].y + y[i].y;
                y[i].z = residual[i].z + y[i].z;
                y[i].w = residual[i].w + y[i].w;
            }
            *(float4*)(segment.out + (long long)row * segment.n + output) = y[i];
        }
    }
}

// A block of Hopper's: warps multiply with `wgmma`, which reads x from shared memory itself.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LINEAR_FORMAT <= W8_GROUPS

// d = a b, or d += a b: 64 outputs of four warps, 128 rows, 16 products each.
__device__ __forceinline__ void group_product(float d[16][4], const u32 a[4], u64 b, int add) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
        : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]), "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]), "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]), "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Each warp has one of the eight tiles and all 128 rows. Shared memory: a ring of four stages of two pairs of blocks each, the
// rows of all stages first.
extern "C" __global__ void __launch_bounds__(256, 1) linear_many(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(1024) u8 unaligned[];
    __shared__ const u8* bases[MANY_TILES][2];
    constexpr int RING = 4, W_BYTES = MANY_TILES * (CODE_BYTES + SCALE_BYTES);
    u8* ring = unaligned + (-(u32)__cvta_generic_to_shared(unaligned) & 1023);
    u8* weight_ring = ring + RING * 2 * X_BYTES;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int row0 = blockIdx.x * MANY_ROWS, unit0 = blockIdx.y * (a.gated ? MANY_TILES / 2 : MANY_TILES);
    // Tiles and rows that are not there are loaded as others, and their results are not stored.
    if (threadIdx.x < MANY_TILES) {
        int last = a.gated ? 2 * (a.tiles - unit0) - 1 : a.tiles - 1 - unit0;
        Place place = many_place(a, unit0, min((int)threadIdx.x, last));
        const Segment& s = a.segments[place.segment];
        long long pair = (long long)place.tile * a.pairs;
        bases[threadIdx.x][0] = s.codes + pair * CODE_BYTES;
        bases[threadIdx.x][1] = s.scales + pair * SCALE_BYTES;
    }
    begin();
    __syncthreads();
    constexpr int X_CHUNKS = X_BYTES / 16 / 256;
    int octet = a.pairs * 1024, octets = min(MANY_ROWS / 8, (a.rows - row0 + 7) / 8);
    const u8* x = a.staged + (long long)(row0 / 8) * octet;
    int offsets[X_CHUNKS];
#pragma unroll
    for (int i = 0; i < X_CHUNKS; i++) {
        int chunk = i * 256 + threadIdx.x;
        offsets[i] = min(chunk / 64, octets - 1) * octet + chunk % 64 * 16;
    }
    int groups = (a.pairs + 1) / 2;
    auto load_stage = [&](int group) {
#pragma unroll
        for (int in = 0; in < 2; in++) {
            int pair = group * 2 + in;
            if (pair >= a.pairs) break;
            u8* to = ring + (group % RING * 2 + in) * X_BYTES;
            const u8* rows = x + (long long)pair * 1024;
#pragma unroll
            for (int i = 0; i < X_CHUNKS; i++) copy_async(to + (i * 256 + threadIdx.x) * 16, rows + offsets[i]);
            to = weight_ring + (group % RING * 2 + in) * W_BYTES;
#pragma unroll
            for (int i = 0; i < MANY_TILES * CODE_BYTES / 16 / 256; i++) {
                int chunk = i * 256 + threadIdx.x;
                const u8* from = bases[chunk / (CODE_BYTES / 16)][0] + chunk % (CODE_BYTES / 16) * 16;
                copy_async(to + chunk * 16, from + (long long)pair * CODE_BYTES);
            }
            to += MANY_TILES * CODE_BYTES;
            if (threadIdx.x < MANY_TILES * SCALE_BYTES / 16) {
                const u8* from = bases[threadIdx.x / (SCALE_BYTES / 16)][1] + threadIdx.x % (SCALE_BYTES / 16) * 16;
                copy_async(to + threadIdx.x * 16, from + (long long)pair * SCALE_BYTES);
            }
        }
        commit_copies();
    };
    float acc[16][4], total[16][4];
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i / 4][i % 4] = total[i / 4][i % 4] = 0.0f;
    load_stage(0);
    load_stage(1);
    // Rows of 128 bytes with exchanged parts of 16 bytes, 1,024 bytes for eight rows.
    u64 layout = 1ull << 62 | 64ull << 32 | 1ull << 16;
    u32 ring_address = (u32)__cvta_generic_to_shared(ring);
    int in_range = 0;
    u32 w[2][4][1][4];
#pragma unroll
    for (int i = 0; i < 32; i++) w[i / 16][i / 4 % 4][0][i % 4] = 0;
    for (int group = 0; group < groups; group++) {
        wait_for_copies<1>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        // The stage that this takes was multiplied before the last barrier.
        load_stage(group + 2);
#pragma unroll
        for (int in = 0; in < 2; in++) {
            if (group * 2 + in >= a.pairs) break;
            int stage = group % RING * 2 + in;
            const u8* codes = weight_ring + stage * W_BYTES + warp * CODE_BYTES + lane * CODE_WORDS * 4;
            const u8* scales = weight_ring + stage * W_BYTES + MANY_TILES * CODE_BYTES + warp * SCALE_BYTES;
            Slot slot;
            slot.load(codes, scales + g * scale_bytes(FORMAT));
#pragma unroll
            for (int s = 0; s < 4; s++) fragment(slot, s, w[in][s]);
            u32 address = ring_address + stage * X_BYTES;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int s = 0; s < 4; s++) {
                group_product(acc, w[in][s][0], layout | (address + s * 32 & 0x3ffff) >> 4, in_range > 0 || s > 0);
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (++in_range == a.pairs_per_range || group * 2 + in + 1 == a.pairs) {
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                in_range = 0;
#pragma unroll
                for (int i = 0; i < 64; i++) total[i / 4][i % 4] += acc[i / 4][i % 4];
            } else {
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            }
            // The weights of the pair before this one were in use until now.
#pragma unroll
            for (int i = 0; i < 16; i++) asm volatile("" : "+r"(w[in ^ 1][i / 4][0][i % 4]));
        }
    }
    float* sums = (float*)ring;
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; i++) {
        int row = i / 4 * 8 + 2 * t + i % 2;
        sums[row * STRIDE + warp * 16 + g + i / 2 % 2 * 8] = total[i / 4][i % 4];
    }
    __syncthreads();
    store_block(a, sums, row0, unit0);
}

#else

// Stages of the ring of `linear_many` and pairs of blocks of a stage, as `ring_pairs` in Rust has them.
constexpr int GROUP = XP == 1 ? 2 : 1, STAGES = XP == 3 ? 2 : 3;
constexpr int STAGED_PAIR_BYTES = X_BYTES + MANY_TILES * (CODE_BYTES + SCALE_BYTES);

// Staged rows, 128 for each block in x, and eight tiles of outputs for each block in y: neighbours, or gates and what they
// gate in turn. Each of the eight warps has two of the tiles and 64 rows. Shared memory: a ring of stages, each some pairs of
// blocks of the rows, the codes and the scales.
extern "C" __global__ void __launch_bounds__(MANY_THREADS, 1) linear_many(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(128) u8 ring[];
    __shared__ const u8* bases[MANY_TILES][2];
    // Fragments of x are loaded for LOT times eight rows, while those before them are multiplied.
    constexpr int NT = MANY_ROWS / (MANY_THREADS / 4 / WARP * 8), LOT = XP == 1 ? NT / 2 : 2, LOTS = 2 * NT / LOT;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int row0 = blockIdx.x * MANY_ROWS, unit0 = blockIdx.y * (a.gated ? MANY_TILES / 2 : MANY_TILES);
    // Tiles and rows that are not there are loaded as others, and their results are not stored.
    if (threadIdx.x < MANY_TILES) {
        int last = a.gated ? 2 * (a.tiles - unit0) - 1 : a.tiles - 1 - unit0;
        Place place = many_place(a, unit0, min((int)threadIdx.x, last));
        const Segment& s = a.segments[place.segment];
        long long pair = (long long)place.tile * a.pairs;
        bases[threadIdx.x][0] = s.codes + pair * CODE_BYTES;
        bases[threadIdx.x][1] = s.scales + pair * SCALE_BYTES;
    }
    begin();
    __syncthreads();
    constexpr int X_CHUNKS = X_BYTES / 16 / MANY_THREADS;
    int octet = a.pairs * XP * 1024, octets = min(MANY_ROWS / 8, (a.rows - row0 + 7) / 8);
    const u8* x = a.staged + (long long)(row0 / 8) * octet;
    int offsets[X_CHUNKS];
#pragma unroll
    for (int i = 0; i < X_CHUNKS; i++) {
        int chunk = i * MANY_THREADS + threadIdx.x;
        offsets[i] = min(chunk / (64 * XP), octets - 1) * octet + chunk % (64 * XP) * 16;
    }
    auto load_pair = [&](int pair, u8* to) {
        const u8* rows = x + (long long)pair * (XP * 1024);
#pragma unroll
        for (int i = 0; i < X_CHUNKS; i++) copy_async(to + (i * MANY_THREADS + threadIdx.x) * 16, rows + offsets[i]);
        to += X_BYTES;
#pragma unroll
        for (int i = 0; i < MANY_TILES * CODE_BYTES / 16 / MANY_THREADS; i++) {
            int chunk = i * MANY_THREADS + threadIdx.x;
            const u8* from = bases[chunk / (CODE_BYTES / 16)][0] + chunk % (CODE_BYTES / 16) * 16;
            copy_async(to + chunk * 16, from + (long long)pair * CODE_BYTES);
        }
        to += MANY_TILES * CODE_BYTES;
        if (SCALE_BYTES > 0 && threadIdx.x < MANY_TILES * SCALE_BYTES / 16) {
            constexpr int EACH = SCALE_BYTES > 0 ? SCALE_BYTES / 16 : 1;
            const u8* from = bases[threadIdx.x / EACH][1] + threadIdx.x % EACH * 16;
            copy_async(to + threadIdx.x * 16, from + (long long)pair * SCALE_BYTES);
        }
    };
    int groups = (a.pairs + GROUP - 1) / GROUP;
    auto load_stage = [&](int group) {
        if (group < groups) {
            u8* to = ring + group % STAGES * (GROUP * STAGED_PAIR_BYTES);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (group * GROUP + i < a.pairs) load_pair(group * GROUP + i, to + i * STAGED_PAIR_BYTES);
            }
        }
        commit_copies();
    };
    float acc[2][NT][4], total[2][NT][4];
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) (&acc[0][0][0])[i] = (&total[0][0][0])[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) load_stage(i);
    int tile0 = warp % 4 * 2, left = a.pairs_per_range;
    // Where this lane's fragments of the first eight rows are in a pair.
    int mine = warp / 4 * NT * (XP * 1024) + g * 128;
    for (int group = 0; group < groups; group++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        load_stage(group + STAGES - 1);
#pragma unroll
        for (int in = 0; in < GROUP; in++) {
            if (group * GROUP + in >= a.pairs) break;
            const u8* pair = ring + group % STAGES * (GROUP * STAGED_PAIR_BYTES) + in * STAGED_PAIR_BYTES;
            Slot slots[2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const u8* codes = pair + X_BYTES + (tile0 + m) * CODE_BYTES + lane * CODE_WORDS * 4;
                const u8* scales = pair + X_BYTES + MANY_TILES * CODE_BYTES + (tile0 + m) * SCALE_BYTES;
                slots[m].load(codes, scales + g * scale_bytes(FORMAT));
            }
            uint4 parts[2][LOT][XP];
            auto load_lot = [&](int l) {
                int h = l / (LOTS / 2), i0 = l % (LOTS / 2) * LOT;
                const u8* from = pair + mine + i0 * (XP * 1024) + half_of_pair(g, t, h);
#pragma unroll
                for (int i = 0; i < LOT * XP; i++) parts[l % 2][i / XP][i % XP] = *(const uint4*)(from + i * 1024);
            };
            // Weights of one part are there for both halves.
            constexpr int KEPT = WP == 1 ? 2 : 1;
            u32 w[KEPT][2][2][WP][4];
            auto load_weights = [&](int h) {
#pragma unroll
                for (int i = 0; i < 4; i++) fragment(slots[i / 2], 2 * h + i % 2, w[h % KEPT][i / 2][i % 2]);
            };
            load_lot(0);
            load_weights(0);
#pragma unroll
            for (int l = 0; l < LOTS; l++) {
                int h = l / (LOTS / 2), i0 = l % (LOTS / 2) * LOT;
                if (l + 1 < LOTS) load_lot(l + 1);
                if (l + KEPT - 1 == LOTS / 2) load_weights(1);
#pragma unroll
                for (int s = 0; s < 2; s++) {
#pragma unroll
                    for (int i = 0; i < LOT * 2; i++) add_step(acc[i % 2][i0 + i / 2], w[h % KEPT][i % 2][s], parts[l % 2][i / 2], s);
                }
            }
            if (--left == 0 || group * GROUP + in + 1 == a.pairs) {
                left = a.pairs_per_range;
#pragma unroll
                for (int i = 0; i < 2 * NT * 4; i++) {
                    (&total[0][0][0])[i] += (&acc[0][0][0])[i];
                    (&acc[0][0][0])[i] = 0.0f;
                }
            }
        }
    }
    // The sums of the block: [rows][outputs], outputs next to each other as they are in the result.
    float* sums = (float*)ring;
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) {
        int m = i / 4 % 2, n = i / 8, e = i % 4, row = (warp / 4 * NT + n) * 8 + 2 * t + e % 2;
        sums[row * STRIDE + (tile0 + m) * 16 + g + e / 2 * 8] = total[m][n][e];
    }
    __syncthreads();
    store_block(a, sums, row0, unit0);
}

#endif
