/* The kernels of the model, and what they take. */
#ifndef MODEL_KERNELS_H
#define MODEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

@limits@

enum binary { ADD, SUB, MUL, DIV, MIN, MAX };

/* Elements from one iteration to the next of two loops. */
struct steps {
    size_t outer, inner;
};

/* A strided copy: sizes of the axes, elements from one index to the next in source and target, and where both start. */
struct view {
    size_t shape[4], from[4], to[4], start, offset;
};

/* The format of a weight with a scale per row: inputs of a group, the centre of the quants, and the bits of a quant above the fourth. */
struct row_scaled {
    size_t group;
    int32_t centre;
    size_t upper;
};

/* Where the codes of a weight in panels are: bytes from block to block of 32 inputs, bits above the fourth, whether codes are bytes,
 * whether rows r and r + 8 are neighbours. */
struct panel_codes {
    size_t stride, upper;
    int is_byte, pairs;
};

/* Storage types of keys and values, numbered by the bytes of an element. */
enum { KV_E4M3 = 1, KV_F16 = 2, KV_F32 = 4 };

/* The keys and values of a layer: [head][row][dim]. Position p is in row p modulo the rows. */
struct kv_layer {
    uint8_t *keys, *values;
    size_t heads, rows, key_dim, value_dim;
    int key_type, value_type;
};

/* How windows slide along an axis, and the element of the padding. */
struct window_axis {
    size_t len, size, stride, dilation, before, places;
};

struct windows {
    struct window_axis axes[3];
    float padding;
};

/* A convolution of groups of `inner` input and `outer` output channels. */
struct conv {
    struct window_axis axes[3];
    size_t batch, groups, inner, outer;
};

@declarations@
#endif
