/* @title@
 *
 * Every buffer has a fixed offset. Offsets of A_ are in the state, those of W_ (as in the model file), P_ (packed for the
 * kernels) and T_ (tables of positions) in weights.bin. layout.map has them as a table.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>
#include <stdint.h>

@facts@
@kv@
/* The state. */
@state@
/* Intermediate results: buffers that are not needed at the same time share memory. */
@arena@
/* Weights. */
@weights@
enum model_error {
    MODEL_OK = 0,
    MODEL_BAD_WEIGHTS = -1, /* the weights are not those of this program */
    MODEL_BAD_TOKEN = -2,   /* a token id is outside of the vocabulary */
    MODEL_FULL = -3,        /* the tokens do not fit in the context */
    MODEL_EVICTED = -4,     /* a layer with a window no longer has the rows to go back to that position */
    MODEL_OVERRUN = -5      /* a debug build found bytes between two regions overwritten */
};

struct model {
    const uint8_t *weights;
    uint8_t *state;
    size_t position; /* tokens in the context */
    size_t cached;   /* tokens whose keys and values are stored */
    size_t highest;  /* the most tokens stored since the last reset */
    int kv_enabled;
    int stop_at; /* the node behind which a step stops; negative for none */
};

/* Bytes of the state, which the caller provides, aligned to 64. */
size_t model_state_bytes(void);

/* Binds weights and state, and resets the model. */
int model_open(struct model *m, const void *weights, size_t weight_bytes, void *state);

/* Forgets all tokens. */
void model_reset(struct model *m);
@functions@
#endif
