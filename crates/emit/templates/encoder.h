
/* Computes the hidden states of a text of at most MODEL_STEP tokens. */
int model_encode(struct model *m, const int32_t *ids, size_t count);

/* The hidden states of the last text: MODEL_WIDTH numbers for each token. */
const float *model_hidden(const struct model *m);
