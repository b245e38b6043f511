/* What the C files share: vectors of 8 floats, and a matrix laid out for skinny products. */
#pragma once
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
typedef float vec __attribute__((vector_size(32), aligned(4)));

typedef struct {
    const void *panels; /* outputs rounded up to 16: [panel][depth][16], float or int8 */
    const float *scale; /* one number an output for int8 panels, NULL for float ones */
    long depth, outputs;
} matrix;

void share_product(const matrix *w, const float *x, float *y, long rows, int add);
void skinny_product(const matrix *w, const float *x, float *y, long rows);
