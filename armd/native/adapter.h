/* What a matrix's adapter adds to a row of its product. */
#pragma once
#include "vectors.h"

/* y += B^T A x. The depth must be a multiple of 8. */
INLINE void add_adapter(const matrix *w, const float *x, float *y) {
    for (long r = 0; r < w->rank; r++) {
        const float *a = w->lora_a + r * w->depth, *b = w->lora_b + r * w->outputs;
        vec parts = {0};
        for (long i = 0; i < w->depth; i += 8) parts += *(vec *)(a + i) * *(vec *)(x + i);
        const float scale = sum(parts);
        for (long i = 0; i < w->outputs; i++) y[i] += scale * b[i];
    }
}
