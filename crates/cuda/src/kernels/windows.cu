// Convolutions and pools of up to three axes, softmaxes and sums. Axes that are not there have size 1.

// Numbered as `WindowSizes` in Rust has them.
struct WindowSizes {
    // Elements of the input and of the result along each axis, and how the window lies on the input.
    int from[3], to[3], size[3], stride[3], dilation[3], before[3];
};

struct ConvolveArgs {
    const float* x;
    const float* weight;
    const float* bias;
    const float* residual;
    float* out;
    u64 positions;
    int channels, inner, outputs, per_group, activation, blocks;
    WindowSizes w;
};

// Output channels of a thread, which reads an element of the input once for all of them.
#define CONV_CHANNELS 4

// A thread for each position of the result (x) and block of output channels of a group (y), for each image (z).
extern "C" __global__ void __launch_bounds__(128) convolve(const __grid_constant__ ConvolveArgs a) {
    begin();
    u64 position = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (position >= a.positions) return;
    int image = blockIdx.y / (a.outputs / a.per_group * a.blocks), rest = blockIdx.y % (a.outputs / a.per_group * a.blocks);
    int group = rest / a.blocks, block = rest % a.blocks;
    int first = group * a.per_group + block * CONV_CHANNELS;
    int count = min(CONV_CHANNELS, a.per_group - block * CONV_CHANNELS);
    int z = (int)(position / ((u64)a.w.to[1] * a.w.to[2])), y = (int)(position / a.w.to[2] % a.w.to[1]), x = (int)(position % a.w.to[2]);
    int kernel = a.w.size[0] * a.w.size[1] * a.w.size[2];
    u64 plane = (u64)a.w.from[0] * a.w.from[1] * a.w.from[2];
    const float* input = a.x + ((u64)image * a.channels + (u64)group * a.inner) * plane;
    float sums[CONV_CHANNELS];
#pragma unroll
    for (int i = 0; i < CONV_CHANNELS; i++) sums[i] = 0.0f;
    for (int c = 0; c < a.inner; c++, input += plane) {
        for (int i = 0; i < a.w.size[0]; i++) {
            int from_z = z * a.w.stride[0] - a.w.before[0] + i * a.w.dilation[0];
            if ((u32)from_z >= (u32)a.w.from[0]) continue;
            for (int j = 0; j < a.w.size[1]; j++) {
                int from_y = y * a.w.stride[1] - a.w.before[1] + j * a.w.dilation[1];
                if ((u32)from_y >= (u32)a.w.from[1]) continue;
                const float* row = input + ((u64)from_z * a.w.from[1] + from_y) * a.w.from[2];
                for (int k = 0; k < a.w.size[2]; k++) {
                    int from_x = x * a.w.stride[2] - a.w.before[2] + k * a.w.dilation[2];
                    if ((u32)from_x >= (u32)a.w.from[2]) continue;
                    float element = row[from_x];
                    const float* weight = a.weight + ((u64)first * a.inner + c) * kernel + (i * a.w.size[1] + j) * a.w.size[2] + k;
#pragma unroll
                    for (int o = 0; o < CONV_CHANNELS; o++) {
                        if (o < count) sums[o] = fmaf(element, weight[(u64)o * a.inner * kernel], sums[o]);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int o = 0; o < CONV_CHANNELS; o++) {
        if (o >= count) break;
        u64 at = ((u64)image * a.outputs + first + o) * a.positions + position;
        float sum = sums[o];
        if (a.bias) sum += a.bias[first + o];
        if (a.residual) sum += a.residual[at];
        a.out[at] = activate(a.activation, sum);
    }
}

struct PoolArgs {
    const float* x;
    float* out;
    u64 elements;
    int sum, unused;
    WindowSizes w;
};

// A thread for each element of the result.
extern "C" __global__ void pool_windows(const __grid_constant__ PoolArgs a) {
    begin();
    u64 element = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (element >= a.elements) return;
    u64 positions = (u64)a.w.to[0] * a.w.to[1] * a.w.to[2], position = element % positions;
    int z = (int)(position / ((u64)a.w.to[1] * a.w.to[2])), y = (int)(position / a.w.to[2] % a.w.to[1]), x = (int)(position % a.w.to[2]);
    const float* input = a.x + element / positions * ((u64)a.w.from[0] * a.w.from[1] * a.w.from[2]);
    float result = a.sum ? 0.0f : NEG_INF;
    for (int i = 0; i < a.w.size[0]; i++) {
        int from_z = z * a.w.stride[0] - a.w.before[0] + i * a.w.dilation[0];
        if ((u32)from_z >= (u32)a.w.from[0]) continue;
        for (int j = 0; j < a.w.size[1]; j++) {
            int from_y = y * a.w.stride[1] - a.w.before[1] + j * a.w.dilation[1];
            if ((u32)from_y >= (u32)a.w.from[1]) continue;
            for (int k = 0; k < a.w.size[2]; k++) {
                int from_x = x * a.w.stride[2] - a.w.before[2] + k * a.w.dilation[2];
                if ((u32)from_x >= (u32)a.w.from[2]) continue;
                float next = input[((u64)from_z * a.w.from[1] + from_y) * a.w.from[2] + from_x];
                if (a.sum) result += next;
                else if (next > result || next != next) result = next;
            }
        }
    }
    a.out[element] = result;
}

struct SoftmaxArgs {
    const float* x;
    float* out;
    // Elements of a line, from an element of a line to the next, and lines.
    u64 len, stride, lines;
    int log, unused;
};

// A warp for each line.
extern "C" __global__ void softmax_lines(const __grid_constant__ SoftmaxArgs a) {
    begin();
    u64 line = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (line >= a.lines) return;
    u64 start = line / a.stride * a.stride * a.len + line % a.stride;
    const float* x = a.x + start;
    float* out = a.out + start;
    float most = NEG_INF;
    for (u64 i = lane; i < a.len; i += WARP) most = fmaxf(most, x[i * a.stride]);
    for (int step = WARP / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, step));
    float sum = 0.0f;
    for (u64 i = lane; i < a.len; i += WARP) sum += expf(x[i * a.stride] - most);
    sum = warp_sum(sum);
    float logarithm = logf(sum);
    for (u64 i = lane; i < a.len; i += WARP) {
        float own = x[i * a.stride] - most;
        out[i * a.stride] = a.log ? own - logarithm : expf(own) / sum;
    }
}

struct ReduceArgs {
    const float* x;
    float* out;
    // As the lines of a softmax.
    u64 len, stride, lines;
    int mean, unused;
};

// A warp for each line.
extern "C" __global__ void sum_lines(const __grid_constant__ ReduceArgs a) {
    begin();
    u64 line = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (line >= a.lines) return;
    const float* x = a.x + line / a.stride * a.stride * a.len + line % a.stride;
    double sum = 0.0;
    for (u64 i = lane; i < a.len; i += WARP) sum += x[i * a.stride];
    for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(FULL_MASK, sum, step);
    if (lane == 0) a.out[line] = (float)(a.mean ? sum / (double)a.len : sum);
}
