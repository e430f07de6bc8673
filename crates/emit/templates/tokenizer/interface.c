/* Length and id of the longest special token that a text begins with; 0 if there is none. */
static size_t special_token(const struct tokenizer *t, const uint8_t *text, size_t len, int control, uint32_t *id)
{
    size_t found = 0;
    uint32_t node = 0;
    for (size_t i = 0; i < len; i++) {
        const uint32_t *edge = find_pair(U32(T_SPECIAL), TOKENIZER_SPECIAL_MASK, node, text[i]);
        if (!edge)
            break;
        node = edge[2];
        /* The token that ends here plus one, and whether it is matched in every text. */
        if (edge[3] >> 1 && (control || (edge[3] & 1))) {
            found = i + 1;
            *id = (edge[3] >> 1) - 1;
        }
    }
    return found;
}

int tokenizer_open(struct tokenizer *t, const void *tables, size_t bytes)
{
    uint64_t size;
    if (bytes < 64 || memcmp(tables, "kvarkT01", 8) != 0)
        return TOKENIZER_BAD_TABLES;
    memcpy(&size, (const uint8_t *)tables + 8, sizeof size);
    if (size != TOKENIZER_BYTES || bytes < size)
        return TOKENIZER_BAD_TABLES;
    t->tables = tables;
    return TOKENIZER_OK;
}

long tokenizer_encode(struct tokenizer *t, const char *text, size_t len, int flags, int32_t *ids, size_t capacity)
{
    const uint8_t *bytes = (const uint8_t *)text;
    if (len > TOKENIZER_MAX_TEXT)
        return TOKENIZER_TOO_LONG;
    if (!is_utf8(bytes, len))
        return TOKENIZER_NOT_UTF8;
    t->ids = ids;
    t->capacity = capacity;
    t->count = 0;
    if ((flags & TOKENIZER_BOS) && TOKENIZER_BOS_ID >= 0)
        push(t, (uint32_t)TOKENIZER_BOS_ID);
    size_t done = 0;
    for (size_t at = 0; at < len;) {
        uint32_t id;
        size_t found = special_token(t, bytes + at, len - at, flags & TOKENIZER_SPECIAL, &id);
        if (found == 0) {
            at += char_len(bytes[at]);
            continue;
        }
        if (done < at)
            encode_text(t, bytes + done, at - done, done == 0);
        push(t, id);
        done = at += found;
    }
    if (done < len)
        encode_text(t, bytes + done, len - done, done == 0);
    if ((flags & TOKENIZER_EOS) && TOKENIZER_EOS_ID >= 0)
        push(t, (uint32_t)TOKENIZER_EOS_ID);
    return t->count <= capacity ? (long)t->count : TOKENIZER_FULL;
}

static int kind(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < TOKENIZER_TOKENS ? U8(T_KINDS)[id] : 0;
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *len)
{
    *len = 0;
    return id >= 0 && id < TOKENIZER_TOKENS ? (const char *)token_bytes(t, (uint32_t)id, len) : NULL;
}

int tokenizer_is_hidden(const struct tokenizer *t, int32_t id)
{
    return (kind(t, id) & IS_HIDDEN) != 0;
}

int tokenizer_is_end(const struct tokenizer *t, int32_t id)
{
    return (kind(t, id) & IS_END) != 0;
}

long tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, int special, char *text, size_t capacity)
{
    size_t size = 0;
    int omits_space = TOKENIZER_OMITS_FIRST_SPACE;
    for (size_t i = 0; i < count; i++) {
        size_t len;
        const char *bytes = tokenizer_token(t, ids[i], &len);
        int is_special = (kind(t, ids[i]) & IS_SPECIAL) != 0;
        if (!bytes)
            continue;
        if (special || !tokenizer_is_hidden(t, ids[i])) {
            size_t skipped = omits_space && !is_special && len > 0 && bytes[0] == ' ';
            if (len - skipped > capacity - size)
                return TOKENIZER_FULL;
            memcpy(text + size, bytes + skipped, len - skipped);
            size += len - skipped;
        }
        omits_space = TOKENIZER_OMITS_FIRST_SPACE && is_special && TOKENIZER_OMITS_SPACE_AFTER_SPECIAL;
    }
    return (long)size;
}
