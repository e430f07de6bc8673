// Attention of a step's only query over one part, in the persistent kernel: the operations of `attend_item`, with as few
// instructions as possible between the arrival of the query and the result. Keys and values of earlier steps are loaded before.

// Whether `attend_lone` supports an item: one part, f16 rows, keys of at most 64 elements, at most eight heads, no
// softcap, and the alignment that its loads need.
__device__ __forceinline__ bool is_lone(const AttendArgs& a, const KvLayer& kv, const Item& item) {
    return kv.key_storage == KV_F16 && kv.value_storage == KV_F16 && a.key_dim % 16 == 0 && a.key_dim <= 64 && a.value_dim % 16 == 0 &&
           a.value_dim <= 16 * WARPS && a.lot <= 8 && a.softcap == 0.0f && a.rotated % 8 == 0 &&
           item.begin / PART == (item.end - 1) / PART && item.begin < item.end;
}

// Waits for the quad at `d` and applies rope if there is a table. Unless interleaved, rope pairs it with the quad half
// of `rotated` away.
__device__ __forceinline__ float4 receive_rotated(const u64* from, u32 flag, const float* table, int d, int rotated, int interleaved) {
    float4 x, y;
    int half = rotated / 2;
    bool paired = table && d < rotated && !interleaved, first = d < half;
    const u64* other = from + (!paired ? d : first ? d + half : d - half);
    while (!(receive(from + d, flag, &x) & receive(other, flag, &y))) {}
    if (!table || d >= rotated) return x;
    if (interleaved) {
        float4 c = make_float4(table[d / 2], table[d / 2 + 1], table[half + d / 2], table[half + d / 2 + 1]);
        return make_float4(x.x * c.x - x.y * c.z, x.y * c.x + x.x * c.z, x.z * c.y - x.w * c.w, x.w * c.y + x.z * c.w);
    }
    int at = first ? d : d - half;
    float4 c = *(const float4*)(table + at), s = *(const float4*)(table + half + at);
    if (first) return make_float4(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y, x.z * c.z - y.z * s.z, x.w * c.w - y.w * s.w);
    return make_float4(x.x * c.x + y.x * s.x, x.y * c.y + y.y * s.y, x.z * c.z + y.z * s.z, x.w * c.w + y.w * s.w);
}

