static uint32_t character(const uint8_t *text)
{
    switch (char_len(text[0])) {
    case 1:
        return text[0];
    case 2:
        return (text[0] & 0x1Fu) << 6 | (text[1] & 0x3Fu);
    case 3:
        return (text[0] & 0x0Fu) << 12 | (text[1] & 0x3Fu) << 6 | (text[2] & 0x3Fu);
    }
    return (text[0] & 0x07u) << 18 | (text[1] & 0x3Fu) << 12 | (text[2] & 0x3Fu) << 6 | (text[3] & 0x3Fu);
}

/* The class of a character; a range is its first character, shifted by 8, and the class. */
static uint32_t class_of(const struct tokenizer *t, uint32_t c)
{
    const uint32_t *ranges = U32(T_RANGES);
    size_t low = 0, high = TOKENIZER_RANGES;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (ranges[middle] >> 8 <= c)
            low = middle;
        else
            high = middle;
    }
    return ranges[low] & 0xFF;
}

/* A pattern: offsets of the next state by state and class and of where a match may end (1: behind it the text ends, 3: anywhere), and
 * whether the last white space before a match is a piece of its own. */
static const struct {
    size_t next, accepts;
    int splits_last_space;
} STAGES[] = {@stages@};

/* A state from which no match ended, and the positions where it was tried: a run of spaces would be read again from each of them. */
struct dead_end {
    uint32_t state;
    size_t from, to;
};

/* The end of the match of a pattern that begins at `at`, or `at` if there is none. `dead` is kept for the texts of one `end`. */
static size_t match(const struct tokenizer *t, size_t stage, const uint8_t *text, size_t at, size_t end, struct dead_end *dead)
{
    const uint16_t *next = U16(STAGES[stage].next);
    const uint8_t *accepts = U8(STAGES[stage].accepts);
    size_t found = at, entered = at;
    for (uint32_t state = 0;;) {
        if (accepts[state] & (at == end ? 1 : 2)) {
            found = at;
            entered = SIZE_MAX;
        }
        if (state == dead->state && at >= dead->from && at <= dead->to)
            break;
        uint32_t after = at == end ? 0xFFFF : next[state * TOKENIZER_CLASSES + class_of(t, character(text + at))];
        if (after == 0xFFFF) {
            if (state != 0 && entered <= at)
                *dead = (struct dead_end){state, entered, at};
            break;
        }
        at += char_len(text[at]);
        if (after != state)
            entered = at;
        state = after;
    }
    return found;
}

