/* The tokenizer of @title@. */
#include "tokenizer.h"

#include <string.h>

#define NONE UINT32_MAX
#define U8(offset) (t->tables + (offset))
#define U16(offset) ((const uint16_t *)(const void *)(t->tables + (offset)))
#define U32(offset) ((const uint32_t *)(const void *)(t->tables + (offset)))

enum { IS_HIDDEN = 1, IS_SPECIAL = 2, IS_END = 4 };

/* The row {left, right, value, value} of a hash table with linear probing, or NULL. */
static const uint32_t *find_pair(const uint32_t *rows, uint32_t mask, uint32_t left, uint32_t right)
{
    uint32_t hash = ((left * 0x9E3779B1u) ^ right) * 0x85EBCA77u;
    for (uint32_t i = (hash ^ (hash >> 15)) & mask;; i = (i + 1) & mask) {
        const uint32_t *row = rows + 4 * (size_t)i;
        if (row[0] == NONE)
            return NULL;
        if (row[0] == left && row[1] == right)
            return row;
    }
}

static const uint8_t *token_bytes(const struct tokenizer *t, uint32_t id, size_t *len)
{
    const uint32_t *ends = U32(T_ENDS);
    uint32_t start = id ? ends[id - 1] : 0;
    *len = ends[id] - start;
    return U8(T_TEXT) + start;
}

/* Bytes of the character that begins with this byte, in valid UTF-8. */
static size_t char_len(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

static int is_utf8(const uint8_t *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        uint8_t first = text[i], low = 0x80, high = 0xBF;
        size_t n = char_len(first);
        if ((first >= 0x80 && first < 0xC2) || first > 0xF4 || n > len - i)
            return 0;
        /* No overlong forms, no surrogates, nothing above U+10FFFF. */
        if (first == 0xE0)
            low = 0xA0;
        else if (first == 0xED)
            high = 0x9F;
        else if (first == 0xF0)
            low = 0x90;
        else if (first == 0xF4)
            high = 0x8F;
        for (size_t k = 1; k < n; k++, low = 0x80, high = 0xBF)
            if (text[i + k] < low || text[i + k] > high)
                return 0;
        i += n;
    }
    return 1;
}

static void push(struct tokenizer *t, uint32_t id)
{
    if (t->count < t->capacity)
        t->ids[t->count] = (int32_t)id;
    t->count++;
}

