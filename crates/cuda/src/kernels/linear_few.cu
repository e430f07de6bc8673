// Products of few and of several rows, and the staging of rows for several and many.

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
    load_first(slots, weights, first, last, lane);
    constexpr int QUADS = 4;
    if (RowInRegisters<QUADS>::fits(a, warps)) {
        RowInRegisters<QUADS> row;
        row.load_weight(a, threadIdx.x);
        wait_for_previous();
        float4 v[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; i++) v[i] = row.load(a, a.x, threadIdx.x, i);
        row.stage(a, v, x, squares, threadIdx.x);
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
    int turn = 0;
    for (int work = blockIdx.x; work < a.tiles; work += gridDim.x) {
        int tile = place.tile, segment = place.segment;
        float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        multiply_range(total, slots, weights, x, first, last, g < rows, lane);
        // The next tile's first weights.
        if (work + gridDim.x < a.tiles) {
            place = place_of(a, work + gridDim.x);
            if (a.gated) place.segment = side, place.tile = work + gridDim.x;
            weights = Weights(a, place);
            load_first(slots, weights, first, last, lane);
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
            store_element(a, a.gated ? 0 : segment, tile * 16 + e % 16, e / 16, y, up);
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
    constexpr bool PREFETCHES = FORMAT <= W8;
    Slot prefetched[2];
    let_next_start();
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (PREFETCHES && first < last) weights[m].load(prefetched[m], first, lane);
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
            if (PREFETCHES) {
                slot[m] = prefetched[m];
                if (pair + 1 < last) weights[m].load(prefetched[m], pair + 1, lane);
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
        store_element(a, places[m].segment, output, row, y, up);
    }
}

