/* What forward.c takes: the weights of a model, and a text's part in a pass. */
#include "layer.h"

typedef struct {
    const layer *layers;
    long two_stream, depth;
    const float *query_norm, *norm;
    float epsilon;
    long codes; /* width of a position code */
    int mean;   /* query rows start from a mean, not from a sum */
    const float *embedding, *bos;
    matrix head;
} network;

/* A text's part in the pass: `own` context rows, then `asked` query rows. */
typedef struct {
    float *const *keys, *const *values;
    const float *state; /* (codes, d): sums over the rows before, and with these */
    float *grown;
    const long *strict;                /* (asked): how many rows each sums up, or NULL: all */
    const long *low_slot, *low_limit;  /* as in `text`, of the two-stream layers */
    const long *high_slot, *high_limit; /* and of those above */
    long own, asked, low_start, low_count, high_start, high_count;
    long spare; /* a row with this slot is no row */
} part;

int decode_pass(const network *net, const part *parts, long count, const float *code,
                const float *turn, const float *context, const long *context_at,
                const long *query_at, float *out);
