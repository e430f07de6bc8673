/* Convolutions: x is [batch][groups * inner][axis 0][axis 1][axis 2], weight [groups * outer][inner][kernel], out
 * [batch][groups * outer][places...]. A result is a chain of sums along 256 weights; the chains are added in order, then the
 * bias and the residual.
 */
enum { CONV_BLOCK = 256, CONV_PLACES = 64 };

struct conv_task {
    const float *x, *weight, *bias, *residual;
    float *out;
    struct conv op;
};

/* `count` places of a row from `first` on: x and weight are those of an output channel. */
static void conv_places(const struct conv *op, const float *x, const float *weight, const size_t row[2], size_t first,
                        size_t count, float *total)
{
    const struct window_axis *a = op->axes, *b = op->axes + 1, *c = op->axes + 2;
    size_t kernel = a->size * b->size * c->size, depth = op->inner * kernel;
    for (size_t start = 0; start == 0 || start < depth; start += CONV_BLOCK) {
        float sums[CONV_PLACES] = {0};
        for (size_t at = start; at < depth && at < start + CONV_BLOCK; at++) {
            size_t channel = at / kernel, tap = at % kernel, k = tap % c->size;
            size_t p = window_place(a, row[0], tap / c->size / b->size);
            size_t q = window_place(b, row[1], tap / c->size % b->size);
            if (p >= a->len || q >= b->len)
                continue;
            const float *line = x + ((channel * a->len + p) * b->len + q) * c->len;
            size_t begin = 0, end = count;
            while (begin < end && window_place(c, first + begin, k) >= c->len)
                begin++;
            while (begin < end && window_place(c, first + end - 1, k) >= c->len)
                end--;
            if (begin == end)
                continue;
            const float *from = line + window_place(c, first + begin, k);
            if (c->stride == 1)
                for (size_t i = 0; i < end - begin; i++)
                    sums[begin + i] += weight[at] * from[i];
            else
                for (size_t i = 0; i < end - begin; i++)
                    sums[begin + i] += weight[at] * from[i * c->stride];
        }
        for (size_t i = 0; i < count; i++)
            total[i] = start ? total[i] + sums[i] : sums[i];
    }
}

static void conv_channels(const void *context, size_t begin, size_t end)
{
    const struct conv_task *t = context;
    const struct conv *op = &t->op;
    const struct window_axis *a = op->axes, *b = op->axes + 1, *c = op->axes + 2;
    size_t kernel = a->size * b->size * c->size, plane = a->len * b->len * c->len;
    size_t rows = a->places * b->places, outer = op->groups * op->outer;
    for (size_t channel = begin; channel < end; channel++) {
        size_t own = channel % outer, group = channel / outer * op->groups + own / op->outer;
        const float *x = t->x + group * op->inner * plane, *weight = t->weight + own * op->inner * kernel;
        for (size_t at = 0; at < rows; at++)
            for (size_t first = 0; first < c->places; first += CONV_PLACES) {
                size_t count = c->places - first < CONV_PLACES ? c->places - first : CONV_PLACES;
                size_t row[2] = {at / b->places, at % b->places}, to = (channel * rows + at) * c->places + first;
                float total[CONV_PLACES];
                conv_places(op, x, weight, row, first, count, total);
                for (size_t i = 0; i < count; i++) {
                    float sum = t->bias ? total[i] + t->bias[own] : total[i];
                    t->out[to + i] = t->residual ? sum + t->residual[to + i] : sum;
                }
            }
    }
}

/* out = x convolved with weight, plus the bias and the residual, if there are any. */
void k_conv(const float *weight, const float *bias, const float *residual, const float *x, float *out, struct conv op)
{
    struct conv_task task = {x, weight, bias, residual, out, op};
    parallel(conv_channels, &task, op.batch * op.groups * op.outer);
}
