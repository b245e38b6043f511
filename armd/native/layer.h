/* Types of layer.c: the weights of a transformer layer, and the rows of a sequence in a pass. */
#pragma once
#include "gemm.h"

typedef struct {
    const float *attention_norm, *mlp_norm;
    matrix query, key_value, out, gate_up, down;
    long heads;
    float epsilon;
} layer;

/* The rows of one sequence: the first n_kv write keys and values to its KV cache, then all rows
 * attend to the cache. */
typedef struct {
    float *const *keys, *const *values; /* of each layer: (slots, heads, width) */
    const long *slot_mapping; /* (n_kv): cache slot of each row, or NULL: from `start` on */
    const long *visible;      /* (n_rows): how many slots each row attends to, or NULL: `length` */
    long n_rows, n_kv, start, length;
    /* offsets of this sequence in the buffers of the pass; run_layers sets them */
    long first_row, first_kv, first_out, first_chunk, first_cell;
} sequence_rows;

int run_layers(const layer *layers, long depth, const sequence_rows *sequences, long count,
               int queries_only, const float *rows, const float *rope, float *out);
void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out);
