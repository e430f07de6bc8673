/* Decodes with two models of one program, first one after the other, then from two threads at once: the logits must have the same
 * bits. */
#include "model.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40, ROUNDS = 25 };

static unsigned char weights[MODEL_WEIGHT_BYTES];

struct job {
    int first;
    float *logits;
};

static void *decode(void *argument)
{
    struct job *job = argument;
    struct model m;
    void *state = aligned_alloc(64, (model_state_bytes() + 63) / 64 * 64);
    if (!state || model_open(&m, weights, sizeof weights, state))
        abort();
    for (int round = 0; round < ROUNDS; round++) {
        model_reset(&m);
        for (int i = 0; i < TOKENS; i++) {
            if (model_decode(&m, (job->first + i * 7) % MODEL_VOCAB))
                abort();
            memcpy(job->logits + (size_t)i * MODEL_VOCAB, model_logits(&m), MODEL_VOCAB * sizeof(float));
        }
    }
    free(state);
    return NULL;
}

int main(int argc, char **argv)
{
    FILE *file = fopen(argc > 1 ? argv[1] : "weights.bin", "rb");
    if (!file || fread(weights, 1, sizeof weights, file) != sizeof weights)
        return 2;
    fclose(file);
    size_t bytes = (size_t)TOKENS * MODEL_VOCAB * sizeof(float);
    struct job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i].first = i % 2;
        jobs[i].logits = malloc(bytes);
        if (!jobs[i].logits)
            return 3;
    }
    decode(&jobs[0]);
    decode(&jobs[1]);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, decode, &jobs[2 + i]))
            return 4;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    int differs = 0;
    for (int i = 0; i < 2; i++)
        differs |= memcmp(jobs[i].logits, jobs[2 + i].logits, bytes) != 0;
    for (int i = 0; i < 4; i++)
        free(jobs[i].logits);
    puts(differs ? "different" : "same");
    return differs;
}
