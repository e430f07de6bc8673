/* Runs commands on an emitted decoder. Standard input: p COUNT ID... (prefill), d ID (decode), r COUNT (rewind), k 0|1 (KV
 * cache), z (reset), s NODE (stop behind a node), e COUNT ID... (encode). Standard output: the result of each command as i32,
 * and behind a successful p, d or e the output as f32. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int32_t ids[MODEL_CONTEXT];

int main(int argc, char **argv)
{
    static unsigned char header[MODEL_WEIGHT_BYTES];
    FILE *file = fopen(argc > 1 ? argv[1] : "weights.bin", "rb");
    if (!file || fread(header, 1, sizeof header, file) != sizeof header)
        return 2;
    fclose(file);
    struct model m;
    void *state = aligned_alloc(64, model_state_bytes());
    if (!state)
        return 3;
    memset(state, 0xFF, model_state_bytes());
    if (model_open(&m, header, sizeof header, state))
        return 4;
    char command;
    while (scanf(" %c", &command) == 1) {
        int32_t result = 0;
        size_t floats = 0;
        const float *from = NULL;
        long count = 0;
        if (command != 'z' && scanf("%ld", &count) != 1)
            return 5;
        if (command == 'p' || command == 'e') {
            for (long i = 0; i < count; i++) {
                long id;
                if (scanf("%ld", &id) != 1)
                    return 6;
                if (i < MODEL_CONTEXT)
                    ids[i] = (int32_t)id;
            }
        }
        if (command == 'z')
            model_reset(&m);
        else if (command == 's')
            m.stop_at = (int)count;
#ifdef MODEL_VOCAB
        else if (command == 'p')
            result = model_prefill(&m, ids, (size_t)count);
        else if (command == 'd')
            result = model_decode(&m, (int32_t)count);
        else if (command == 'r')
            result = model_rewind(&m, (size_t)count);
        else if (command == 'k')
            model_set_kv_enabled(&m, (int)count);
        if (result == 0 && (command == 'p' || command == 'd')) {
            floats = MODEL_VOCAB;
            from = model_logits(&m);
        }
#else
        else if (command == 'e')
            result = model_encode(&m, ids, (size_t)count);
        if (result == 0 && command == 'e') {
            floats = (size_t)count * MODEL_WIDTH;
            from = model_hidden(&m);
        }
#endif
        fwrite(&result, sizeof result, 1, stdout);
        if (from)
            fwrite(from, sizeof(float), floats, stdout);
    }
    free(state);
    return 0;
}
