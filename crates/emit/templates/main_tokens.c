static int32_t ids[MODEL_CONTEXT];

/* Appends the ids of a text, which are separated by commas or spaces; returns whether it has nothing else and they fit. */
static int read_ids(const char *text, size_t *count)
{
    for (;;) {
        text += strspn(text, ", \t\r\n");
        if (!*text)
            return 1;
        char *end;
        errno = 0;
        long value = strtol(text, &end, 10);
        if (end == text || (*end && !strchr(", \t\r\n", *end)) || errno || value < 0 || value > INT32_MAX || *count == MODEL_CONTEXT)
            return 0;
        ids[(*count)++] = (int32_t)value;
        text = end;
    }
}

@text@@generate@
int main(int argc, char **argv)
{
    const char *weights_path = "weights.bin", *logits_path = NULL;
    long wanted = 16;
    int32_t stop = -1;
    size_t count = 0, weight_bytes = 0;
    int kv_enabled = 1;
@text_variables@    for (int i = 1; i < argc; i++) {
        int has_value = i + 1 < argc;
        if (is_help(argv[i])) {
            return help();
        } else if (strcmp(argv[i], "-k") == 0) {
            kv_enabled = 0;
        } else if (strcmp(argv[i], "-w") == 0 && has_value) {
            weights_path = argv[++i];
        } else if (strcmp(argv[i], "-l") == 0 && has_value) {
            logits_path = argv[++i];
        } else if (strcmp(argv[i], "-n") == 0 && has_value) {
            wanted = strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "-e") == 0 && has_value) {
            stop = (int32_t)strtol(argv[++i], NULL, 10);
@text_options@        } else if (!read_ids(argv[i], &count)) {
            return fail(argv[i], "not token ids, or more than the context holds");
        }
    }
@text_read@    if (count == 0@no_text@) {
        long value;
        while ((void)!scanf("%*[, \t\r\n]"), scanf("%ld", &value) == 1) {
            if (value < 0 || value > INT32_MAX || count == MODEL_CONTEXT)
                return fail("standard input", "not token ids, or more than the context holds");
            ids[count++] = (int32_t)value;
        }
        if (!feof(stdin))
            return fail("standard input", "not token ids");
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
    FILE *logits = logits_path ? fopen(logits_path, "wb") : NULL;
    if (logits_path && !logits)
        return fail(logits_path, "cannot be written");
    error = generate(&model, count, wanted, stop, kv_enabled@as_text@, logits);
    if (logits && fclose(logits) != 0)
        return fail(logits_path, "cannot be written");
    return error ? fail("the model", reason(error)) : 0;
}
