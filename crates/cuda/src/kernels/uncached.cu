// What graphs of hidden states and draft heads need beside the ops of decoders: attention without a cache, masks, and elements
// in another order.

struct PlainAttentionArgs {
    const float* q;
    const float* k;
    const float* v;
    // Whether a query sees a key; null if it sees all.
    const u8* mask;
    float* out;
    // Elements from a token to the next, and from a head to the next.
    u64 q_token, q_head, k_token, k_head, v_token, v_head, out_token, out_head;
    // Elements of the mask from a query to the next, and from a key to the next.
    u64 mask_query, mask_key;
    u32 keys, group, dim, value_dim, causal;
    float scale, softcap;
};

// A block for each query (x) of each head (y). Sums have the order of the keys, and keys that are not seen do not change them.
extern "C" __global__ void plain_attention(const __grid_constant__ PlainAttentionArgs a) {
    extern __shared__ __align__(16) float key_weights[];
    begin();
    u32 query = blockIdx.x, head = blockIdx.y, kv_head = head / a.group;
    const float* q = a.q + query * a.q_token + head * a.q_head;
    const float* keys = a.k + kv_head * a.k_head;
    for (u32 key = threadIdx.x; key < a.keys; key += blockDim.x) {
        float score = NEG_INF;
        bool seen = !a.mask || a.mask[query * a.mask_query + key * a.mask_key];
        if (seen && (!a.causal || key <= query)) {
            const float* k = keys + key * a.k_token;
            float sum = 0.0f;
            for (u32 i = 0; i < a.dim; i++) sum = fmaf(q[i], k[i], sum);
            score = sum * a.scale;
            if (a.softcap > 0.0f) score = a.softcap * tanhf(score / a.softcap);
        }
        key_weights[key] = score;
    }
    __syncthreads();
    float most = NEG_INF;
    for (u32 key = 0; key < a.keys; key++) most = fmaxf(most, key_weights[key]);
    __syncthreads();
    for (u32 key = threadIdx.x; key < a.keys; key += blockDim.x) {
        float score = key_weights[key];
        key_weights[key] = score == NEG_INF ? 0.0f : expf(score - most);
    }
    __syncthreads();
    const float* values = a.v + kv_head * a.v_head;
    for (u32 i = threadIdx.x; i < a.value_dim; i += blockDim.x) {
        float sum = 0.0f, total = 0.0f;
        for (u32 key = 0; key < a.keys; key++) {
            float weight = key_weights[key];
            if (weight == 0.0f) continue;
            total += weight;
            sum = fmaf(weight, values[key * a.v_token + i], sum);
        }
        a.out[query * a.out_token + head * a.out_head + i] = total > 0.0f ? sum / total : 0.0f;
    }
}

struct StridedArgs {
    const u32* from;
    u32* to;
    u64 dims[3], from_strides[3], to_strides[3];
};

// Copies elements of 4 bytes from one order to another.
extern "C" __global__ void copy_strided(const __grid_constant__ StridedArgs a) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.dims[0] * a.dims[1] * a.dims[2]) return;
    u64 x = i / (a.dims[1] * a.dims[2]), y = i / a.dims[2] % a.dims[1], z = i % a.dims[2];
    u64 from = x * a.from_strides[0] + y * a.from_strides[1] + z * a.from_strides[2];
    u64 to = x * a.to_strides[0] + y * a.to_strides[1] + z * a.to_strides[2];
    a.to[to] = a.from[from];
}

// Numbered as `PairFunction` in Rust numbers them.
#define PAIR_EQUAL 0
#define PAIR_LESS 1
#define PAIR_DIFFERENCE 2
#define PAIR_AND 3

struct PairArgs {
    const void* a;
    const void* b;
    void* out;
    u64 rows, columns;
    // Elements from a row to the next, and from a column to the next; 0 repeats them.
    u64 a_row, a_column, b_row, b_column;
    u32 function;
};

// A function of integers, or of truth values, of two operands that broadcast to each other.
extern "C" __global__ void map_pairs(const __grid_constant__ PairArgs p) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.rows * p.columns) return;
    u64 row = i / p.columns, column = i % p.columns;
    u64 at = row * p.a_row + column * p.a_column, bt = row * p.b_row + column * p.b_column;
    if (p.function == PAIR_AND) {
        ((u8*)p.out)[i] = ((const u8*)p.a)[at] && ((const u8*)p.b)[bt];
        return;
    }
    int a = ((const int*)p.a)[at], b = ((const int*)p.b)[bt];
    if (p.function == PAIR_DIFFERENCE) ((int*)p.out)[i] = (int)((u32)a - (u32)b);
    if (p.function == PAIR_EQUAL) ((u8*)p.out)[i] = a == b;
    if (p.function == PAIR_LESS) ((u8*)p.out)[i] = a < b;
}
