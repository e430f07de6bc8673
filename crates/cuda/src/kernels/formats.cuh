// Weight formats: how a file stores them, and how the device does.
//
// On the device a weight [n, k] lies in tiles of 16 rows and pairs of 64 columns, in the order in which the lanes of a warp
// take the fragments of `mma.m16n8k16`. Lane (g, t) = (lane / 4, lane % 4) takes of every 16 columns the four from 4 t on, for
// rows g and g + 8. Rows and columns past the weight's end are zero.

// Scales and offsets are f16 numbers, sixteen times what they are in the file.

// Numbered as `DeviceFormat` in Rust numbers them.
#define W4 0         // codes of 4 bits; scale and offset for 32 columns
#define W8 1         // signed codes of 8 bits; scale for 32 columns
#define W8_GROUPS 2  // signed codes of 8 bits; scale and offset for 16 columns
#define W_BF16 3
#define W_F16 4
#define W_F32 5

// 32-bit words of codes that a lane has for a pair of blocks (rows g and g + 8, 64 columns).
__host__ __device__ constexpr int code_words(int format) {
    return format == W4 ? 4 : format <= W8_GROUPS ? 8 : format <= W_F16 ? 16 : 32;
}

// Bytes of the scales of one row for a pair of blocks.
__host__ __device__ constexpr int scale_bytes(int format) {
    return format == W4 ? 8 : format == W8 ? 4 : format == W8_GROUPS ? 16 : 0;
}

// Plain types of files, numbered as in GGUF files. Block formats have functions of their own, made from `base::quant`.
#define FILE_F32 0
#define FILE_F16 1
#define FILE_BF16 30

__device__ __forceinline__ u16 u16_at(const u8* p) { return (u16)(p[0] | p[1] << 8); }
__device__ __forceinline__ float half_at(const u8* p) { return half_to_float(u16_at(p)); }
__device__ __forceinline__ u32 u32_at(const u8* p) {
    return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

// An element of a block: `scale * code + min`.
struct quant {
    int code;
    float scale;
    float min;
};

// The column of a pair of blocks that the `i`-th of a lane's four elements is, for block `b` and half `j` of it.
__device__ __forceinline__ int column(int b, int j, int t, int i) { return b * 32 + j * 16 + 4 * t + i; }
