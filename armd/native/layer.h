/* Types of layer.c: the weights of a transformer layer, and the rows of a sequence in a pass. */
#pragma once
#include "gemm.h"

typedef struct {
    const float *attention_norm, *mlp_norm;
    matrix query, key_value, out, gate_up, down;
    long heads;
    float epsilon;
    long kv_heads, width;                     /* width of a head */
    const float *query_bias, *key_value_bias; /* or NULL */
    const float *right_bias;                  /* (heads), as in attention.h, or NULL */
} layer;

/* The rows of one sequence: the first n_kv write keys and values to its KV cache, then all rows
 * attend to the cache. */
typedef struct {
    void *const *keys, *const *values; /* of each layer: (slots, kv_heads, width) */
    const long *slot_mapping; /* (n_kv): cache slot of each row, or NULL: from `start` on */
    const long *visible;      /* (n_rows): how many slots each row attends to, or NULL: `length` */
    long n_rows, n_kv, start, length;
    const long *wanted; /* (n_wanted): the rows that leave the last layer, or NULL: all rows */
    long n_wanted;
    const long *row_at, *position; /* for keys to the right, as in attention.h */
    const long *adapted; /* (n_rows): whether each is out of order, or NULL: none is */
    long bos_slots, right_offset;
    const float *rope; /* of all positions; for right_offset */
    long bf16; /* the cache has bf16 numbers, not floats */
    /* offsets of this sequence in the buffers of the pass; run_layers sets them */
    long first_row, first_out, first_chunk, first_cell, n_out;
} sequence_rows;

int run_layers(const layer *layers, long depth, const sequence_rows *sequences, long count,
               const float *rows, const float *rope, float *out);
void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out);
