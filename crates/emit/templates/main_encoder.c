/* Prints the hidden states, a line for each token. */
static int generate(struct model *m, size_t count, long wanted, int32_t stop, int kv_enabled@as_text@, FILE *logits)
{
    (void)wanted, (void)stop, (void)kv_enabled@text_unused@;
    int error = model_encode(m, ids, count);
    if (error)
        return error;
    const float *hidden = model_hidden(m);
    if (logits)
        fwrite(hidden, sizeof(float), count * MODEL_WIDTH, logits);
    for (size_t i = 0; i < count * MODEL_WIDTH; i++)
        printf("%.9g%s", (double)hidden[i], (i + 1) % MODEL_WIDTH ? " " : "\n");
    return MODEL_OK;
}

