
int model_encode(struct model *m, const int32_t *ids, size_t count)
{
    if (count == 0 || count > MODEL_STEP)
        return MODEL_FULL;
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= MODEL_TABLE_ROWS)
            return MODEL_BAD_TOKEN;
    memcpy(m->state + A_TOKEN_IDS, ids, count * sizeof *ids);
    /* All tokens are of text 0. */
    memset(m->state + A_ROWS, 0, count * sizeof *ids);
    run(m, 0, count, count);
    m->position = count;
    return check_guards(m->state);
}

const float *model_hidden(const struct model *m)
{
    return (const float *)(m->state + A_OUTPUT);
}
