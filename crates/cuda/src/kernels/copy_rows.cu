struct CopyArgs {
    u8* to;
    const u8* from;
    const u32* rows;
    u64 to_stride, from_stride;
    u32 count, row_bytes, base, ring, in_place;
};

// Copies rows: row i of the result is row `rows[i]`. A block for each head; in place, one row after the other.
extern "C" __global__ void copy_rows(const __grid_constant__ CopyArgs a) {
    begin();
    u8* to = a.to + blockIdx.x * a.to_stride;
    const u8* from = a.from + blockIdx.x * a.from_stride;
    if (!a.in_place) {
        for (u64 i = threadIdx.x; i < (u64)a.count * a.row_bytes; i += blockDim.x) {
            to[i] = from[(u64)a.rows[i / a.row_bytes] * a.row_bytes + i % a.row_bytes];
        }
        return;
    }
    for (u32 i = 0; i < a.count; i++) {
        u64 source = a.rows[i] % a.ring, target = (a.base + i) % a.ring;
        if (source != target) {
            for (u32 b = threadIdx.x; b < a.row_bytes; b += blockDim.x) {
                to[target * a.row_bytes + b] = to[source * a.row_bytes + b];
            }
        }
        __syncthreads();
    }
}
