/* What layer.c takes: the weights of a layer, and the rows of a text. */
#pragma once
#include "gemm.h"

typedef struct {
    const float *attention_norm, *mlp_norm;
    matrix query, key_value, out, gate_up, down;
    long heads;
    float epsilon;
} layer;

/* A text's rows of this pass: the first `own` leave keys and values in its cache, all see it. */
typedef struct {
    float *const *keys, *const *values; /* of each layer: (slots, heads, width) */
    const long *slot;                   /* (own): where its keys go, or NULL: from `start` on */
    const long *limit;                  /* (rows): how many slots each row sees, or NULL: `count` */
    long rows, own, start, count;
    long row, kept, up, chunk, cell; /* how many of these the texts before it have: set there */
} text;

int layers_pass(const layer *layers, long depth, const text *texts, long count, int last,
                const float *rows, const float *turn, float *out);
void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out);
