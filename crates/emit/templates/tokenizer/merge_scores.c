/* Rank and result of merging two symbols; returns whether their text is a piece. */
static int find_merge(const struct tokenizer *t, const uint8_t *text, const struct tokenizer_symbol *a,
                      const struct tokenizer_symbol *b, uint32_t *rank, uint32_t *id)
{
    *id = find_string(t, U32(T_PIECES), TOKENIZER_PIECES_MASK, text + a->start, b->end - a->start);
    if (*id == NONE)
        return 0;
    *rank = U32(T_RANKS)[*id];
    return 1;
}

