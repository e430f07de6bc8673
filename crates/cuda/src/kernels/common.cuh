// Types, conversions and reductions that all kernels share. NVRTC compiles these files without any header of the toolkit.
//
// Sums have a fixed order that depends on the row alone, and nothing is contracted to a fused multiply-add unless it says
// `fmaf`: a row's bits are the same in every kernel variant.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define FULL_MASK 0xffffffffu
#define NEG_INF __int_as_float(0xff800000)
#define INFINITY_F __int_as_float(0x7f800000)

// Lets the next kernel of the stream start, up to its own wait.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernels before this one are complete. Every thread of every kernel of a step waits, before it reads or
// writes what another kernel does: then a kernel's end implies the end of all before it.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void begin() {
    let_next_start();
    wait_for_previous();
}

__device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

__device__ __forceinline__ float bf16_to_float(u16 h) { return __uint_as_float((u32)h << 16); }

__device__ __forceinline__ u16 float_to_bf16(float f) {
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// Two floats as bf16, the first in the low half.
__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// Two floats as f16, the first in the low half.
__device__ __forceinline__ u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// A number that is not infinite in f16.
__device__ __forceinline__ float finite_f16(float x) { return fabsf(x) > 65504.0f ? copysignf(65504.0f, x) : x; }

// Arithmetic with two f16 numbers each.
__device__ __forceinline__ u32 sub_f16(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

__device__ __forceinline__ u32 fma_f16(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// (word & mask) | bits, as one instruction.
__device__ __forceinline__ u32 masked(u32 word, u32 mask, u32 bits) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(word), "r"(mask), "r"(bits));
    return r;
}

// The low or the high half of a word in both halves.
__device__ __forceinline__ u32 low_twice(u32 word) { return __byte_perm(word, 0, 0x1010); }
__device__ __forceinline__ u32 high_twice(u32 word) { return __byte_perm(word, 0, 0x3232); }

// c += a b on tensor cores: 16 rows, 8 columns, 16 products each.
__device__ __forceinline__ void mma_f16(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies 16 bytes to shared memory; they are there when the copies committed with it were waited for.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
    u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void copy_to(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `LEFT` of the committed groups of copies are under way.
template <int LEFT>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

template <int WORDS>
__device__ __forceinline__ void load_words(const void* from, u32* to) {
    if (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) ((uint4*)to)[i] = ((const uint4*)from)[i];
    } else if (WORDS == 2) {
        *(uint2*)to = *(const uint2*)from;
    } else if (WORDS == 1) {
        *to = *(const u32*)from;
    }
}

__device__ __forceinline__ float low_bf16(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// The sum over the lanes of a warp, the same in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(FULL_MASK, x, step);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_MASK, x, step));
    return x;
}

// The sum of squares of a row is that of eight sums, each of every eighth group of 32 quads.
#define SUB_SUMS 8

__device__ __forceinline__ float add_squares(float4 v, float sum) {
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    return fmaf(v.w, v.w, sum);
}

// A lane's share of the `which`-th sum.
__device__ __forceinline__ float sub_sum(const float* x, int n, int which, int lane) {
    float sum = 0.0f;
    if (n % 4 == 0) {
#pragma unroll 4
        for (int i = which * WARP + lane; i < n / 4; i += SUB_SUMS * WARP) sum = add_squares(((const float4*)x)[i], sum);
    } else {
        for (int i = which * WARP + lane; i < n; i += SUB_SUMS * WARP) sum = fmaf(x[i], x[i], sum);
    }
    return sum;
}

__device__ __forceinline__ float inverse_of(const float sums[SUB_SUMS], int n, float eps) {
    float sum = sums[0];
#pragma unroll
    for (int i = 1; i < SUB_SUMS; i++) sum += sums[i];
    return __frcp_rn(__fsqrt_rn(sum / (float)n + eps));
}

// The reciprocal root mean square of a row, by one warp. Every norm of every kernel is this sum in this order.
__device__ __forceinline__ float inverse_rms(const float* x, int n, float eps, int lane) {
    float sums[SUB_SUMS];
#pragma unroll
    for (int i = 0; i < SUB_SUMS; i++) sums[i] = 0.0f;
    if (n % 4 == 0) {
        for (int i = lane; i < n / 4; i += SUB_SUMS * WARP) {
            float4 v[SUB_SUMS];
#pragma unroll
            for (int s = 0; s < SUB_SUMS; s++) {
                int at = i + s * WARP;
                v[s] = at < n / 4 ? ((const float4*)x)[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
#pragma unroll
            for (int s = 0; s < SUB_SUMS; s++) sums[s] = add_squares(v[s], sums[s]);
        }
    } else {
#pragma unroll
        for (int s = 0; s < SUB_SUMS; s++) sums[s] = sub_sum(x, n, s, lane);
    }
#pragma unroll
    for (int s = 0; s < SUB_SUMS; s++) sums[s] = warp_sum(sums[s]);
    return inverse_of(sums, n, eps);
}

// Activation functions, numbered as `activation_code` in Rust numbers them.
#define ACT_NONE 0
#define ACT_SILU 1
#define ACT_GELU_TANH 2
#define ACT_GELU_ERF 3
#define ACT_RELU 4
#define ACT_TANH 5
#define ACT_SIGMOID 6
#define ACT_HARD_SWISH 7

__device__ __noinline__ float other_activation(int function, float x) {
    switch (function) {
        case ACT_GELU_TANH: {
            float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
            return 0.5f * x * (1.0f + tanhf(inner));
        }
        case ACT_GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.7071067811865476f));
        case ACT_RELU: return x < 0.0f ? 0.0f : x;
        case ACT_TANH: return tanhf(x);
        case ACT_SIGMOID: return 1.0f / (1.0f + expf(-x));
        case ACT_HARD_SWISH: return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
        default: return x;
    }
}

__device__ __forceinline__ float activate(int function, float x) {
    if (function == ACT_NONE) return x;
    return function == ACT_SILU ? x / (1.0f + expf(-x)) : other_activation(function, x);
}

// Element `i` of a row after its rotation by a row of a rope table.
__device__ __forceinline__ float rotated_at(const float* x, const float* table, int i, int rotated, int interleaved) {
    int half = rotated / 2;
    if (i >= 2 * half) return x[i];
    int at = interleaved ? i / 2 : i < half ? i : i - half;
    bool first = interleaved ? i % 2 == 0 : i < half;
    float p = x[interleaved ? 2 * at : at], q = x[interleaved ? 2 * at + 1 : at + half];
    float cosine = table[at], sine = table[half + at];
    return first ? p * cosine - q * sine : q * cosine + p * sine;
}
