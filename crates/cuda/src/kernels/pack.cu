// Packs a weight as the file has it into the device's layout.

struct PackArgs {
    const u8* from;
    u8* codes;
    u8* scales;
    u64 row_bytes;
    int n, k, pairs, file, format;
};

// The value of a plain float in the file; zero outside of the weight.
__device__ float plain_at(const PackArgs& a, int row, int col) {
    if (row >= a.n || col >= a.k) return 0.0f;
    const u8* p = a.from + row * a.row_bytes;
    switch (a.file) {
        case FILE_F32: return __uint_as_float(u32_at(p + 4 * col));
        case FILE_F16: return half_at(p + 2 * col);
        case FILE_BF16: return bf16_to_float(u16_at(p + 2 * col));
        default: {
            quant q = quant_at(a.file, p, col);
            return q.scale * (float)q.code + q.min;
        }
    }
}

__device__ quant code_at(const PackArgs& a, int row, int col) {
    quant none = {0, 0.0f, 0.0f};
    if (row >= a.n || col >= a.k) return none;
    return quant_at(a.file, a.from + row * a.row_bytes, col);
}

// Scale and offset, sixteen times what they are.
__device__ u32 scale_word(const quant& q) {
    return float_to_half(finite_f16(16.0f * q.scale)) | (u32)float_to_half(finite_f16(16.0f * q.min)) << 16;
}

// One warp for every pair of blocks of a tile.
extern "C" __global__ void pack(const __grid_constant__ PackArgs a) {
    begin();
    long long warp = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    int tiles = (a.n + 15) / 16;
    if (warp >= (long long)tiles * a.pairs) return;
    int tile = warp / a.pairs, pair = warp % a.pairs, col0 = pair * 64;
    int words = code_words(a.format);
    u32* codes = (u32*)a.codes + (warp * WARP + lane) * words;
    for (int b = 0; b < 2; b++) {
        for (int side = 0; side < 2; side++) {
            int row = tile * 16 + g + side * 8;
            if (a.format == W4) {
                u32 word = 0;
                for (int j = 0; j < 2; j++)
                    for (int i = 0; i < 4; i++)
                        word |= (u32)code_at(a, row, col0 + column(b, j, t, i)).code << (8 * i + 4 * j);
                codes[b * 2 + side] = word;
                continue;
            }
            for (int j = 0; j < 2; j++) {
                int at[4];
                for (int i = 0; i < 4; i++) at[i] = col0 + column(b, j, t, i);
                if (a.format <= W8_GROUPS) {
                    u32 word = 0;
                    for (int i = 0; i < 4; i++) word |= ((u32)code_at(a, row, at[i]).code & 255) << (8 * i);
                    codes[b * 4 + side * 2 + j] = word;
                } else if (a.format == W_BF16) {
                    u32* to = codes + b * 8 + side * 4 + j * 2;
                    to[0] = pack_bf16(plain_at(a, row, at[0]), plain_at(a, row, at[2]));
                    to[1] = pack_bf16(plain_at(a, row, at[1]), plain_at(a, row, at[3]));
                } else if (a.format == W_F16) {
                    u32* to = codes + b * 8 + side * 4 + j * 2;
                    u16 h[4];
                    for (int i = 0; i < 4; i++) h[i] = float_to_half(plain_at(a, row, at[i]));
                    to[0] = h[0] | (u32)h[2] << 16;
                    to[1] = h[1] | (u32)h[3] << 16;
                } else {
                    u32* to = codes + b * 16 + side * 8 + j * 4;
                    for (int i = 0; i < 4; i++) to[i] = __float_as_uint(plain_at(a, row, at[i]));
                }
            }
        }
    }
    if (lane >= 16) return;
    // A lane for the scales of each row.
    int row = tile * 16 + lane;
    u8* scales = a.scales + (warp * 16 + lane) * scale_bytes(a.format);
    for (int b = 0; b < 2; b++) {
        quant first = code_at(a, row, col0 + b * 32);
        if (a.format == W4) {
            ((u32*)scales)[b] = scale_word(first);
        } else if (a.format == W8) {
            ((u16*)scales)[b] = float_to_half(finite_f16(16.0f * first.scale));
        } else if (a.format == W8_GROUPS) {
            ((u32*)scales)[2 * b] = scale_word(first);
            ((u32*)scales)[2 * b + 1] = scale_word(code_at(a, row, col0 + b * 32 + 16));
        }
    }
}

struct GatherArgs {
    const u8* codes;
    const u8* scales;
    const void* index;
    float* out;
    int rows, k, pairs, format, wide, n;
};

__device__ __forceinline__ float scaled(float code, u32 word) {
    return (half_to_float(word & 0xffff) * code + half_to_float(word >> 16)) * 0.0625f;
}

// The element of a packed weight.
__device__ float packed_at(const GatherArgs& a, long long row, int col) {
    int pair = col / 64, b = col % 64 / 32, j = col % 32 / 16, t = col % 16 / 4, i = col % 4;
    int side = row % 16 / 8, g = row % 8;
    long long warp = row / 16 * a.pairs + pair;
    const u32* codes = (const u32*)a.codes + (warp * WARP + g * 4 + t) * code_words(a.format);
    const u8* scales = a.scales + (warp * 16 + row % 16) * scale_bytes(a.format);
    switch (a.format) {
        case W4: {
            float q = (float)(codes[b * 2 + side] >> (8 * i + 4 * j) & 15);
            return scaled(q, ((const u32*)scales)[b]);
        }
        case W8: {
            float q = (float)(signed char)(codes[b * 4 + side * 2 + j] >> (8 * i) & 255);
            return scaled(q, ((const u16*)scales)[b]);
        }
        case W8_GROUPS: {
            float q = (float)(signed char)(codes[b * 4 + side * 2 + j] >> (8 * i) & 255);
            return scaled(q, ((const u32*)scales)[b * 2 + j]);
        }
        case W_BF16:
        case W_F16: {
            u32 word = codes[b * 8 + side * 4 + j * 2 + i % 2];
            u16 h = i < 2 ? word & 0xffff : word >> 16;
            return a.format == W_BF16 ? bf16_to_float(h) : half_to_float(h);
        }
        default: return __uint_as_float(codes[b * 16 + side * 8 + j * 4 + i]);
    }
}

__device__ __forceinline__ long long index_at(const void* index, int wide, int i) {
    return wide ? ((const long long*)index)[i] : ((const int*)index)[i];
}

// Rows of a packed table; an index outside of it gives zeros.
extern "C" __global__ void gather_packed(const __grid_constant__ GatherArgs a) {
    begin();
    long long row = index_at(a.index, a.wide, blockIdx.x);
    for (int col = threadIdx.x; col < a.k; col += blockDim.x) {
        float x = row >= 0 && row < a.n ? packed_at(a, row, col) : 0.0f;
        a.out[(long long)blockIdx.x * a.k + col] = x;
    }
}

// Rows of a table as the file has it; `format` is the file's, `pairs` the bytes of a row.
extern "C" __global__ void gather_plain(const __grid_constant__ GatherArgs a) {
    begin();
    long long row = index_at(a.index, a.wide, blockIdx.x);
    const u8* from = a.codes + row * (u32)a.pairs;
    for (int col = threadIdx.x; col < a.k; col += blockDim.x) {
        float x = 0.0f;
        if (row >= 0 && row < a.n) {
            if (a.format == FILE_F32) {
                x = ((const float*)from)[col];
            } else {
                quant q = quant_at(a.format, from, col);
                x = q.scale * (float)q.code + q.min;
            }
        }
        a.out[(long long)blockIdx.x * a.k + col] = x;
    }
}
