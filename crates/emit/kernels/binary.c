/* Arithmetic of two tensors. The result may overwrite an operand. */
static inline float combine(float a, float b, enum binary function)
{
    switch (function) {
    case ADD:
        return a + b;
    case SUB:
        return a - b;
    case MUL:
        return a * b;
    case DIV:
        return a / b;
    case MIN:
        return a != a ? a : (a < b ? a : b) + 0.0f;
    case MAX:
        return a != a ? a : (a > b ? a : b) + 0.0f;
    }
    return a;
}

/* out[i][j] = function(a, b): `outer` rows of `inner` elements; steps are the elements from one to the next in both loops. */
void k_binary(const float *a, const float *b, float *out, size_t outer, size_t inner, struct steps a_steps, struct steps b_steps,
              enum binary function)
{
    for (size_t i = 0; i < outer; i++) {
        const float *x = a + i * a_steps.outer, *y = b + i * b_steps.outer;
        float *to = out + i * inner;
        if (function == ADD && a_steps.inner == 1 && b_steps.inner == 1)
            for (size_t j = 0; j < inner; j++)
                to[j] = x[j] + y[j];
        else
            for (size_t j = 0; j < inner; j++)
                to[j] = combine(x[j * a_steps.inner], y[j * b_steps.inner], function);
    }
}
