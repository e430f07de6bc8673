
/* Offsets in the state and lengths. */
static const size_t INPUTS[MODEL_INPUTS][2] = {@input_table@};
static const size_t OUTPUTS[MODEL_OUTPUTS][2] = {@output_table@};

size_t model_input_len(size_t index)
{
    return INPUTS[index][1];
}

size_t model_output_len(size_t index)
{
    return OUTPUTS[index][1];
}

float *model_input(struct model *m, size_t index)
{
    return (float *)(m->state + INPUTS[index][0]);
}

int model_compute(struct model *m)
{
    run(m, 0, 1, 1);
    return check_guards(m->state);
}

const float *model_output(const struct model *m, size_t index)
{
    return (const float *)(m->state + OUTPUTS[index][0]);
}
