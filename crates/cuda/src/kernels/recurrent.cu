
// Ops whose memory is a state that every token of a sequence replaces.
//
// A thread takes its part of the states through all tokens of a step, in order. What it reads of a stored state, an earlier step or
// this thread has written. One form serves prompts and single tokens, so a row has the same bits in every step.

// Sources of states that are no cells, numbered as `plan.rs` numbers them.
#define PREVIOUS_STATE 0xfffffffeu
#define ZERO_STATE 0xffffffffu

// What the plan of the layers with states is in the step's buffer, as offsets in 32-bit words.
struct StatePlan {
    u32 writes, sources;
};

// A head's state in a cell, of f32 or f16.
template <bool HALF>
struct State {
    u8* row;

    __device__ __forceinline__ float load(long long i) const { return HALF ? half_to_float(((u16*)row)[i]) : ((float*)row)[i]; }

    __device__ __forceinline__ void store(long long i, float x) const {
        if (HALF) ((u16*)row)[i] = float_to_half(x);
        else ((float*)row)[i] = x;
    }
};

template <bool HALF>
__device__ __forceinline__ State<HALF> state_at(const KvLayer& kv, u32 cell, int head) {
    return {(u8*)row_of(kv, true, cell, head, kv.value_row)};
}

__device__ __forceinline__ float rounded_to_half(float x) { return half_to_float(float_to_half(x)); }

struct ConvArgs {
    const float* x;
    const float* weight;
    const float* bias;
    float* out;
    const u32* step;
    const KvLayer* layers;
    int layer, tokens, channels, taps, activation;
};

// A thread for each channel. `window` has the last inputs of the channel, the oldest first; with fewer taps than TAPS, its first
// elements and their weights stay zero.
template <int TAPS, bool HALF>
__device__ __forceinline__ void convolve_states(const ConvArgs& a) {
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= a.channels) return;
    const KvLayer kv = a.layers[a.layer];
    const StatePlan plan = *(const StatePlan*)(a.step + kv.plan);
    const u32 *sources = a.step + plan.sources, *writes = a.step + plan.writes;
    int first = TAPS - a.taps;
    float weights[TAPS], window[TAPS];
#pragma unroll
    for (int i = 0; i < TAPS; i++) {
        weights[i] = i >= first ? a.weight[(long long)channel * a.taps + i - first] : 0.0f;
        window[i] = 0.0f;
    }
    float bias = a.bias ? a.bias[channel] : 0.0f;
    // Inputs of several tokens are loaded at once.
    constexpr int AHEAD = 8;
    for (int base = 0; base < a.tokens; base += AHEAD) {
        float x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            x[i] = base + i < a.tokens ? a.x[(long long)(base + i) * a.channels + channel] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int token = base + i;
            if (token >= a.tokens) break;
            u32 source = sources[token], cell = writes[token];
            if (source != PREVIOUS_STATE) {
                bool zero = source == ZERO_STATE;
                const State<HALF> from = state_at<HALF>(kv, zero ? 0 : source, 0);
#pragma unroll
                for (int j = 0; j < TAPS - 1; j++) {
                    window[j] = !zero && j >= first ? from.load((long long)(j - first) * a.channels + channel) : 0.0f;
                }
            }
            window[TAPS - 1] = x[i];
            float sum = bias;
#pragma unroll
            for (int j = 0; j < TAPS; j++) sum = fmaf(weights[j], window[j], sum);
            a.out[(long long)token * a.channels + channel] = activate(a.activation, sum);
            // A state in f16 is rounded after every token, so that it does not depend on how tokens are divided into steps.
            if (HALF) window[TAPS - 1] = rounded_to_half(window[TAPS - 1]);
#pragma unroll
            for (int j = 0; j < TAPS - 1; j++) {
                if (j >= first) window[j] = window[j + 1];
            }
            if (cell != NO_CELL) {
                const State<HALF> to = state_at<HALF>(kv, cell, 0);
#pragma unroll
                for (int j = 0; j < TAPS - 1; j++) {
                    if (j >= first) to.store((long long)(j - first) * a.channels + channel, window[j]);
                }
            }
        }
    }
}

template <int TAPS>
__device__ __forceinline__ void convolve_all(const ConvArgs& a) {
    begin();
    if (a.layers[a.layer].value_storage == KV_F16) convolve_states<TAPS, true>(a);
    else convolve_states<TAPS, false>(a);
}

extern "C" __global__ void __launch_bounds__(128) causal_conv_few(const __grid_constant__ ConvArgs a) { convolve_all<4>(a); }

extern "C" __global__ void __launch_bounds__(128) causal_conv_many(const __grid_constant__ ConvArgs a) { convolve_all<16>(a); }

