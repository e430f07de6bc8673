static int is_before(const struct tokenizer_merge *a, const struct tokenizer_merge *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

/* Puts a merge of a symbol and the one behind it into the heap, if they merge. */
static void propose(struct tokenizer *t, const uint8_t *text, uint32_t left)
{
    const struct tokenizer_symbol *a = &t->symbols[left], *b;
    struct tokenizer_merge merge = {0, left, 0, 0, 0};
    if (a->after == NONE)
        return;
    b = &t->symbols[a->after];
    if (!find_merge(t, text, a, b, &merge.rank, &merge.id))
        return;
    merge.left_end = a->end;
    merge.right_end = b->end;
    size_t at = t->merge_count++;
    for (; at > 0 && is_before(&merge, &t->merges[(at - 1) / 2]); at = (at - 1) / 2)
        t->merges[at] = t->merges[(at - 1) / 2];
    t->merges[at] = merge;
}

/* Takes the best merge out of the heap. */
static struct tokenizer_merge take(struct tokenizer *t)
{
    struct tokenizer_merge best = t->merges[0], last = t->merges[--t->merge_count];
    size_t at = 0;
    for (size_t child = 1; child < t->merge_count; child = 2 * at + 1) {
        if (child + 1 < t->merge_count && is_before(&t->merges[child + 1], &t->merges[child]))
            child++;
        if (!is_before(&t->merges[child], &last))
            break;
        t->merges[at] = t->merges[child];
        at = child;
    }
    t->merges[at] = last;
    return best;
}

static void add_symbol(struct tokenizer *t, size_t start, size_t end, uint32_t id)
{
    struct tokenizer_symbol symbol = {(uint32_t)start, (uint32_t)end, id, NONE, NONE};
    if (t->symbol_count > 0) {
        symbol.before = (uint32_t)t->symbol_count - 1;
        t->symbols[symbol.before].after = (uint32_t)t->symbol_count;
    }
    t->symbols[t->symbol_count++] = symbol;
}

/* Merges neighbours, the lowest rank first, until none merge. Symbols are linked from the first on. */
static void merge_symbols(struct tokenizer *t, const uint8_t *text)
{
    t->merge_count = 0;
    for (uint32_t i = 0; i < t->symbol_count; i++)
        propose(t, text, i);
    while (t->merge_count > 0) {
        struct tokenizer_merge merge = take(t);
        struct tokenizer_symbol *a = &t->symbols[merge.left], *b;
        /* One of the two has merged since; a symbol that is part of another ends at 0. */
        if (a->end != merge.left_end || a->after == NONE || t->symbols[a->after].end != merge.right_end)
            continue;
        b = &t->symbols[a->after];
        a->end = b->end;
        a->id = merge.id;
        a->after = b->after;
        b->end = 0;
        if (a->after != NONE)
            t->symbols[a->after].before = merge.left;
        propose(t, text, merge.left);
        if (a->before != NONE)
            propose(t, text, a->before);
    }
}

