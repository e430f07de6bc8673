/* Rank and result of merging two symbols; returns whether they merge. */
static int find_merge(const struct tokenizer *t, const uint8_t *text, const struct tokenizer_symbol *a,
                      const struct tokenizer_symbol *b, uint32_t *rank, uint32_t *id)
{
    (void)text;
    const uint32_t *row = a->id == NONE || b->id == NONE ? NULL : find_pair(U32(T_MERGES), TOKENIZER_MERGES_MASK, a->id, b->id);
    if (!row)
        return 0;
    *rank = row[2];
    *id = row[3];
    return 1;
}

