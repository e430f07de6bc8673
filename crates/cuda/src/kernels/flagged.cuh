// Flagged words: an element of a row and the number of the launch that computed it, written by a single 8-byte store.

__device__ __forceinline__ u64 flagged_word(const u64* from) {
    u64 word;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}

__device__ __forceinline__ bool has_flag(u64 word, u32 flag) { return (u32)(word >> 32) == flag; }
__device__ __forceinline__ float element_of(u64 word) { return __uint_as_float((u32)word); }

__device__ __forceinline__ void send(u64* to, float x, u32 flag) {
    u64 word = (u64)flag << 32 | __float_as_uint(x);
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Reads a quad; false if an element of it has not arrived.
__device__ __forceinline__ bool receive(const u64* from, u32 flag, float4* to) {
    u64 x, y, z, w;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(from) : "memory");
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(z), "=l"(w) : "l"(from + 2) : "memory");
    *to = make_float4(element_of(x), element_of(y), element_of(z), element_of(w));
    return has_flag(x, flag) && has_flag(y, flag) && has_flag(z, flag) && has_flag(w, flag);
}