// Returns as `attend_item` does. `words` are those of queries, keys and values. Complete results are sent to `out`, and
// also stored in `plain` unless that is null; results of several parts are merged into `results` instead.
__device__ __forceinline__ bool attend_lone(const AttendArgs& a, const u64* const words[3], u32 flag, u64* out, float* plain,
                                            float* results, const KvLayer& kv, const ClassPlan& plan, const Item& item,
                                            AttendShared& s, uint4* q, uint4* p, int kv_head, int lot, u32 cell) {
    constexpr int STEPS = 4, VALUE_BLOCKS = 8;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int first_head = kv_head * a.group + lot * a.lot, count = min(a.lot, a.group - lot * a.lot);
    int steps = a.key_dim / 16, unit = warp, d = unit * 16 + 4 * t;
    bool weighs = d < a.value_dim;
    u32 stored = a.step[plan.writes];
    int begin = ((const int*)a.step)[plan.ranges + 2 * item.query], end = ((const int*)a.step)[plan.ranges + 2 * item.query + 1];
    int position = item.begin / PART * PART + threadIdx.x;
    bool exists = cell != NO_CELL, near = exists && cell == stored;
    const u8 *key_row = nullptr, *value_row = nullptr;
    if (exists) {
        key_row = near ? s.step_rows[0] : row_of(kv, false, cell, kv_head, kv.key_row);
        value_row = near ? s.step_rows[1] : row_of(kv, true, cell, kv_head, kv.value_row);
    }
    s.rows[threadIdx.x] = value_row;
    u32 mask = __ballot_sync(FULL_MASK, exists), sees = __ballot_sync(FULL_MASK, exists && position >= begin && position < end);
    if (lane == 0) s.seen[warp] = mask;
    attend_barrier();
    // The step's own key and value rows are loaded later, after they have arrived.
    const u8* rows[4];
    uint2 keys[STEPS][4], values[VALUE_BLOCKS][2];
#pragma unroll
    for (int n = 0; n < 4; n++) rows[n] = (const u8*)__shfl_sync(FULL_MASK, (u64)key_row, n * 8 + g);
    auto load_keys = [&](int n, bool now) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (now) keys[i][n] = i < steps ? *(const uint2*)(rows[n] + 2 * (i * 16 + 4 * t)) : make_uint2(0, 0);
        }
    };
    // Which of a lane's values are those of the step.
    u32 late = 0;
    auto load_values = [&](int b0, int from, int to, bool now) {
#pragma unroll
        for (int i = 0; i < VALUE_BLOCKS * 2; i++) {
            if (i < from || i >= to) continue;
            const u8* row = s.rows[b0 * 16 + i * 8 + g];
            bool of_step = !now && row == s.step_rows[1];
            late |= (u32)of_step << i;
            bool there = row != nullptr && weighs && !of_step;
            values[i / 2][i % 2] = there ? *(const uint2*)(row + 2 * d) : make_uint2(0, 0);
        }
    };
    // Blocks of 16 positions that exist.
    u32 blocks = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        blocks |= (u32)((s.seen[w] & 0xffff) != 0) << 2 * w | (u32)(s.seen[w] >> 16 != 0) << 2 * w + 1;
    }
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) keys[i / 4][i % 4] = make_uint2(0, 0);
#pragma unroll
    for (int n = 0; n < 4; n++) load_keys(n, rows[n] != nullptr && rows[n] != s.step_rows[0]);
    load_values(0, 0, VALUE_BLOCKS, false);
    // Queries: a warp for every 16 elements. The step's key and value: a warp for each.
    if (warp < steps) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (g < count) {
            x = receive_rotated(words[0] + (first_head + g) * a.key_dim, flag, a.table, warp * 16 + 4 * t, a.rotated, a.interleaved);
        }
        uint2 high, low;
        split_f16((float*)&x, &high, &low);
        q[warp * 2 * WARP + lane] = make_uint4(high.x, 0, high.y, 0);
        q[warp * 2 * WARP + WARP + lane] = make_uint4(low.x, 0, low.y, 0);
    } else if (warp == STEPS || warp == STEPS + 1) {
        bool is_value = warp == STEPS + 1;
        int dim = is_value ? a.value_dim : a.key_dim;
        u8* to = (u8*)row_of(kv, is_value, stored, kv_head, is_value ? kv.value_row : kv.key_row);
        for (int at = 4 * lane; at < dim && stored != NO_CELL; at += 4 * WARP) {
            float4 x = receive_rotated(words[is_value ? 2 : 1] + kv_head * dim, flag, is_value ? nullptr : a.key_table, at, a.rotated,
                                       a.interleaved);
            uint2 row = make_uint2(pack_f16(x.x, x.y), pack_f16(x.z, x.w));
            *(uint2*)(s.step_rows[is_value] + 2 * at) = row;
            *(uint2*)(to + 2 * at) = row;
        }
    }
    attend_barrier();
    // Scores of 32 positions for each warp; the elements of row g are the first two of four.
    float score[4][2], top = NEG_INF;
    if (mask != 0) {
#pragma unroll
        for (int n = 0; n < 4; n++) load_keys(n, rows[n] == s.step_rows[0]);
        float acc[4][4];
#pragma unroll
        for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            if (i >= steps) break;
            uint4 high = q[i * 2 * WARP + lane], low = q[i * 2 * WARP + WARP + lane];
#pragma unroll
            for (int n = 0; n < 4; n++) mma_f16(acc[n], (u32*)&high, keys[i][n].x, keys[i][n].y);
#pragma unroll
            for (int n = 0; n < 4; n++) mma_f16(acc[n], (u32*)&low, keys[i][n].x, keys[i][n].y);
        }
        u32 mine = sees >> 2 * t;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            score[i / 2][i % 2] = mine >> (i / 2 * 8 + i % 2) & 1 ? acc[i / 2][i % 2] * a.scale : NEG_INF;
            top = fmaxf(top, score[i / 2][i % 2]);
        }
        top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, 1));
        top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, 2));
    }
    // The keys' registers are free for further values.
    load_values(0, VALUE_BLOCKS, 2 * VALUE_BLOCKS, true);
    if (t == 0) s.warp_top[warp][g] = top;
    attend_barrier();
    top = s.warp_top[0][g];
