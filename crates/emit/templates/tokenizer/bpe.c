static void encode_word(struct tokenizer *t, const uint8_t *word, size_t len)
{
@whole@    t->symbol_count = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = U32(T_BYTES)[word[i]];
        if (id != NONE)
            add_symbol(t, i, i + 1, id);
    }
    if (t->symbol_count == 0)
        return;
    merge_symbols(t, word);
    for (uint32_t i = 0; i != NONE; i = t->symbols[i].after)
        push(t, t->symbols[i].id);
}

static void encode_text(struct tokenizer *t, const uint8_t *text, size_t len, int first)
{
    (void)first;
    split(t, 0, text, len);
}

