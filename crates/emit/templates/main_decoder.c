static int32_t best(const float *logits)
{
    int32_t best = 0;
    for (int32_t i = 1; i < MODEL_VOCAB; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Continues the ids with the best token each time and prints the new ones. */
static int generate(struct model *m, size_t count, long wanted, int32_t stop, int kv_enabled@as_text@, FILE *logits)
{
    model_set_kv_enabled(m, kv_enabled);
    int error = model_prefill(m, ids, count);
    for (long i = 0; !error; i++) {
        if (logits)
            fwrite(model_logits(m), sizeof(float), MODEL_VOCAB, logits);
        int32_t id = best(model_logits(m));
        if (i >= wanted || id == stop ||@text_end@ m->position == MODEL_CONTEXT)
            break;
@print@        fflush(stdout);
        if (i + 1 == wanted && !logits)
            break;
        error = model_decode(m, id);
    }
    printf("\n");
    return error;
}

