@about@#define _POSIX_C_SOURCE 200809L

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
/* The only allocation of the program. It is held until the program ends: leak checkers find its address here. */
static void *make_state(void)
{
    static void *volatile allocated;
    allocated = aligned_alloc(64, MODEL_STATE_BYTES);
    return allocated;
}
#endif

/* Page faults happen before the first token, and the process holds what layout.map says from the start. */
static void hold(const volatile unsigned char *weights, size_t weight_bytes, void *state)
{
    for (size_t i = 0; i < weight_bytes; i += 4096)
        (void)weights[i];
    memset(state, 0, MODEL_STATE_BYTES);
}

static const char usage[] =
@usage@;

static int is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

static int help(void)
{
    return fputs(usage, stdout) < 0;
}

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

@run@