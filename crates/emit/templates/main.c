/* Reads token ids and prints token ids.
 *
 *   model [-w weights.bin] [-n COUNT] [-e STOP_ID] [-l LOGITS_FILE] [-k] [ID...]
 *
 * Ids are read from standard input if none are given. -n is the number of tokens to generate, -e a token that ends the text,
 * -l writes the logits of every call as f32, -k computes without the KV cache. The best token is always taken.
 */
#define _POSIX_C_SOURCE 200809L

#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#ifdef MODEL_LINKED_WEIGHTS
extern const unsigned char model_weights[];

static const void *load_weights(const char *path, size_t *bytes)
{
    (void)path;
    *bytes = MODEL_WEIGHT_BYTES;
    return model_weights;
}
#elif defined(__unix__) || defined(__APPLE__)
static const void *load_weights(const char *path, size_t *bytes)
{
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0)
        return NULL;
    *bytes = (size_t)status.st_size;
    void *map = mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    return map == MAP_FAILED ? NULL : map;
}
#else
static const void *load_weights(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    void *weights = file ? malloc(MODEL_WEIGHT_BYTES) : NULL;
    *bytes = weights ? fread(weights, 1, MODEL_WEIGHT_BYTES, file) : 0;
    if (file)
        fclose(file);
    return weights;
}
#endif

#ifdef MODEL_STATIC_STATE
static _Alignas(64) unsigned char static_state[MODEL_STATE_BYTES];

static void *make_state(void)
{
    return static_state;
}
#else
/* The only allocation of the program. */
static void *make_state(void)
{
    return aligned_alloc(64, MODEL_STATE_BYTES);
}
#endif

static int32_t ids[MODEL_CONTEXT];

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "error: %s: %s\n", what, why);
    return 1;
}

static const char *reason(int error)
{
    switch (error) {
    case MODEL_BAD_WEIGHTS:
        return "the weights are not those of this program";
    case MODEL_BAD_TOKEN:
        return "a token id is outside of the vocabulary";
    case MODEL_FULL:
        return "no tokens, or more than the context holds";
    case MODEL_OVERRUN:
        return "a kernel wrote outside of its region";
    }
    return "failed";
}

/* Appends the ids of a text, which are separated by commas or spaces; returns whether it has nothing else and they fit. */
static int read_ids(const char *text, size_t *count)
{
    for (;;) {
        text += strspn(text, ", \t\r\n");
        if (!*text)
            return 1;
        char *end;
        errno = 0;
        long value = strtol(text, &end, 10);
        if (end == text || (*end && !strchr(", \t\r\n", *end)) || errno || value < 0 || value > INT32_MAX || *count == MODEL_CONTEXT)
            return 0;
        ids[(*count)++] = (int32_t)value;
        text = end;
    }
}

@run@
int main(int argc, char **argv)
{
    const char *weights_path = "weights.bin", *logits_path = NULL;
    long wanted = 16;
    int32_t stop = -1;
    size_t count = 0, weight_bytes = 0;
    int kv_enabled = 1;
    for (int i = 1; i < argc; i++) {
        int has_value = i + 1 < argc;
        if (strcmp(argv[i], "-k") == 0) {
            kv_enabled = 0;
        } else if (strcmp(argv[i], "-w") == 0 && has_value) {
            weights_path = argv[++i];
        } else if (strcmp(argv[i], "-l") == 0 && has_value) {
            logits_path = argv[++i];
        } else if (strcmp(argv[i], "-n") == 0 && has_value) {
            wanted = strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "-e") == 0 && has_value) {
            stop = (int32_t)strtol(argv[++i], NULL, 10);
        } else if (!read_ids(argv[i], &count)) {
            return fail(argv[i], "not token ids, or more than the context holds");
        }
    }
    if (count == 0) {
        long value;
        while ((void)!scanf("%*[, \t\r\n]"), scanf("%ld", &value) == 1) {
            if (value < 0 || value > INT32_MAX || count == MODEL_CONTEXT)
                return fail("standard input", "not token ids, or more than the context holds");
            ids[count++] = (int32_t)value;
        }
        if (!feof(stdin))
            return fail("standard input", "not token ids");
    }
    struct model model;
    const void *weights = load_weights(weights_path, &weight_bytes);
    if (!weights)
        return fail(weights_path, "cannot be read");
    void *state = make_state();
    if (!state)
        return fail("the state", "not enough memory");
    int error = model_open(&model, weights, weight_bytes, state);
    if (error)
        return fail(weights_path, reason(error));
    FILE *logits = logits_path ? fopen(logits_path, "wb") : NULL;
    if (logits_path && !logits)
        return fail(logits_path, "cannot be written");
    error = generate(&model, count, wanted, stop, kv_enabled, logits);
    if (logits && fclose(logits) != 0)
        return fail(logits_path, "cannot be written");
    return error ? fail("the model", reason(error)) : 0;
}
