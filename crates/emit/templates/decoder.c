
/* Whether a layer with a window has overwritten rows that the token behind the first `count` sees. */
static int is_evicted(const struct model *m, size_t count)
{
    for (size_t i = 0; count > 0 && i < MODEL_LAYERS; i++) {
        size_t rows = KV[i].rows, window = KV[i].window;
        size_t first = window && count + 1 > window ? count + 1 - window : 0;
        if (m->highest > rows && first < count && first < m->highest - rows)
            return 1;
    }
    return 0;
}

/* Computes the tokens from `cached` on; they are in the state. */
static int feed(struct model *m, size_t end)
{
    /* A step that was stopped may have overwritten rows of the tokens before it: then all are computed again. */
    size_t at = m->kv_enabled && !is_evicted(m, m->cached) ? m->cached : 0;
    if (at == 0)
        m->highest = 0;
    while (at < end) {
        size_t count = end - at < MODEL_STEP ? end - at : MODEL_STEP;
        int32_t row = (int32_t)count - 1;
        memcpy(m->state + A_ROWS, &row, sizeof row);
        run(m, at, count, at + count == end);
        at += count;
        if (check_guards(m->state) != MODEL_OK)
            return MODEL_OVERRUN;
    }
    m->position = end;
    m->highest = m->highest > end ? m->highest : end;
    /* The layers behind the node at which a step stopped have not stored its rows. */
    if (m->stop_at < 0)
        m->cached = m->kv_enabled ? end : 0;
    return MODEL_OK;
}

int model_prefill(struct model *m, const int32_t *ids, size_t count)
{
    if (count == 0 || count > MODEL_CONTEXT - m->position)
        return MODEL_FULL;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= MODEL_TABLE_ROWS)
            return MODEL_BAD_TOKEN;
    memmove(m->state + A_TOKEN_IDS + m->position * sizeof *ids, ids, count * sizeof *ids);
    return feed(m, m->position + count);
}

int model_decode(struct model *m, int32_t id)
{
    return model_prefill(m, &id, 1);
}

int model_rewind(struct model *m, size_t count)
{
    if (count > m->position)
        return MODEL_FULL;
    /* Tokens that are computed again need no rows. */
    if (m->kv_enabled && count <= m->cached && is_evicted(m, count))
        return MODEL_EVICTED;
    m->position = count;
    m->cached = m->cached < count ? m->cached : count;
    return MODEL_OK;
}

void model_set_kv_enabled(struct model *m, int enabled)
{
    if (m->kv_enabled != enabled)
        m->cached = 0;
    m->kv_enabled = enabled;
}

const float *model_logits(const struct model *m)
{
    return (const float *)(m->state + A_LOGITS);
}
