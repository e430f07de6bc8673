/* Reads requests until the end of standard input: {kind, flags, length, bytes}. Kind 0 encodes a text, kind 1 decodes ids, kind 2 asks
 * for the flags of a token. The answer is {result, bytes}. */
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static struct tokenizer tokenizer;
static _Alignas(8) char output[1 << 24];

static int answer(int32_t result, size_t bytes)
{
    return fwrite(&result, sizeof result, 1, stdout) == 1 && fwrite(output, 1, bytes, stdout) == bytes;
}

int main(void)
{
    uint32_t request[3];
    FILE *file = fopen("tokenizer.bin", "rb");
    void *tables = malloc(TOKENIZER_BYTES);
    size_t bytes = file && tables ? fread(tables, 1, TOKENIZER_BYTES, file) : 0;
    if (tokenizer_open(&tokenizer, tables, bytes / 2) != TOKENIZER_BAD_TABLES || tokenizer_open(&tokenizer, tables, bytes) != TOKENIZER_OK)
        return 2;
    fclose(file);
    while (fread(request, sizeof request, 1, stdin) == 1) {
        size_t len = request[2], size = 0;
        long result;
        /* The text is an allocation of its own, so that reading past its end is found. */
        char *text = malloc(len ? len : 1);
        if (!text || fread(text, 1, len, stdin) != len)
            return 3;
        if (request[0] == 0) {
            size_t capacity = sizeof output / sizeof(int32_t);
            result = tokenizer_encode(&tokenizer, text, len, (int)request[1], (int32_t *)(void *)output, capacity);
            size = result > 0 ? (size_t)result * sizeof(int32_t) : 0;
        } else if (request[0] == 1) {
            result = tokenizer_decode(&tokenizer, (const int32_t *)(const void *)text, len / sizeof(int32_t), (int)request[1], output, sizeof output);
            size = result > 0 ? (size_t)result : 0;
        } else {
            int32_t id = (int32_t)request[1];
            size_t token_len;
            result = tokenizer_is_hidden(&tokenizer, id) | tokenizer_is_end(&tokenizer, id) << 1 | (tokenizer_token(&tokenizer, id, &token_len) != NULL) << 2;
        }
        free(text);
        if (!answer((int32_t)result, size))
            return 4;
    }
    free(tables);
    return 0;
}
