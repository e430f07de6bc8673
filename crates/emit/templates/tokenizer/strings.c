/* The token of a string in the hash table at `slots`, or NONE. A slot has a token id or NONE. */
static uint32_t find_string(const struct tokenizer *t, const uint32_t *slots, uint32_t mask, const uint8_t *text, size_t len)
{
    uint32_t hash = 0x811C9DC5u;
    if (len > TOKENIZER_LONGEST)
        return NONE;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ text[i]) * 0x01000193u;
    for (uint32_t i = (hash ^ (hash >> 15)) & mask; slots[i] != NONE; i = (i + 1) & mask) {
        size_t found;
        const uint8_t *bytes = token_bytes(t, slots[i], &found);
        if (found == len && memcmp(bytes, text, len) == 0)
            return slots[i];
    }
    return NONE;
}

