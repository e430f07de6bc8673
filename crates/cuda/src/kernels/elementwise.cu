// Norms, rotary embeddings and elementwise functions.

struct NormArgs {
    const float* x;
    const float* weight;
    const float* bias;
    float* out;
    int rows, n;
    float eps;
};

// One warp for each row.
extern "C" __global__ void rms_norm(const __grid_constant__ NormArgs a) {
    begin();
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= a.rows) return;
    const float* x = a.x + (long long)row * a.n;
    float inverse = inverse_rms(x, a.n, a.eps, lane);
    for (int i = lane; i < a.n; i += WARP) a.out[(long long)row * a.n + i] = x[i] * inverse * a.weight[i];
}

extern "C" __global__ void layer_norm(const __grid_constant__ NormArgs a) {
    begin();
    int row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP, lane = threadIdx.x % WARP;
    if (row >= a.rows) return;
    const float* x = a.x + (long long)row * a.n;
    float sum = 0.0f, squares = 0.0f;
    for (int i = lane; i < a.n; i += WARP) sum += x[i];
    float mean = warp_sum(sum) / (float)a.n;
    for (int i = lane; i < a.n; i += WARP) squares = fmaf(x[i] - mean, x[i] - mean, squares);
    float inverse = __frcp_rn(__fsqrt_rn(warp_sum(squares) / (float)a.n + a.eps));
    for (int i = lane; i < a.n; i += WARP) {
        float y = (x[i] - mean) * inverse * a.weight[i];
        a.out[(long long)row * a.n + i] = a.bias ? y + a.bias[i] : y;
    }
}

// Numbered as `CallMaker::node` (calls.rs) numbers them.
#define MAP_ADD 0
#define MAP_MUL 1
#define MAP_ACTIVATE 2
#define MAP_GATED 3
#define MAP_SCALE 4
#define MAP_SOFT_CAP 5
#define MAP_ROUND_F16 6
#define MAP_ROUND_BF16 7
#define MAP_SOFTPLUS 8

struct MapArgs {
    const float* a;
    const float* b;
    float* out;
    u64 n;
    // Element i of the result takes b[i / repeat % period].
    u64 repeat, period;
    int map, activation;
    float number;
};

extern "C" __global__ void elementwise(const __grid_constant__ MapArgs m) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m.n) return;
    float a = m.a[i], b = 0.0f;
    if (m.b) b = m.b[(m.repeat > 1 ? i / m.repeat : i) % m.period];
    switch (m.map) {
        case MAP_ADD: a = a + b; break;
        case MAP_MUL: a = a * b; break;
        case MAP_ACTIVATE: a = activate(m.activation, a); break;
        case MAP_GATED: a = activate(m.activation, a) * b; break;
        case MAP_SCALE: a = a * m.number; break;
        case MAP_ROUND_F16: a = half_to_float(float_to_half(a)); break;
        case MAP_ROUND_BF16: a = bf16_to_float(float_to_bf16(a)); break;
        case MAP_SOFTPLUS: a = fmaxf(a, 0.0f) + log1pf(expf(-fabsf(a))); break;
        default: a = m.number * tanhf(a / m.number);
    }
    m.out[i] = a;
}

struct TableArgs {
    const void* position;
    const float* frequency;
    float* out;
    int rows, half, wide;
    float magnitude;
};

// Cosines and sines of position * frequency.
extern "C" __global__ void rope_table(const __grid_constant__ TableArgs a) {
    begin();
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.rows * a.half) return;
    int row = i / a.half, at = i % a.half;
    float angle = (float)index_at(a.position, a.wide, row) * a.frequency[at];
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    a.out[row * 2 * a.half + at] = cosine * a.magnitude;
    a.out[row * 2 * a.half + a.half + at] = sine * a.magnitude;
}

struct RopeArgs {
    const float* x;
    const float* table;
    float* out;
    int rows, heads, dim, rotated, interleaved;
};

// One thread for each pair, and one for each element that is not rotated: the result may lie where x does.
extern "C" __global__ void rope(const __grid_constant__ RopeArgs a) {
    begin();
    int half = a.rotated / 2, each = half + a.dim - 2 * half;
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)a.rows * a.heads * each) return;
    long long head = i / each;
    int at = i % each;
    const float* x = a.x + head * a.dim;
    const float* table = a.table + head / a.heads * a.rotated;
    float* out = a.out + head * a.dim;
    int first = at >= half ? at + half : a.interleaved ? 2 * at : at;
    int second = at >= half ? first : a.interleaved ? 2 * at + 1 : at + half;
    float p = rotated_at(x, table, first, a.rotated, a.interleaved);
    float q = rotated_at(x, table, second, a.rotated, a.interleaved);
    out[first] = p;
    out[second] = q;
}
