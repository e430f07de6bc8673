#include "tokenizer.h"

static struct tokenizer tokenizer;

#ifdef MODEL_LINKED_WEIGHTS
extern const unsigned char tokenizer_tables[];

static const void *load_tables(const char *path, size_t *bytes)
{
    (void)path;
    *bytes = TOKENIZER_BYTES;
    return tokenizer_tables;
}
#elif defined(__unix__) || defined(__APPLE__)
static const void *load_tables(const char *path, size_t *bytes)
{
    return load_weights(path, bytes);
}
#else
static const void *load_tables(const char *path, size_t *bytes)
{
    static _Alignas(8) unsigned char tables[TOKENIZER_BYTES];
    FILE *file = fopen(path, "rb");
    *bytes = file ? fread(tables, 1, sizeof tables, file) : 0;
    if (file)
        fclose(file);
    return file ? tables : NULL;
}
#endif

/* Appends the ids of a text; returns NULL, or what is wrong with it. */
static const char *read_text(const char *text, int flags, size_t *count)
{
    long found = tokenizer_encode(&tokenizer, text, strlen(text), flags, ids + *count, MODEL_CONTEXT - *count);
    switch (found) {
    case TOKENIZER_TOO_LONG:
        return "is longer than TOKENIZER_MAX_TEXT bytes";
    case TOKENIZER_NOT_UTF8:
        return "is not UTF-8";
    case TOKENIZER_FULL:
        return "has more tokens than the context holds";
    }
    *count += (size_t)found;
    return NULL;
}

