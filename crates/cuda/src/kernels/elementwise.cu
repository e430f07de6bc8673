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
#define MAP_SUB 9
#define MAP_DIV 10
#define MAP_POW 11
#define MAP_MIN 12
#define MAP_MAX 13

// Functions of one number, numbered as `unary_code` (calls.rs) numbers them.
__device__ __noinline__ float unary_function(int function, float x) {
    switch (function) {
        case 32: return -x;
        case 33: return fabsf(x);
        case 34: return expf(x);
        case 35: return logf(x);
        case 36: return __fsqrt_rn(x);
        case 37: return __frcp_rn(__fsqrt_rn(x));
        case 38: return __frcp_rn(x);
        case 39: return sinf(x);
        case 40: return cosf(x);
        case 41: return tanf(x);
        case 42: return asinf(x);
        case 43: return acosf(x);
        case 44: return atanf(x);
        case 45: return sinhf(x);
        case 46: return coshf(x);
        case 47: return asinhf(x);
        case 48: return acoshf(x);
        case 49: return atanhf(x);
        case 50: return erff(x);
        case 51: return log1pf(x);
        case 52: return expm1f(x);
        case 53: return floorf(x);
        case 54: return ceilf(x);
        case 55: return rintf(x);
        default: return x == 0.0f || x != x ? x : copysignf(1.0f, x);
    }
}

struct MapArgs {
    const float* a;
    const float* b;
    float* out;
    u64 n;
    // Element i of the result takes b[i / repeat % period].
    u64 repeat, period;
    int map, activation;
    float number;
    // Whether the operands are b and a.
    int swapped;
};

extern "C" __global__ void elementwise(const __grid_constant__ MapArgs m) {
    begin();
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= m.n) return;
    float a = m.a[i], b = 0.0f;
    if (m.b) b = m.b[(m.repeat > 1 ? i / m.repeat : i) % m.period];
    if (m.swapped) {
        float first = b;
        b = a, a = first;
    }
    switch (m.map) {
        case MAP_SUB: a = a - b; break;
        case MAP_DIV: a = __fdiv_rn(a, b); break;
        case MAP_POW: a = powf(a, b); break;
        case MAP_MIN: a = a != a || b != b ? a + b : fminf(a, b); break;
        case MAP_MAX: a = a != a || b != b ? a + b : fmaxf(a, b); break;
        case MAP_ADD: a = a + b; break;
        case MAP_MUL: a = a * b; break;
        case MAP_ACTIVATE: a = activate(m.activation, a); break;
        case MAP_GATED: a = activate(m.activation, a) * b; break;
        case MAP_SCALE: a = a * m.number; break;
        case MAP_ROUND_F16: a = half_to_float(float_to_half(a)); break;
        case MAP_ROUND_BF16: a = bf16_to_float(float_to_bf16(a)); break;
        case MAP_SOFTPLUS: a = fmaxf(a, 0.0f) + log1pf(expf(-fabsf(a))); break;
        case MAP_SOFT_CAP: a = m.number * tanhf(a / m.number); break;
        default: a = unary_function(m.map, a);
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
