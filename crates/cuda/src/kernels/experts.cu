
// Products of rows with the experts that they chose, and the staging of the rows between them.
//
// The matrices of all experts lie below each other in one packed weight, so an expert's first and last tile may hold rows of its
// neighbours, which are not stored. Elements are summed as in `linear_several`.

struct ExpertArgs {
    // Segments have as many rows as one expert; `tiles` are the most tiles that an expert's rows lie in.
    LinearArgs linear;
    ExpertLists lists;
    // The staged row of a pair is `pair / slots`; its result is the pair's.
    int slots, unused;
};

// A chunk of an expert's pairs in each block in y. A warp for each range of two tiles. Shared memory: [ranges][2][8 NT][16] sums.
template <int NT>
__device__ __forceinline__ void multiply_experts(const ExpertArgs& e, float* shared) {
    constexpr int COLUMNS = 8 * NT;
    begin();
    const LinearArgs& a = e.linear;
    if (blockIdx.y >= *e.lists.chunk_count) return;
    const ExpertChunk chunk = e.lists.chunks[blockIdx.y];
    const u32* pairs = e.lists.pairs + chunk.first;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int first = warp * a.pairs_per_range, last = min(first + a.pairs_per_range, a.pairs);
    Place places[2];
    bool valid[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        int unit = blockIdx.x * 2 + m;
        valid[m] = unit < a.count * a.tiles;
        places[m].segment = valid[m] ? unit / a.tiles : 0;
        long long row = (long long)chunk.expert * a.segments[places[m].segment].n, end = row + a.segments[places[m].segment].n;
        int tile = (int)(row / 16) + (valid[m] ? unit % a.tiles : 0);
        valid[m] = valid[m] && tile < (int)((end + 15) / 16);
        places[m].tile = valid[m] ? tile : (int)(row / 16);
    }
    Weights weights[2] = {Weights(a, places[0]), Weights(a, places[1])};
    // The next pair's weights are loaded while a pair is multiplied, except where they would fill the registers.
    constexpr bool PREFETCHES = FORMAT <= W8;
    Slot prefetched[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (PREFETCHES && first < last) weights[m].load(prefetched[m], first, lane);
    }
    // The staged rows of this lane's columns.
    const u8* x[NT];
    int odd[NT];
#pragma unroll
    for (int i = 0; i < NT; i++) {
        int column = i * 8 + g;
        x[i] = nullptr, odd[i] = 0;
        if (column < (int)chunk.count) {
            long long row = pairs[column] / e.slots;
            x[i] = a.staged + row / 8 * a.pairs * XP * 1024 + row % 8 * 128;
            odd[i] = (int)(row & 1);
        }
    }
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
                const u8* from = x[i] + (long long)pair * XP * 1024 + half_of_pair(odd[i], t, h);
#pragma unroll
                for (int p = 0; p < XP; p++) {
                    parts[i][p] = x[i] != nullptr ? *(const uint4*)(from + p * 1024) : make_uint4(0, 0, 0, 0);
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
#pragma unroll
    for (int m = 0; m < 2; m++) {
        if (!valid[m]) continue;
        const Segment& s = a.segments[places[m].segment];
        for (int i = threadIdx.x; i < COLUMNS * 16; i += blockDim.x) {
            int column = i / 16;
            // An output of the expert; the tile may begin before its first and end behind its last.
            long long output = (long long)places[m].tile * 16 + i % 16 - (long long)chunk.expert * s.n;
            if (column >= (int)chunk.count || output < 0 || output >= s.n) continue;
            float y = 0.0f;
            for (int r = 0; r < a.ranges; r++) y += shared[(r * 2 + m) * COLUMNS * 16 + i];
            if (s.bias) y += s.bias[(long long)chunk.expert * s.n + output];
            s.out[(long long)pairs[column] * s.n + output] = y;
        }
    }
}

// Chunks of up to 8 pairs.
extern "C" __global__ void __launch_bounds__(256, 1) experts_few(const __grid_constant__ ExpertArgs a) {
    extern __shared__ __align__(128) float shared[];
    multiply_experts<1>(a, shared);
}

// Chunks of up to 32 pairs.
extern "C" __global__ void __launch_bounds__(256, 1) experts_several(const __grid_constant__ ExpertArgs a) {
    extern __shared__ __align__(128) float shared[];
    multiply_experts<4>(a, shared);
}

// Numbered as `gate_code` in Rust numbers it; other numbers are those of activations.
#define GATE_CLAMPED_SWISH 255

struct GatedRowsArgs {
    const float* gate;
    const float* up;
    u8* staged;
    int rows, k, pairs, function;
    // Of the clamped swish.
    float alpha, limit;
};

__device__ __forceinline__ float gated(const GatedRowsArgs& a, float gate, float up) {
    if (a.function != GATE_CLAMPED_SWISH) return activate(a.function, gate) * up;
    gate = fminf(gate, a.limit);
    up = fminf(fmaxf(up, -a.limit), a.limit);
    return gate / (1.0f + expf(-a.alpha * gate)) * (up + 1.0f);
}

// Gates rows and stages them as `stage_rows` does, a block for each row. Rows of pairs that do not exist are staged, too, whatever
// they hold; nothing reads them.
extern "C" __global__ void __launch_bounds__(256) stage_gated_rows(const __grid_constant__ GatedRowsArgs a) {
    begin();
    int row = blockIdx.x;
    Staged x = {a.staged, 128, XP * 1024, 1024, 0};
    u8* at = x.base + (long long)(row / 8) * a.pairs * x.pair_stride + row % 8 * 128;
    const float *gate = a.gate + (long long)row * a.k, *up = a.up + (long long)row * a.k;
    for (int quad = threadIdx.x; quad < a.pairs * 16; quad += blockDim.x) {
        float v[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = 4 * quad + e;
            v[e] = row < a.rows && column < a.k ? gated(a, gate[column], up[column]) : 0.0f;
        }
        x.put(at, row, quad, v);
    }
}