struct LinearAttentionArgs {
    const float* q;
    const float* k;
    const float* v;
    const float* decay;
    // With it, a token adds what its key does not yet give: the delta rule.
    const float* beta;
    float* out;
    const u32* step;
    const KvLayer* layers;
    // Heads of keys and of values; elements of a key and of a value. Heads of values share keys in turns or in blocks.
    int layer, tokens, groups, heads, depth, width, turns;
    float scale;
};

// Lanes that share a column of a state.
#define STATE_LANES 8

__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
    for (int step = STATE_LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(FULL_MASK, x, step);
    return x;
}

// Eight lanes for each column of a head's states, of whose elements a lane has every eighth: at most ROWS. Elements past the state's
// end are zero.
template <int ROWS, bool HALF>
__device__ __forceinline__ void attend_stored(const LinearAttentionArgs& a) {
    int lane = threadIdx.x % STATE_LANES, column = (blockIdx.x * blockDim.x + threadIdx.x) / STATE_LANES, head = blockIdx.y;
    // Lanes without a column take part in the sums.
    bool exists = column < a.width;
    int group = a.turns ? head % a.groups : head / (a.heads / a.groups);
    const KvLayer kv = a.layers[a.layer];
    const StatePlan plan = *(const StatePlan*)(a.step + kv.plan);
    const u32 *sources = a.step + plan.sources, *writes = a.step + plan.writes;
    float state[ROWS], next_key[ROWS], next_query[ROWS], next_value = 0.0f, next_decay = 0.0f, next_beta = 0.0f;
#pragma unroll
    for (int r = 0; r < ROWS; r++) state[r] = next_key[r] = next_query[r] = 0.0f;
    auto load = [&](int token) {
        long long keys = ((long long)token * a.groups + group) * a.depth, gate = (long long)token * a.heads + head;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int n = r * STATE_LANES + lane;
            if (n < a.depth) next_key[r] = a.k[keys + n], next_query[r] = a.q[keys + n];
        }
        if (exists) next_value = a.v[gate * a.width + column];
        next_decay = a.decay[gate];
        if (a.beta) next_beta = a.beta[gate];
    };
    if (a.tokens > 0) load(0);
    for (int token = 0; token < a.tokens; token++) {
        float key[ROWS], query[ROWS], update = next_value, factor = expf(next_decay), beta = next_beta;
#pragma unroll
        for (int r = 0; r < ROWS; r++) key[r] = next_key[r], query[r] = next_query[r];
        // The next token's operands are loaded while this one is computed.
        if (token + 1 < a.tokens) load(token + 1);
        u32 source = sources[token], cell = writes[token];
        if (source != PREVIOUS_STATE) {
            bool held = source != ZERO_STATE && exists;
            const State<HALF> from = state_at<HALF>(kv, held ? source : 0, head);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int n = r * STATE_LANES + lane;
                state[r] = held && n < a.depth ? from.load((long long)n * a.width + column) : 0.0f;
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) state[r] *= factor;
        // Two sums, so that one waits for the other's addition.
        if (a.beta) {
            float sums[2] = {0.0f, 0.0f};
#pragma unroll
            for (int r = 0; r < ROWS; r++) sums[r % 2] = fmaf(key[r], state[r], sums[r % 2]);
            update = beta * (update - column_sum(sums[0] + sums[1]));
        }
        float sums[2] = {0.0f, 0.0f};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            state[r] = fmaf(key[r], update, state[r]);
            sums[r % 2] = fmaf(query[r], state[r], sums[r % 2]);
        }
        float sum = column_sum(sums[0] + sums[1]);
        if (exists && lane == 0) a.out[((long long)token * a.heads + head) * a.width + column] = a.scale * sum;
        if (HALF) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) state[r] = rounded_to_half(state[r]);
        }
        if (cell != NO_CELL && exists) {
            const State<HALF> to = state_at<HALF>(kv, cell, head);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                int n = r * STATE_LANES + lane;
                if (n < a.depth) to.store((long long)n * a.width + column, state[r]);
            }
        }
    }
}

template <int ROWS>
__device__ __forceinline__ void attend_states(const LinearAttentionArgs& a) {
    begin();
    if (a.layers[a.layer].value_storage == KV_F16) attend_stored<ROWS, true>(a);
    else attend_stored<ROWS, false>(a);
}

extern "C" __global__ void __launch_bounds__(128) linear_attention_32(const __grid_constant__ LinearAttentionArgs a) {
    attend_states<4>(a);
}

extern "C" __global__ void __launch_bounds__(128) linear_attention_64(const __grid_constant__ LinearAttentionArgs a) {
    attend_states<8>(a);
}

extern "C" __global__ void __launch_bounds__(128) linear_attention_128(const __grid_constant__ LinearAttentionArgs a) {
    attend_states<16>(a);
}

extern "C" __global__ void __launch_bounds__(128) linear_attention_256(const __grid_constant__ LinearAttentionArgs a) {
    attend_states<32>(a);
}
