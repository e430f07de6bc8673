/* Kernels of an emitted model: portable C11.
 *
 * Every kernel adds in one fixed order, that of kvark's generic tier, so that results are the same bits for any compiler and
 * any level of optimisation, as long as multiplications and additions are not contracted (-ffp-contract=off). Loops over
 * sixteen lanes are what compilers turn into vectors.
 */
#include "kernels.h"

#include <math.h>
#include <string.h>

/* Functions that a model may not use. */
#if defined(__GNUC__)
#define HELPER static inline __attribute__((unused))
#else
#define HELPER static inline
#endif

enum { LANES = 16 };

/* Runs a task on parts of `count` pieces, which are independent. */
@parallel@

#if !defined(NO_LANES) && (__GNUC__ >= 9 || defined(__clang__)) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* GCC (from 9 on) and Clang have vectors in C; other compilers are left to find them in loops. */
#define HAS_LANES 1
#endif

#define LOG2_E 1.44269504088896340735992468100189214f

HELPER float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

HELPER uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* An f16 as f32: the product corrects the difference of the exponents' biases and is exact. */
HELPER float half_to_float(uint16_t half)
{
    uint32_t rest = half & 0x7fffu;
    uint32_t finite = float_to_bits(bits_to_float(rest << 13) * 0x1p+112f);
    uint32_t magnitude = rest < 0x7c00u ? finite : (0x7f800000u | rest << 13);
    return bits_to_float((uint32_t)(half & 0x8000u) << 16 | magnitude);
}

/* An f32 as f16, rounded to the nearest, ties to even. */
HELPER uint16_t float_to_half(float value)
{
    uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (rest < 0x38800000u) {
        /* A subnormal: adding one half of the unit makes the addition round. */
        float sum = bits_to_float(rest) + 0.5f;
        return (uint16_t)(sign | (float_to_bits(sum) - 0x3f000000u));
    }
    rest += 0xfffu + (rest >> 13 & 1u);
    return (uint16_t)(sign | (rest - 0x38000000u) >> 13);
}

HELPER float load_half(const uint8_t *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half_to_float(half);
}

/* The nearest integer, ties to even, for magnitudes below 2^22. */
HELPER float round_small(float x)
{
    return (x + 0x1.8p+23f) - 0x1.8p+23f;
}

/* The sum of sixteen lanes: halves, then quarters, eighths, sixteenths. */
HELPER float sum_lanes(const float *lanes)
{
    float sums[8];
    for (int i = 0; i < 8; i++)
        sums[i] = lanes[i] + lanes[i + 8];
    for (int width = 4; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            sums[i] += sums[i + width];
    return sums[0];
}

/* v times 2^n for integral n from -126 to 127. */
HELPER float times_pow2(float v, float n)
{
    return v * bits_to_float((uint32_t)((int32_t)n + 127) << 23);
}

HELPER float exp_lane(float x)
{
    float clamped = x < 88.0f ? x : 88.0f;
    clamped = clamped > -87.0f ? clamped : -87.0f;
    float n = round_small(clamped * LOG2_E);
    float r = n * -0.6933594f + clamped;
    r = n * 2.1219444e-4f + r;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    float power = times_pow2(p, n);
    return x >= -87.0f ? power : 0.0f;
}

HELPER float tanh_lane(float x)
{
    return 1.0f - 2.0f / (exp_lane(x * 2.0f) + 1.0f);
}
