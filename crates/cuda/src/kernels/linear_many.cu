constexpr int MANY_TILES = 8, MANY_ROWS = 128;
constexpr int MANY_THREADS = 256;
constexpr int X_BYTES = MANY_ROWS * 128 * XP;

// The stride of rows of a block's sums, in which outputs lie next to each other as they do in the result.
constexpr int OUTPUTS = MANY_TILES * 16, STRIDE = OUTPUTS + 4;

// Tile `i` of a block: tiles are consecutive, or gate and up tiles alternate.
__device__ __forceinline__ Place many_place(const LinearArgs& a, int unit0, int i) {
    Place place = {i % 2, unit0 + i / 2};
    return a.gated ? place : place_of(a, unit0 + i);
}

// Rows of a block that a warp stores at a time.
constexpr int STORED_ROWS = 8;

// Stores the sums of a block of a gated product: two outputs for each thread, of every row that its warp takes.
__device__ __forceinline__ void store_gated(const LinearArgs& a, const float* sums, int row0, int unit0) {
    constexpr int WARPS = MANY_THREADS / WARP;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, unit = unit0 + lane / 8, output = unit * 16 + lane % 8 * 2;
    const Segment& segment = a.segments[0];
    if (unit >= a.tiles) return;
    bool vector = segment.n % 2 == 0 && output < segment.n && !segment.bias && !a.segments[1].bias && !a.residual;
    for (int i0 = 0; i0 < MANY_ROWS / WARPS; i0 += STORED_ROWS) {
        float2 y[STORED_ROWS], up[STORED_ROWS];
#pragma unroll
        for (int i = 0; i < STORED_ROWS; i++) {
            const float* sum = sums + (warp + (i0 + i) * WARPS) * STRIDE + lane / 8 * 32 + lane % 8 * 2;
            y[i] = *(const float2*)sum;
            up[i] = *(const float2*)(sum + 16);
        }
#pragma unroll
        for (int i = 0; i < STORED_ROWS; i++) {
            int row = row0 + warp + (i0 + i) * WARPS;
            if (row >= a.rows) continue;
            if (!vector) {
                store_element(a, 0, output, row, y[i].x, up[i].x);
                store_element(a, 0, output + 1, row, y[i].y, up[i].y);
                continue;
            }
            y[i].x = activate(a.activation, y[i].x) * up[i].x;
            y[i].y = activate(a.activation, y[i].y) * up[i].y;
            *(float2*)(segment.out + (long long)row * segment.n + output) = y[i];
        }
    }
}

