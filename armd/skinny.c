/* y = x W^T for a few rows x and a large W: the product of a decoding pass.
 *
 * W is stored in panels of 16 outputs, [panel][k][16], so that memory is read once, in order, at its
 * own speed, and up to 6 rows share every load. More rows go through the panel again while it is
 * still in the cache, and fetch the next one meanwhile. int8 weights are widened as they are read.
 *
 * Every output is one sum in the order of k: its bits depend neither on the rows beside it nor on
 * the number of threads, so a text is the same alone and in any batch. */
#include "skinny.h"
#include <stdlib.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { WIDTH = 16, GROUP = 6, SPAN = 2, AHEAD = 128 };
typedef int8_t bytes __attribute__((vector_size(8), aligned(1)));

static inline __attribute__((always_inline)) vec widen(const int8_t *p) {
#ifdef __AVX2__
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return __builtin_convertvector(*(const bytes *)p, vec);
#endif
}

static inline __attribute__((always_inline)) vec load(const void *p, const int whole, long i) {
    return whole ? widen((const int8_t *)p + i) : *(const vec *)((const float *)p + i);
}

/* `rows` rows against `span` panels; few rows take two, because one sum waits for itself. */
static inline __attribute__((always_inline)) void
micro(const void *panel, const int whole, const float *x, long depth, const float *next, long stride,
      float out[SPAN][GROUP][WIDTH], const int rows, const int span) {
    vec sum[SPAN * GROUP][2];
    for (int i = 0; i < rows * span; i++) sum[i][0] = sum[i][1] = (vec){0};
    for (long k = 0; k < depth; k++)
        for (int p = 0; p < span; p++) {
            const long i = (p * depth + k) * WIDTH;
            vec a = load(panel, whole, i), b = load(panel, whole, i + 8);
            if (!whole) __builtin_prefetch(next + p * depth * WIDTH + k * stride);
            for (int r = 0; r < rows; r++) {
                sum[p * rows + r][0] += a * x[r * depth + k];
                sum[p * rows + r][1] += b * x[r * depth + k];
            }
        }
    for (int p = 0; p < span; p++)
        for (int r = 0; r < rows; r++) {
            *(vec *)out[p][r] = sum[p * rows + r][0];
            *(vec *)(out[p][r] + 8) = sum[p * rows + r][1];
        }
}

static inline __attribute__((always_inline)) void
group(const void *panel, const int whole, const float *x, long depth, const float *next, long stride,
      float out[SPAN][GROUP][WIDTH], long rows, long span) {
    switch (rows * 2 + span) {
    case 3: micro(panel, whole, x, depth, next, stride, out, 1, 1); break;
    case 4: micro(panel, whole, x, depth, next, stride, out, 1, 2); break;
    case 5: micro(panel, whole, x, depth, next, stride, out, 2, 1); break;
    case 6: micro(panel, whole, x, depth, next, stride, out, 2, 2); break;
    case 7: micro(panel, whole, x, depth, next, stride, out, 3, 1); break;
    case 8: micro(panel, whole, x, depth, next, stride, out, 3, 2); break;
    case 9: micro(panel, whole, x, depth, next, stride, out, 4, 1); break;
    case 11: micro(panel, whole, x, depth, next, stride, out, 5, 1); break;
    default: micro(panel, whole, x, depth, next, stride, out, 6, 1);
    }
}

/* Rows of y from the panels p .. p + span; `wide` has room for a panel of int8 made float. */
static void panels(const matrix *w, const float *x, float *y, long rows, int add, long p, long span,
                   float *wide) {
    const long first = p * WIDTH, depth = w->depth, groups = (rows + GROUP - 1) / GROUP;
    const int8_t *whole = (const int8_t *)w->panels + first * depth;
    const float *panel = (const float *)w->panels + first * depth;
    /* the groups together fetch the next panel; one alone, what it will read a little later */
    const long stride = groups < WIDTH ? WIDTH / groups : 1;
    const float *next = panel + (groups > 1 ? depth : AHEAD) * WIDTH;
    if (wide)
        for (long i = 0; i < depth * WIDTH; i += 8) *(vec *)(wide + i) = widen(whole + i);
    for (long g = 0; g < groups; g++) {
        float out[SPAN][GROUP][WIDTH];
        const long from = g * rows / groups, upto = (g + 1) * rows / groups;
        const float *part = x + from * depth;
        if (w->scale && !wide)
            group(whole, 1, part, depth, NULL, 0, out, upto - from, span);
        else
            group(wide ? wide : panel, 0, part, depth, wide ? wide : next + g * depth * stride,
                  wide ? 0 : stride, out, upto - from, span);
        for (long r = from; r < upto; r++)
            for (long i = 0; i < span * WIDTH && first + i < w->outputs; i++) {
                float *to = y + r * w->outputs + first + i;
                float made = out[i / WIDTH][r - from][i % WIDTH];
                if (w->scale) made *= w->scale[first + i];
                *to = add ? *to + made : made;
            }
    }
}

/* To be called by all threads of a parallel region, each of which does its share. x (rows, depth),
 * y (rows, outputs); with `add` the product is added to what y holds. No barrier at its end. */
void share_product(const matrix *w, const float *x, float *y, long rows, int add) {
    const long count = (w->outputs + WIDTH - 1) / WIDTH, span = rows <= 3 ? SPAN : 1;
    float *wide = w->scale && rows > 3 * GROUP ? malloc(sizeof(float) * w->depth * WIDTH) : NULL;
#pragma omp for schedule(static) nowait
    for (long p = 0; p < count; p += span)
        panels(w, x, y, rows, add, p, p + span <= count ? span : count - p, wide);
    free(wide);
}

void skinny_product(const matrix *w, const float *x, float *y, long rows) {
#pragma omp parallel
    share_product(w, x, y, rows, 0);
}
