/* y = x W^T for a few rows x and a large W: the product of a decoding pass.
 *
 * W is stored in panels of 16 outputs, [panel][k][16], so that memory is read once, in order, at its
 * own speed, and up to 6 rows share every load. More rows go through the panel again while it is
 * still in the cache, and fetch the next one meanwhile. int8 weights are widened as they are read. */
#include <stdint.h>
#include <stdlib.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { WIDTH = 16, GROUP = 6, AHEAD = 128 };
typedef float vec __attribute__((vector_size(32), aligned(4)));
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

/* `rows` rows against one panel. Each output is one sum in the order of k, whatever rows are beside
 * it, so that a text has the same bits alone and in a batch. (More sums side by side would wait less
 * for each other, but memory is slower than the waiting.) */
static inline __attribute__((always_inline)) void
micro(const void *panel, const int whole, const float *x, long depth, const float *next, long stride,
      float out[GROUP][WIDTH], const int rows) {
    vec sum[GROUP][2];
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vec){0};
    for (long k = 0; k < depth; k++) {
        vec a = load(panel, whole, k * WIDTH), b = load(panel, whole, k * WIDTH + 8);
        if (!whole) __builtin_prefetch(next + k * stride);
        for (int r = 0; r < rows; r++) {
            float s = x[r * depth + k];
            sum[r][0] += a * s;
            sum[r][1] += b * s;
        }
    }
    for (int r = 0; r < rows; r++) {
        *(vec *)out[r] = sum[r][0];
        *(vec *)(out[r] + 8) = sum[r][1];
    }
}

static inline __attribute__((always_inline)) void
group(const void *panel, const int whole, const float *x, long depth, const float *next, long stride,
      float out[GROUP][WIDTH], long rows) {
    switch (rows) {
    case 1: micro(panel, whole, x, depth, next, stride, out, 1); break;
    case 2: micro(panel, whole, x, depth, next, stride, out, 2); break;
    case 3: micro(panel, whole, x, depth, next, stride, out, 3); break;
    case 4: micro(panel, whole, x, depth, next, stride, out, 4); break;
    case 5: micro(panel, whole, x, depth, next, stride, out, 5); break;
    default: micro(panel, whole, x, depth, next, stride, out, 6);
    }
}

/* x (rows, depth); panels of `outputs` rounded up to 16; y (rows, outputs). scale: one number an
 * output for int8 panels, NULL for float ones. */
void skinny_product(const float *x, const void *panels, const float *scale, float *y, long rows,
                    long depth, long outputs) {
    const long count = (outputs + WIDTH - 1) / WIDTH, groups = (rows + GROUP - 1) / GROUP;
#pragma omp parallel
    {
        float *wide = scale && groups > 3 ? malloc(sizeof(float) * depth * WIDTH) : NULL;
#pragma omp for schedule(static)
        for (long p = 0; p < count; p++) {
            const long first = p * WIDTH, width = outputs - first < WIDTH ? outputs - first : WIDTH;
            const int8_t *whole = (const int8_t *)panels + first * depth;
            const float *panel = (const float *)panels + first * depth;
            /* the groups together fetch the next panel; one alone, what it will read a little later */
            const long stride = WIDTH / groups;
            const float *next = panel + (groups > 1 ? depth : AHEAD) * WIDTH;
            if (wide)
                for (long i = 0; i < depth * WIDTH; i += 8) *(vec *)(wide + i) = widen(whole + i);
            for (long g = 0; g < groups; g++) {
                float out[GROUP][WIDTH];
                const long from = g * rows / groups, upto = (g + 1) * rows / groups;
                const float *part = x + from * depth;
                if (scale && !wide)
                    group(whole, 1, part, depth, NULL, 0, out, upto - from);
                else
                    group(wide ? wide : panel, 0, part, depth, wide ? wide : next + g * depth * stride,
                          wide ? 0 : stride, out, upto - from);
                for (long r = from; r < upto; r++)
                    for (long i = 0; i < width; i++)
                        y[r * outputs + first + i] = out[r - from][i] * (scale ? scale[first + i] : 1);
            }
        }
        free(wide);
    }
}
