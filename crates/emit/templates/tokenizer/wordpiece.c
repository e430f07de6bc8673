/* The longest piece that a text begins with, and its length, or NONE. */
static uint32_t longest_piece(const struct tokenizer *t, const uint8_t *text, size_t len, size_t *found)
{
    for (*found = len < TOKENIZER_LONGEST ? len : TOKENIZER_LONGEST; *found > 0; --*found) {
        uint32_t id = NONE;
        if (*found == len || (text[*found] & 0xC0) != 0x80)
            id = find_string(t, U32(T_PIECES), TOKENIZER_PIECES_MASK, text, *found);
        if (id != NONE)
            return id;
    }
    return NONE;
}

/* A word as the longest pieces from left to right; the first one begins with a space, which is U+2581 in the vocabulary. */
static void encode_word(struct tokenizer *t, const uint8_t *text, size_t len)
{
    uint8_t word[1 + 4 * TOKENIZER_MAX_WORD] = {' '};
    uint32_t ids[TOKENIZER_MAX_WORD];
    size_t size = 1, chars = 0, count = 0;
    for (size_t i = 0, n; i < len; i += n) {
        n = char_len(text[i]);
        if (++chars > TOKENIZER_MAX_WORD) {
            push(t, TOKENIZER_UNKNOWN);
            return;
        }
        int is_mark = n == 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        memcpy(word + size, is_mark ? (const uint8_t *)" " : text + i, is_mark ? 1 : n);
        size += is_mark ? 1 : n;
    }
    for (size_t at = 0, found; at < size; at += found) {
        ids[count] = longest_piece(t, word + at, size - at, &found);
        if (ids[count] == NONE || (at == 0 && found == 1)) {
            push(t, TOKENIZER_UNKNOWN);
            return;
        }
        count++;
    }
    for (size_t i = 0; i < count; i++)
        push(t, ids[i]);
}

/* A row {first, last, offset, length} of characters that normalisation changes, or NULL. */
static const uint32_t *change_of(const struct tokenizer *t, uint32_t c)
{
    const uint32_t *rows = U32(T_CHARACTERS);
    size_t low = 0, high = TOKENIZER_CHARACTERS;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (rows[4 * middle + 1] < c)
            low = middle + 1;
        else
            high = middle;
    }
    return low < TOKENIZER_CHARACTERS && rows[4 * low] <= c ? rows + 4 * low : NULL;
}

static void encode_text(struct tokenizer *t, const uint8_t *text, size_t len, int first)
{
    (void)first;
    size_t size = 0;
    struct dead_end dead = {NONE, 0, 0};
    for (size_t i = 0, n; i < len; i += n) {
        n = char_len(text[i]);
        const uint32_t *row = change_of(t, character(text + i));
        size_t plain = row ? row[3] : n;
        memcpy(t->plain + size, row ? U8(T_CHARACTER_TEXT) + row[2] : text + i, plain);
        size += plain;
    }
    for (size_t at = 0, end; at < size; at = end > at ? end : at + char_len(t->plain[at])) {
        end = match(t, 0, t->plain, at, size, &dead);
        if (end > at)
            encode_word(t, t->plain + at, end - at);
    }
}

