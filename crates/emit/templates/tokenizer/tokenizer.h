/* The tokenizer of @title@: text to token ids and back. Its tables are tokenizer.bin; nothing is allocated. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

@facts@
/* The most bytes of a text; a longer one is refused. Work buffers have this size. */
#ifndef TOKENIZER_MAX_TEXT
#define TOKENIZER_MAX_TEXT 65536
#endif

/* Offsets in tokenizer.bin. */
@offsets@
enum {
    TOKENIZER_OK = 0,
    TOKENIZER_BAD_TABLES = -1, /* the tables are not those of this program */
    TOKENIZER_TOO_LONG = -2,   /* a text has more than TOKENIZER_MAX_TEXT bytes */
    TOKENIZER_NOT_UTF8 = -3,   /* a text is not UTF-8 */
    TOKENIZER_FULL = -4        /* the result is larger than its buffer */
};

/* Flags of tokenizer_encode. TOKENIZER_ADDS has those with which the model was trained. */
enum {
    TOKENIZER_BOS = 1,    /* begin with the model's BOS, if it has one */
    TOKENIZER_EOS = 2,    /* end with the model's EOS, if it has one */
    TOKENIZER_SPECIAL = 4 /* convert the text of control tokens to these tokens */
};

@structs@struct tokenizer {
    const uint8_t *tables;
    int32_t *ids;
    size_t count, capacity;
@buffers@};

/* Binds the tables, which must be aligned to 8 bytes and stay where they are. A tokenizer serves one thread. */
int tokenizer_open(struct tokenizer *t, const void *tables, size_t bytes);

/* Writes the ids of a text; returns their number or an error. */
long tokenizer_encode(struct tokenizer *t, const char *text, size_t len, int flags, int32_t *ids, size_t capacity);

/* Writes the bytes of a whole text; returns their number or an error. Control tokens are left out unless `special` is set. */
long tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, int special, char *text, size_t capacity);

/* The bytes of one token, for text that is continued; they need not be whole characters. NULL for an id that is no token. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *len);

/* Whether a token has no text to show, and whether it ends a generation. */
int tokenizer_is_hidden(const struct tokenizer *t, int32_t id);
int tokenizer_is_end(const struct tokenizer *t, int32_t id);

#endif
