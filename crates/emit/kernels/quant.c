/* Elements of quantised blocks, as functions NAME_at(block, element) give them: scale times the value of the code, plus min. */
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
struct quant { int code; float scale, min; };
HELPER float half_at(const u8 *p) { return load_half(p); }
HELPER u16 u16_at(const u8 *p) { return (u16)(p[0] | p[1] << 8); }
HELPER u32 u32_at(const u8 *p) { return u16_at(p) | (u32)u16_at(p + 2) << 16; }
