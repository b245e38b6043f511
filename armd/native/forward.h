/* Types of forward.c: the weights of a model, and the input of one sequence to a forward pass. */
#pragma once
#include "layer.h"

/* Where query rows start: config.query of the model. */
enum { PREFIX, MEAN, SHIFT, NEIGHBOR };

typedef struct {
    const layer *layers;
    long two_stream, depth;
    const float *query_norm, *norm;
    float epsilon;
    long codes; /* width of a position code */
    int query;  /* one of the kinds above */
    const float *embedding, *bos; /* embedding: (tokens, d), or NULL: the rows of `tokens` */
    matrix head, tokens;
    const float *unknown, *gate; /* of NEIGHBOR alone: (d) and (1) */
    float init_std;
    long right_offset; /* as in attention.h */
} network;

/* The rows of one sequence: `n_context` context rows, then `n_query` query rows. "low" are the
 * two-stream layers, which cache context rows; "high" the layers above, which cache query rows. */
typedef struct {
    void *const *keys, *const *values;
    const float *prefix_state; /* (codes, d): sums over the context rows before these */
    float *new_prefix_state;   /* the same with these; may be the same memory */
    const long *strict;        /* (n_query): how many context rows each sums over, or NULL: all */
    const long *low_slot, *low_limit;   /* slot_mapping and visible of the low layers */
    const long *high_slot, *high_limit; /* and of the high layers */
    long n_context, n_query, low_start, low_length, high_start, high_length;
    long padding_slot; /* a row with this slot is padding */
    long bf16;         /* the cache has bf16 numbers, not floats */
} forward_input;

void token_row(const network *net, long token, long first, long count, float *to);
int forward_pass(const network *net, const forward_input *inputs, long count, const float *code,
                 const float *rope, const float *context, const long *context_at,
                 const long *query_at, float *out);
