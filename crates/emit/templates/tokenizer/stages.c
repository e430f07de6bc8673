static void encode_word(struct tokenizer *t, const uint8_t *word, size_t len);

/* Splits a piece by the patterns from `stage` on: matches and the text between them are pieces of the next one. */
static void split(struct tokenizer *t, size_t stage, const uint8_t *text, size_t len)
{
    if (stage == sizeof STAGES / sizeof *STAGES) {
        encode_word(t, text, len);
        return;
    }
    size_t done = 0, last = 0;
    struct dead_end dead = {NONE, 0, 0};
    for (size_t at = 0; at < len;) {
        size_t end = match(t, stage, text, at, len, &dead);
        if (end == at) {
            last = at;
            at += char_len(text[at]);
            continue;
        }
        int begins_word = !U8(T_WHITE_SPACE)[class_of(t, character(text + at))];
        if (STAGES[stage].splits_last_space && begins_word && done < at && last > done) {
            split(t, stage + 1, text + done, last - done);
            done = last;
        }
        if (done < at)
            split(t, stage + 1, text + done, at - done);
        split(t, stage + 1, text + at, end - at);
        done = at = end;
    }
    if (done < len)
        split(t, stage + 1, text + done, len - done);
}

