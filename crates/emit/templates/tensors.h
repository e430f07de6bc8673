
/* The f32 numbers of an input or output, in the order of the graph. */
size_t model_input_len(size_t index);
size_t model_output_len(size_t index);

/* An input, to be written before model_compute. */
float *model_input(struct model *m, size_t index);

/* Computes the outputs. Keys and values of attention are intermediate results: nothing is kept for the next call. */
int model_compute(struct model *m);

/* An output of the last model_compute. */
const float *model_output(const struct model *m, size_t index);
