
/* Appends tokens, in steps of at most MODEL_STEP; the logits are those after the last one. */
int model_prefill(struct model *m, const int32_t *ids, size_t count);

/* Appends one token. */
int model_decode(struct model *m, int32_t id);

/* Keeps the first `count` tokens. There are no logits until the next token. */
int model_rewind(struct model *m, size_t count);

/* Without the cache every call computes the keys and values of all tokens again. The logits are the same. */
void model_set_kv_enabled(struct model *m, int enabled);

/* The MODEL_VOCAB logits of the last call. */
const float *model_logits(const struct model *m);
