/* @title@: one call per node, in the order of the plan. */
#include "model.h"
#include "kernels.h"

#include <string.h>

#define F(offset) ((float *)(state + (offset)))
#define W(offset) (weights + (offset))
#define WF(offset) ((const float *)(weights + (offset)))
#define STOP(node) if (m->stop_at == (node)) return

@kv@
/* Computes T tokens from a position on, and the outputs of the last R of them. */
static void run(struct model *m, size_t position, size_t T, size_t R)
{
    uint8_t *const state = m->state;
    const uint8_t *const weights = m->weights;
@inputs@    (void)weights, (void)position, (void)T, (void)R;
@body@@output@}

#ifdef MODEL_DEBUG
/* The bytes between regions, which no kernel may write. */
static const size_t GUARDS[] = {@guards@};

static void set_guards(uint8_t *state)
{
    for (size_t i = 0; i < sizeof GUARDS / sizeof *GUARDS; i++)
        memset(state + GUARDS[i], 0xA5, MODEL_GUARD_BYTES);
}

static int check_guards(const uint8_t *state)
{
    for (size_t i = 0; i < sizeof GUARDS / sizeof *GUARDS; i++)
        for (size_t byte = 0; byte < MODEL_GUARD_BYTES; byte++)
            if (state[GUARDS[i] + byte] != 0xA5)
                return MODEL_OVERRUN;
    return MODEL_OK;
}
#else
#define set_guards(state) ((void)(state))
#define check_guards(state) ((void)(state), MODEL_OK)
#endif

size_t model_state_bytes(void)
{
    return MODEL_STATE_BYTES;
}

int model_open(struct model *m, const void *weights, size_t weight_bytes, void *state)
{
    uint64_t bytes;
    if (weight_bytes < 64 || memcmp(weights, "kvarkC01", 8) != 0)
        return MODEL_BAD_WEIGHTS;
    memcpy(&bytes, (const uint8_t *)weights + 8, sizeof bytes);
    if (bytes != MODEL_WEIGHT_BYTES || weight_bytes < bytes)
        return MODEL_BAD_WEIGHTS;
    memset(m, 0, sizeof *m);
    m->weights = weights;
    m->state = state;
    m->kv_enabled = 1;
    m->stop_at = -1;
#if MODEL_THREADS > 1
    k_start_threads();
#endif
    set_guards(m->state);
@open@    model_reset(m);
    return MODEL_OK;
}

void model_reset(struct model *m)
{
    m->position = m->cached = m->highest = 0;
}
@functions@
