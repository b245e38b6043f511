/* What the C files share: vectors of 8 floats, and a matrix laid out for skinny products. */
#pragma once
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64))) /* to whole cache lines */
typedef float vec __attribute__((vector_size(32), aligned(4)));

enum { FLOAT32, INT8, BF16, Q8, Q4, COMPACT }; /* formats of a matrix */
enum { WIDTH = 16, GROUP = 32 };      /* outputs of a panel; inputs that share a scale */

/* Outputs are rounded up to whole panels of 16. FLOAT32, INT8 and BF16 panels are [depth][16]; Q8 and
 * Q4 panels are explained in quantized.c, COMPACT ones in compact.h. */
typedef struct {
    const void *panels;
    const float *scale; /* INT8 alone: one number an output */
    long depth, outputs;
    long format;
    long float_rows; /* Q8 and Q4: rows are not quantised; the weights are widened to float */
    const float *lora_a, *lora_b; /* (rank, depth) and (rank, outputs): for rows out of order */
    long rank;                    /* 0: no adapter */
    const uint32_t *exceptions;   /* COMPACT alone */
} matrix;

/* 32 numbers of a row, quantised: scale * value. */
typedef struct {
    float scale;
    int32_t offset; /* takes back that weights are stored as value + 128 or + 8 */
    int8_t value[GROUP];
} row_group;

INLINE long groups_of(const matrix *w) { return (w->depth + GROUP - 1) / GROUP; }

INLINE int is_quantized(const matrix *w) { return w->format == Q8 || w->format == Q4; }

/* How many row_groups `rows` rows of a product with w take. */
INLINE long row_groups(const matrix *w, long rows) {
    return is_quantized(w) && !w->float_rows ? rows * groups_of(w) : 0;
}

void share_product(const matrix *w, const float *x, row_group *scratch, float *y, long rows, int add);
int skinny_product(const matrix *w, const float *x, float *y, long rows);

/* quantized.c */
void quantize_group(const float *x, long width, long format, row_group *to);
void quantized_panel(const matrix *w, const row_group *x, float *y, long rows, int add, long panel);
void widen_block(const matrix *w, long panel, long first, long deep, float *to);
void weight_row(const matrix *w, long output, long first, long count, float *to);
