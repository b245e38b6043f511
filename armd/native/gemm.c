/* y = x W^T for a few rows x and a large W: the product of a decoding pass.
 *
 * W is stored in panels of 16 outputs, [panel][k][16], so that memory is read once, in order, at its
 * own speed, and up to 6 rows share every load. More rows go through the panel again while it is
 * still in the cache, and fetch the next one meanwhile. int8 weights are widened as they are read.
 *
 * Every output is one sum in the order of k: its bits depend neither on the rows beside it nor on
 * the number of threads, so a text is the same alone and in any batch. */
#include "gemm.h"
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
/* in registers: gcc would rather load them anew for each row, which is then what takes the time */
#define KEEP(a, b) __asm__("" : "+x"(a), "+x"(b))
#else
#define KEEP(a, b)
#endif

enum { WIDTH = 16, GROUP = 6, SPAN = 2, DEEP = 128, MANY = 96 };
typedef int8_t bytes __attribute__((vector_size(8), aligned(1)));

INLINE vec widen(const int8_t *p) {
#ifdef __AVX2__
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return __builtin_convertvector(*(const bytes *)p, vec);
#endif
}

INLINE vec load(const void *p, const int whole, long i) {
    return whole ? widen((const int8_t *)p + i) : *(const vec *)((const float *)p + i);
}

/* A piece of the work: `deep` steps of k of `span` panels, `apart` numbers from one to the next,
 * against some rows of x. What is fetched meanwhile starts at `next`, `stride` bytes a step. */
typedef struct {
    const void *panel;
    const char *next;
    const float *x;
    float *out; /* (rows, SPAN, WIDTH): the sums so far */
    long depth, deep, apart, stride;
} piece;

/* Few rows take two panels, because one sum would wait for itself. */
INLINE void
micro(const piece *w, const int whole, const int rows, const int span) {
    vec sum[GROUP * SPAN][2];
    for (int i = 0; i < rows * span; i++)
        for (int h = 0; h < 2; h++)
            sum[i][h] = *(vec *)(w->out + (i / span * SPAN + i % span) * WIDTH + h * 8);
    const float *x = w->x;
    const long depth = w->depth;
    for (long k = 0; k < w->deep; k++) {
        __builtin_prefetch(w->next + k * w->stride);
        for (int p = 0; p < span; p++) {
            const long at = p * w->apart + k * WIDTH;
            vec a = load(w->panel, whole, at), b = load(w->panel, whole, at + 8);
            KEEP(a, b);
            if (p) __builtin_prefetch(w->next + w->apart * (whole ? 1 : 4) + k * w->stride);
            for (int r = 0; r < rows; r++) {
                sum[r * span + p][0] += a * x[r * depth + k];
                sum[r * span + p][1] += b * x[r * depth + k];
            }
        }
    }
    for (int i = 0; i < rows * span; i++)
        for (int h = 0; h < 2; h++)
            *(vec *)(w->out + (i / span * SPAN + i % span) * WIDTH + h * 8) = sum[i][h];
}

INLINE void
group(const piece *w, const int whole, long rows, long span) {
    switch (rows * 2 + span) {
    case 3: micro(w, whole, 1, 1); break;
    case 4: micro(w, whole, 1, 2); break;
    case 5: micro(w, whole, 2, 1); break;
    case 6: micro(w, whole, 2, 2); break;
    case 7: micro(w, whole, 3, 1); break;
    case 9: micro(w, whole, 4, 1); break;
    case 11: micro(w, whole, 5, 1); break;
    default: micro(w, whole, 6, 1);
    }
}

/* At most MANY rows against panels p .. p + span, DEEP steps of k at a time: so much of a panel stays in the
 * first cache while the groups of rows pass over it and together fetch what comes next. */
static void panels(const matrix *w, const float *x, float *y, long rows, int add, long p, long span) {
    const long first = p * WIDTH, depth = w->depth, groups = (rows + GROUP - 1) / GROUP;
    const long size = w->scale ? 1 : sizeof(float), stride = size * WIDTH / groups;
    const char *start = (const char *)w->panels + first * depth * size;
    float out[MANY * SPAN * WIDTH], wide[DEEP * WIDTH];
    memset(out, 0, sizeof(float) * rows * SPAN * WIDTH);
    for (long k = 0; k < depth; k += DEEP) {
        const long deep = depth - k < DEEP ? depth - k : DEEP, widened = w->scale && groups > 1;
        const char *block = start + k * WIDTH * size;
        if (widened)
            for (long i = 0; i < deep * WIDTH; i += 8)
                *(vec *)(wide + i) = widen((const int8_t *)block + i);
        for (long g = 0; g < groups; g++) {
            const long from = g * rows / groups, upto = (g + 1) * rows / groups;
            const piece part = {widened ? (const char *)wide : block,
                                block + DEEP * WIDTH * size + g * DEEP * stride,
                                x + from * depth + k, out + from * SPAN * WIDTH,
                                depth, deep, depth * WIDTH, stride};
            if (w->scale && !widened)
                group(&part, 1, upto - from, span);
            else
                group(&part, 0, upto - from, span);
        }
    }
    const long left = w->outputs - first, width = left < span * WIDTH ? left : span * WIDTH;
    for (long r = 0; r < rows; r++) {
        float *made = out + r * SPAN * WIDTH, *to = y + r * w->outputs + first;
        if (w->scale)
            for (long i = 0; i < width; i++) made[i] *= w->scale[first + i];
        for (long i = 0; i < width; i++) to[i] = add ? to[i] + made[i] : made[i];
    }
}

/* To be called by all threads of a parallel region, each of which does its share. x (rows, depth),
 * y (rows, outputs), MANY rows at a time; with `add` the product is added to what y holds. No barrier at its end. */
void share_product(const matrix *w, const float *x, float *y, long rows, int add) {
    const long count = (w->outputs + WIDTH - 1) / WIDTH, span = rows <= 2 ? SPAN : 1;
    for (long r = 0; r < rows; r += MANY) {
        const long few = rows - r < MANY ? rows - r : MANY;
#pragma omp for schedule(static) nowait
        for (long p = 0; p < count; p += span)
            panels(w, x + r * w->depth, y + r * w->outputs, few, add, p,
                   p + span <= count ? span : count - p);
    }
}

void skinny_product(const matrix *w, const float *x, float *y, long rows) {
#pragma omp parallel
    share_product(w, x, y, rows, 0);
}
