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

// File formats, numbered as `file_format` in Rust numbers them.
#define FILE_F32 0
#define FILE_F16 1
#define FILE_BF16 2
#define FILE_Q4_0 3
#define FILE_Q4_1 4
#define FILE_Q5_0 5
#define FILE_Q5_1 6
#define FILE_Q8_0 7
#define FILE_Q2_K 8
#define FILE_Q3_K 9
#define FILE_Q4_K 10
#define FILE_Q5_K 11
#define FILE_Q6_K 12
#define FILE_IQ4_NL 13
#define FILE_IQ4_XS 14

__device__ __forceinline__ u16 u16_at(const u8* p) { return (u16)(p[0] | p[1] << 8); }
__device__ __forceinline__ float half_at(const u8* p) { return half_to_float(u16_at(p)); }
__device__ __forceinline__ u32 u32_at(const u8* p) {
    return p[0] | (u32)p[1] << 8 | (u32)p[2] << 16 | (u32)p[3] << 24;
}

__constant__ signed char IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Quant {
    int code;
    float scale;
    float offset;
};

__device__ __forceinline__ void scale_min(const u8* packed, int i, int* scale, int* min) {
    if (i < 4) {
        *scale = packed[i] & 63;
        *min = packed[4 + i] & 63;
    } else {
        *scale = (packed[4 + i] & 15) | (packed[i - 4] >> 6) << 4;
        *min = packed[4 + i] >> 4 | (packed[i] >> 6) << 4;
    }
}

// Element `e` of a row of blocks: the element is `scale * code + offset`.
__device__ Quant quant_at(int format, const u8* row, int e) {
    Quant q = {0, 0.0f, 0.0f};
    int in = e % 32, half = in / 16, at = in % 16;
    switch (format) {
        case FILE_Q4_0: {
            const u8* b = row + e / 32 * 18;
            q.scale = half_at(b);
            q.offset = -8.0f * q.scale;
            q.code = b[2 + at] >> (4 * half) & 15;
            break;
        }
        case FILE_Q4_1: {
            const u8* b = row + e / 32 * 20;
            q.scale = half_at(b);
            q.offset = half_at(b + 2);
            q.code = b[4 + at] >> (4 * half) & 15;
            break;
        }
        case FILE_Q5_0: {
            const u8* b = row + e / 32 * 22;
            q.scale = half_at(b);
            q.code = ((b[6 + at] >> (4 * half) & 15) | (u32_at(b + 2) >> in & 1) << 4) - 16;
            break;
        }
        case FILE_Q5_1: {
            const u8* b = row + e / 32 * 24;
            q.scale = half_at(b);
            q.offset = half_at(b + 2);
            q.code = (b[8 + at] >> (4 * half) & 15) | (u32_at(b + 4) >> in & 1) << 4;
            break;
        }
        case FILE_Q8_0: {
            const u8* b = row + e / 32 * 34;
            q.scale = half_at(b);
            q.code = (signed char)b[2 + in];
            break;
        }
        case FILE_IQ4_NL: {
            const u8* b = row + e / 32 * 18;
            q.scale = half_at(b);
            q.code = IQ4_VALUES[b[2 + at] >> (4 * half) & 15];
            break;
        }
        case FILE_IQ4_XS: {
            const u8* b = row + e / 256 * 136;
            int group = e % 256 / 32;
            int low = b[4 + group / 2] >> (4 * (group % 2)) & 15;
            int high = u16_at(b + 2) >> (2 * group) & 3;
            q.scale = half_at(b) * (float)((low | high << 4) - 32);
            q.code = IQ4_VALUES[b[8 + group * 16 + at] >> (4 * half) & 15];
            break;
        }
        case FILE_Q2_K: {
            const u8* b = row + e / 256 * 84;
            int group = e % 256 / 16;
            q.scale = half_at(b + 80) * (float)(b[group] & 15);
            q.offset = -(half_at(b + 82) * (float)(b[group] >> 4));
            q.code = b[16 + group / 8 * 32 + group % 2 * 16 + e % 16] >> (group % 8 / 2 * 2) & 3;
            break;
        }
        case FILE_Q3_K: {
            const u8* b = row + e / 256 * 110;
            int group = e % 256 / 16;
            int low = b[96 + group % 8] >> (group / 8 * 4) & 15;
            int high = b[104 + group % 4] >> (group / 4 * 2) & 3;
            q.scale = half_at(b + 108) * (float)((low | high << 4) - 32);
            int bits = b[32 + group / 8 * 32 + group % 2 * 16 + e % 16] >> (group % 8 / 2 * 2) & 3;
            int top = b[group % 2 * 16 + e % 16] >> (group / 2) & 1;
            q.code = (bits | top << 2) - 4;
            break;
        }
        case FILE_Q4_K: {
            const u8* b = row + e / 256 * 144;
            int group = e % 256 / 32, scale, min;
            scale_min(b + 4, group, &scale, &min);
            q.scale = half_at(b) * (float)scale;
            q.offset = -(half_at(b + 2) * (float)min);
            q.code = b[16 + group / 2 * 32 + in] >> (group % 2 * 4) & 15;
            break;
        }
        case FILE_Q5_K: {
            const u8* b = row + e / 256 * 176;
            int group = e % 256 / 32, scale, min;
            scale_min(b + 4, group, &scale, &min);
            q.scale = half_at(b) * (float)scale;
            q.offset = -(half_at(b + 2) * (float)min);
            q.code = (b[48 + group / 2 * 32 + in] >> (group % 2 * 4) & 15) | (b[16 + in] >> group & 1) << 4;
            break;
        }
        case FILE_Q6_K: {
            const u8* b = row + e / 256 * 210;
            int group = e % 256 / 16;
            q.scale = half_at(b + 208) * (float)(signed char)b[192 + group];
            int low = b[group / 8 * 64 + group % 4 * 16 + e % 16] >> (group % 8 / 4 * 4) & 15;
            int high = b[128 + group / 8 * 32 + group % 2 * 16 + e % 16] >> (group % 8 / 2 * 2) & 3;
            q.code = (low | high << 4) - 32;
            break;
        }
    }
    return q;
}

// The column of a pair of blocks that the `i`-th of a lane's four elements is, for block `b` and half `j` of it.
__device__ __forceinline__ int column(int b, int j, int t, int i) { return b * 32 + j * 16 + 4 * t + i; }
