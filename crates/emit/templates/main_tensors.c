int main(int argc, char **argv)
{
    const char *weights_path = "weights.bin";
    size_t weight_bytes = 0;
    for (int i = 1; i < argc; i++) {
        if (is_help(argv[i]))
            return help();
        if (strcmp(argv[i], "-w") != 0 || i + 1 == argc)
            return fail(argv[i], "unknown argument");
        weights_path = argv[++i];
    }
    struct model model;
    const void *weights = load_weights(weights_path, &weight_bytes);
    if (!weights)
        return fail(weights_path, "cannot be read");
    void *state = make_state();
    if (!state)
        return fail("the state", "not enough memory");
    hold(weights, weight_bytes, state);
    int error = model_open(&model, weights, weight_bytes, state);
    if (error)
        return fail(weights_path, reason(error));
    for (size_t i = 0; i < MODEL_INPUTS; i++)
        if (fread(model_input(&model, i), sizeof(float), model_input_len(i), stdin) != model_input_len(i))
            return fail("standard input", "is shorter than the inputs");
    if (getchar() != EOF)
        return fail("standard input", "is longer than the inputs");
    error = model_compute(&model);
    if (error)
        return fail("the model", reason(error));
    for (size_t i = 0; i < MODEL_OUTPUTS; i++)
        if (fwrite(model_output(&model, i), sizeof(float), model_output_len(i), stdout) != model_output_len(i))
            return fail("standard output", "cannot be written");
    return fflush(stdout) == 0 ? 0 : fail("standard output", "cannot be written");
}
