/* The bytes of a character that is no piece; a space is spelled as U+2581. */
static void spell(struct tokenizer *t, const uint8_t *text, size_t len)
{
    const uint8_t *spelled = *text == ' ' ? (const uint8_t *)"\xE2\x96\x81" : text;
    const uint32_t *bytes = U32(T_BYTES);
    len = *text == ' ' ? 3 : len;
    for (size_t i = 0; i < len; i++)
        if (bytes[spelled[i]] == NONE) {
            if (TOKENIZER_UNKNOWN >= 0)
                push(t, (uint32_t)TOKENIZER_UNKNOWN);
            return;
        }
    for (size_t i = 0; i < len; i++)
        push(t, bytes[spelled[i]]);
}

static void encode_run(struct tokenizer *t, const uint8_t *text, size_t len)
{
    t->symbol_count = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = char_len(text[i]);
        add_symbol(t, i, i + n, find_string(t, U32(T_PIECES), TOKENIZER_PIECES_MASK, text + i, n));
    }
    if (t->symbol_count == 0)
        return;
    merge_symbols(t, text);
    for (uint32_t i = 0; i != NONE; i = t->symbols[i].after) {
        const struct tokenizer_symbol *symbol = &t->symbols[i];
        if (symbol->id != NONE)
            push(t, symbol->id);
        else
            spell(t, text + symbol->start, symbol->end - symbol->start);
    }
}

/* Pieces have spaces where SentencePiece has U+2581, so that character becomes a space as well. */
static void encode_text(struct tokenizer *t, const uint8_t *text, size_t len, int first)
{
    size_t size = 0, words = 0, space = 0;
    if (TOKENIZER_SPACE_PREFIX && (first || !TOKENIZER_SPACE_PREFIX_ONCE) && !(TOKENIZER_SPACE_PREFIX_IF_MISSING && *text == ' '))
        t->plain[size++] = ' ';
    for (size_t i = 0, n; i < len; i += n) {
        n = char_len(text[i]);
        if (TOKENIZER_COLLAPSE_SPACES && text[i] == ' ') {
            space = 1;
            continue;
        }
        if (space && words)
            t->plain[size++] = ' ';
        space = 0;
        words = 1;
        if (n == 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0) {
            t->plain[size++] = ' ';
        } else {
            memcpy(t->plain + size, text + i, n);
            size += n;
        }
    }
@runs@}