// Stores the sums of a block: four outputs for each thread, of every row that its warp takes.
__device__ __forceinline__ void store_block(const LinearArgs& a, const float* sums, int row0, int unit0) {
    constexpr int WARPS = MANY_THREADS / WARP;
    if (a.gated) return store_gated(a, sums, row0, unit0);
    int warp = threadIdx.x / WARP, quad = threadIdx.x % WARP, tile = quad / 4;
    if (unit0 + tile >= a.tiles) return;
    Place place = many_place(a, unit0, tile);
    const Segment& segment = a.segments[place.segment];
    int output = place.tile * 16 + quad % 4 * 4;
    bool vector = segment.n % 4 == 0 && output < segment.n && !segment.bias && a.activation == ACT_NONE;
    for (int i0 = 0; i0 < MANY_ROWS / WARPS; i0 += STORED_ROWS) {
        float4 y[STORED_ROWS], residual[STORED_ROWS];
#pragma unroll
        for (int i = 0; i < STORED_ROWS; i++) {
            int row = warp + (i0 + i) * WARPS;
            y[i] = *(const float4*)(sums + row * STRIDE + quad * 4);
            residual[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (vector && a.residual && row0 + row < a.rows) {
                residual[i] = *(const float4*)(a.residual + (long long)(row0 + row) * segment.n + output);
            }
        }
#pragma unroll
        for (int i = 0; i < STORED_ROWS; i++) {
            int row = row0 + warp + (i0 + i) * WARPS;
            if (row >= a.rows) continue;
            if (!vector) {
                store_quad(a, place.segment, output, row, y[i]);
                continue;
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
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && LINEAR_FORMAT <= W_F16

#define D4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define GROUP_PRODUCT(TYPE)                                                                                                    \
    asm volatile(                                                                                                              \
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                                          \
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                                           \
        " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"     \
        "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"     \
        "%58,%59,%60,%61,%62,%63}, {%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"                                                    \
        : D4(0), D4(1), D4(2), D4(3), D4(4), D4(5), D4(6), D4(7), D4(8), D4(9), D4(10), D4(11), D4(12), D4(13), D4(14), D4(15) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

// d = a b, or d += a b: 64 outputs of four warps, 128 rows, 16 products each.
__device__ __forceinline__ void group_product(float d[16][4], const u32 a[4], u64 b, int add) {
    if (HALF) {
        GROUP_PRODUCT("f16");
    } else {
        GROUP_PRODUCT("bf16");
    }
}

// Blocks of a cluster: neighbours in y, which multiply the same rows. Each copies a part of the rows to all of them.
constexpr int CLUSTER = 2;

// Stages of the rings of rows and of weights, as in `products.rs`.
constexpr int X_RING = 5, W_RING = FORMAT == W4 ? 5 : FORMAT == W8_GROUPS ? 2 : 3;

// Eight warps multiply, each one of eight tiles with all 128 rows. A ninth copies rows to a ring in shared memory and a tenth copies
// weights to another one; a stage is two pairs of weight blocks, or one pair where x has two parts. Two further warps complete the group
// of four that gives its registers to those that multiply.
extern "C" __global__ void __cluster_dims__(1, CLUSTER, 1) __launch_bounds__(MANY_THREADS + 4 * WARP, 1)
    linear_many(const __grid_constant__ LinearArgs a) {
    extern __shared__ __align__(1024) u8 unaligned[];
    __shared__ __align__(8) u64 barriers[2 * (X_RING + W_RING)];
    constexpr int STAGE_PAIRS = XP == 1 ? 2 : 1, MULTIPLYING = MANY_THREADS / WARP;
    // Bytes of rows, of codes and of weights in a stage.
    constexpr int X_STAGE = STAGE_PAIRS * X_BYTES, CODE_STAGE = MANY_TILES * STAGE_PAIRS * CODE_BYTES;
    constexpr int W_STAGE = CODE_STAGE + MANY_TILES * STAGE_PAIRS * SCALE_BYTES;
    u8* ring = unaligned + (-(u32)__cvta_generic_to_shared(unaligned) & 1023);
    u32 x_ring = (u32)__cvta_generic_to_shared(ring);
    // A stage is full when its bytes have arrived. Rows are empty when all warps of the cluster have read them, weights when all warps
    // of the block have.
    u32 x_full = (u32)__cvta_generic_to_shared(barriers), x_empty = x_full + X_RING * 8;
    u32 w_full = x_empty + X_RING * 8, w_empty = w_full + W_RING * 8;
    // `wgmma` must not lie on a path that the compiler takes for divergent.
    int warp = __shfl_sync(FULL_MASK, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int row0 = blockIdx.x * MANY_ROWS, unit0 = blockIdx.y * (a.gated ? MANY_TILES / 2 : MANY_TILES);
    int groups = (a.pairs + STAGE_PAIRS - 1) / STAGE_PAIRS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < X_RING; i++) init_barrier(x_full + i * 8, 1), init_barrier(x_empty + i * 8, CLUSTER * MULTIPLYING);
        for (int i = 0; i < W_RING; i++) init_barrier(w_full + i * 8, 1), init_barrier(w_empty + i * 8, MULTIPLYING);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    begin();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
    if (warp >= MULTIPLYING) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        // Tiles and rows that are not there are loaded as others, and their results are not stored.
        if (warp == MULTIPLYING) {
            // Lanes copy eight rows each.
            constexpr int OCTETS = MANY_ROWS / 8 / CLUSTER;
            int octet = blockIdx.y % CLUSTER * OCTETS + lane, octets = min(MANY_ROWS / 8, (a.rows - row0 + 7) / 8);
            const u8* from = a.staged + (long long)(row0 / 8 + min(octet, octets - 1)) * a.pairs * (XP * 1024);
            u32 to = x_ring + octet * (STAGE_PAIRS * XP * 1024);
            for (int group = 0; group < groups; group++) {
                int stage = group % X_RING, count = min(STAGE_PAIRS, a.pairs - group * STAGE_PAIRS);
                if (group >= X_RING) wait_for_phase(x_empty + stage * 8, (group / X_RING - 1) & 1);
                if (lane == 0) expect_bytes(x_full + stage * 8, count * X_BYTES);
                __syncwarp();
                if (lane < OCTETS) {
                    const u8* rows = from + (long long)(group * STAGE_PAIRS) * (XP * 1024);
                    copy_multicast(to + stage * X_STAGE, rows, count * (XP * 1024), x_full + stage * 8, (1 << CLUSTER) - 1);
                }
            }
        } else if (warp == MULTIPLYING + 1) {
            // Lanes copy the codes or the scales of a tile.
            int tile = lane % 8, first = min(unit0, a.tiles - 1);
            int last = a.gated ? 2 * (a.tiles - first) - 1 : a.tiles - 1 - first;
            Place place = many_place(a, first, min(tile, last));
            const Segment& segment = a.segments[place.segment];
            bool is_code = lane < 8;
            u32 bytes = is_code ? CODE_BYTES : SCALE_BYTES;
            const u8* from = (is_code ? segment.codes : segment.scales) + (long long)place.tile * a.pairs * bytes;
            u32 to = x_ring + X_RING * X_STAGE + (is_code ? 0 : CODE_STAGE) + tile * (STAGE_PAIRS * bytes);
            for (int group = 0; group < groups; group++) {
                int stage = group % W_RING, count = min(STAGE_PAIRS, a.pairs - group * STAGE_PAIRS);
                if (group >= W_RING) wait_for_phase(w_empty + stage * 8, (group / W_RING - 1) & 1);
                if (lane == 0) expect_bytes(w_full + stage * 8, count * (MANY_TILES * (CODE_BYTES + SCALE_BYTES)));
                __syncwarp();
                if (lane < (SCALE_BYTES > 0 ? 16 : 8)) {
                    copy_bulk(to + stage * W_STAGE, from + (long long)(group * STAGE_PAIRS) * bytes, count * bytes, w_full + stage * 8);
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float acc[16][4], total[16][4];
#pragma unroll
        for (int i = 0; i < 64; i++) acc[i / 4][i % 4] = total[i / 4][i % 4] = 0.0f;
        // Rows of 128 bytes with exchanged parts of 16 bytes, 1,024 bytes for eight rows of a part.
        u64 layout = 1ull << 62 | (u64)(STAGE_PAIRS * XP * 1024 / 16) << 32 | 1ull << 16;
        const u8* codes = ring + X_RING * X_STAGE + warp * (STAGE_PAIRS * CODE_BYTES) + lane * CODE_WORDS * 4;
        const u8* scales = ring + X_RING * X_STAGE + CODE_STAGE + warp * (STAGE_PAIRS * SCALE_BYTES) + g * scale_bytes(FORMAT);
        int in_range = 0;
        u32 w[2][4][1][4];
#pragma unroll
        for (int i = 0; i < 32; i++) w[i / 16][i / 4 % 4][0][i % 4] = 0;
        auto multiply = [&](int pair, int in) {
            int group = pair / STAGE_PAIRS, stage = group % X_RING, w_stage = group % W_RING, in_stage = pair % STAGE_PAIRS;
            if (in_stage == 0) wait_for_phase(w_full + w_stage * 8, (group / W_RING) & 1);
            Slot slot;
            slot.load(codes + w_stage * W_STAGE + in_stage * CODE_BYTES, scales + w_stage * W_STAGE + in_stage * SCALE_BYTES);
#pragma unroll
            for (int s = 0; s < 4; s++) fragment(slot, s, w[in][s]);
            if (in_stage == 0) wait_for_phase(x_full + stage * 8, (group / X_RING) & 1);
            u32 address = x_ring + stage * X_STAGE + in_stage * (XP * 1024);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int s = 0; s < 4 * XP; s++) {
                u32 from = address + s % XP * 1024 + s / XP * 32;
                group_product(acc, w[in][s / XP][0], layout | (from & 0x3ffff) >> 4, in_range > 0 || s > 0);
            }
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // An earlier arrival would not wait for the loads of the weights: the products above need their registers.
            if (in_stage == STAGE_PAIRS - 1 && lane == 0) arrive(w_empty + w_stage * 8);
            if (++in_range == a.pairs_per_range || pair + 1 == a.pairs) {
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                in_range = 0;
#pragma unroll
                for (int i = 0; i < 64; i++) total[i / 4][i % 4] += acc[i / 4][i % 4];
            } else {
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            }
            // The weights of the pair before this one were in use until now, and so was its stage.
#pragma unroll
            for (int i = 0; i < 16; i++) asm volatile("" : "+r"(w[in ^ 1][i / 4][0][i % 4]));
            // Blocks of the cluster wait for each of these arrivals, so that none ends before them.
            if (in_stage == 0 && group > 0 && group - 1 + X_RING < groups && lane < CLUSTER) {
                arrive_in_cluster(x_empty + (group - 1) % X_RING * 8, lane);
            }
        };
        // Two at a time, so that the registers of their weights are known.
        for (int pair = 0; pair + 1 < a.pairs; pair += 2) {
            multiply(pair, 0);
            multiply(pair + 1, 1);
        }
        if (a.pairs % 2 == 1) multiply(a.pairs - 1, 0);
        float* sums = (float*)ring;
        asm volatile("bar.sync 1, %0;" ::"n"(MANY_THREADS) : "memory");
#pragma unroll
        for (int i = 0; i < 64; i++) {
            int row = i / 4 * 8 + 2 * t + i % 2;
            sums[row * STRIDE + warp * 16 + g + i / 2 % 2 * 8] = total[i / 4][i % 4];
        }
        asm volatile("bar.sync 1, %0;" ::"n"(MANY_THREADS) : "memory");
        store_block(a, sums, row0, unit0);
    }
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