#pragma unroll
    for (int w = 1; w < WARPS; w++) top = fmaxf(top, s.warp_top[w][g]);
    float sum = 0.0f;
    if (mask != 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float x = top == NEG_INF ? 0.0f : exponential(score[i / 2][i % 2] - top);
            score[i / 2][i % 2] = x;
            sum += x;
        }
        sum += __shfl_xor_sync(FULL_MASK, sum, 1);
        sum += __shfl_xor_sync(FULL_MASK, sum, 2);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            float four[4] = {score[2 * b][0], score[2 * b][1], score[2 * b + 1][0], score[2 * b + 1][1]};
            uint2 high, low;
            split_f16(four, &high, &low);
            p[(warp * 2 + b) * 2 * WARP + lane] = make_uint4(high.x, 0, high.y, 0);
            p[(warp * 2 + b) * 2 * WARP + WARP + lane] = make_uint4(low.x, 0, low.y, 0);
        }
    }
    if (t == 0) s.warp_norm[warp][g] = sum;
    attend_barrier();
    float norm = 0.0f, old, fresh, part_top = top, part_sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) part_sum += s.warp_norm[w][g];
    top = NEG_INF;
    merge(&top, &norm, part_top, part_sum, &old, &fresh);
    if (weighs) {
        float part[2][4];
#pragma unroll
        for (int i = 0; i < 8; i++) part[i / 4][i % 4] = 0.0f;
        if (late) {
            uint2 row = *(const uint2*)(s.step_rows[1] + 2 * d);
#pragma unroll
            for (int i = 0; i < VALUE_BLOCKS; i++) {
                if (late >> i & 1) values[i / 2][i % 2] = row;
            }
        }
#pragma unroll 1
        for (int b0 = 0; blocks >> b0 != 0; b0 += VALUE_BLOCKS) {
            if (b0 > 0) load_values(b0, 0, 2 * VALUE_BLOCKS, true);
#pragma unroll
            for (int i = 0; i < VALUE_BLOCKS; i++) {
                int b = b0 + i;
                if ((blocks >> b & 1) == 0) continue;
                uint4 high = p[b * 2 * WARP + lane], low = p[b * 2 * WARP + WARP + lane];
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    u32 v0 = transposed(n ? values[i][0].y : values[i][0].x), v1 = transposed(n ? values[i][1].y : values[i][1].x);
                    mma_f16(part[n], (u32*)&high, v0, v1);
                    mma_f16(part[n], (u32*)&low, v0, v1);
                }
            }
        }
        if (g < count) {
            float inverse = norm > 0.0f ? __frcp_rn(norm) : 0.0f;
            int slot = item.slot + (item.part & 0xffff);
            float* parts = a.partial + ((long long)slot * a.heads + first_head + g) * (a.value_dim + 2);
            if (item.slot >= 0 && unit == 0 && t == 0) parts[0] = top, parts[1] = norm;
            int at = (first_head + g) * a.value_dim + d;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = fmaf(part[e / 2][e % 2], fresh, 0.0f * old);
                if (item.slot >= 0) {
                    parts[2 + d + e] = x;
                } else {
                    send(out + at + e, x * inverse, flag);
                    if (plain) plain[at + e] = x * inverse;
                }
            }
        }
    }
    return item.slot >= 0 && merge_parts(a, item, s, kv_head, lot, 1, results);
}
