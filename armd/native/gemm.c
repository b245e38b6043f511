/* y = x W^T for a few rows x and a large W: the product of a decoding pass.
 *
 * W is stored in panels of 16 outputs, [panel][k][16], so that memory is read once, in order, at its
 * own speed, and a group of rows shares every load. More rows go through the panel again while it is
 * still in the cache, and fetch the next one meanwhile. int8 and bf16 weights are widened as they are
 * read. Q8 and Q4 weights have panels and products of their own, in quantized.c, and so have float32
 * weights in 28 bits, in compact.c.
 *
 * Every output is one sum in the order of k: its bits depend neither on the rows beside it nor on
 * the number of threads, so a text is the same alone and in any batch. */
#include "compact.h"
#include <stdlib.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { SPAN = 2, DEEP = 128, MANY = 96 };
#ifdef __AVX512F__
#define LANES 16 /* floats of a vector */
enum { TOGETHER = 8 }; /* rows that share a load */
typedef float floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t integers __attribute__((vector_size(64)));
#else
#define LANES 8
enum { TOGETHER = 6 };
typedef vec floats;
typedef int32_t integers __attribute__((vector_size(32)));
#endif
enum { PARTS = WIDTH / LANES };
typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1)));
typedef uint16_t halves __attribute__((vector_size(2 * LANES), aligned(2)));

#ifdef __AVX2__
/* in a register: gcc would rather load it anew for each row, which is then what takes the time */
#define KEEP(a) __asm__("" : "+v"(a))
#else
#define KEEP(a)
#endif

INLINE floats widen(const int8_t *p) {
#if defined(__AVX512F__)
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return __builtin_convertvector(*(const bytes *)p, floats);
#endif
}

INLINE floats load(const void *p, const int format, long i) {
    if (format == INT8) return widen((const int8_t *)p + i);
    if (format == BF16)
        return (floats)(__builtin_convertvector(*(const halves *)((const uint16_t *)p + i), integers)
                        << 16);
    return *(const floats *)((const float *)p + i);
}

static long bytes_of(long format) { return format == INT8 ? 1 : format == BF16 ? 2 : 4; }

/* A piece of the work: `deep` steps of k of `span` panels, `apart` numbers from one to the next,
 * against some rows of x. What is fetched meanwhile starts at `next`, `stride` bytes a step, and
 * `next_apart` bytes further for each panel; with `second` and many rows into the second cache alone. */
typedef struct {
    const void *panel;
    const char *next;
    const float *x;
    float *out; /* (rows, SPAN, WIDTH): the sums so far */
    long depth, deep, apart, stride, next_apart;
    int second;
} piece;

INLINE floats *sums_at(const piece *w, int row, int panel, int part) {
    return (floats *)(w->out + (row * SPAN + panel) * WIDTH + part * LANES);
}

/* Two panels at once: few sums would wait for themselves, many rows load a number of x for both, and
 * memory is read faster in two streams. */
INLINE void micro(const piece *w, const int format, const int rows, const int span) {
    floats sum[TOGETHER][SPAN][PARTS];
#pragma GCC unroll 32
    for (int i = 0; i < rows * span * PARTS; i++)
        sum[i / PARTS / span][i / PARTS % span][i % PARTS] =
            *sums_at(w, i / PARTS / span, i / PARTS % span, i % PARTS);
    const long depth = w->depth;
    const float *x = w->x, *more = x + 4 * depth; /* rows from 4 on: a pointer each would not fit */
    for (long k = 0; k < w->deep; k++, x++, more++) {
        floats a[SPAN][PARTS];
#pragma GCC unroll 2
        for (int p = 0; p < span; p++) {
            const char *next = w->next + p * w->next_apart + k * w->stride;
            if (rows > 4 && w->second)
                __builtin_prefetch(next, 0, 2);
            else
                __builtin_prefetch(next);
#pragma GCC unroll 2
            for (int h = 0; h < PARTS; h++) {
                a[p][h] = load(w->panel, format, p * w->apart + k * WIDTH + h * LANES);
                KEEP(a[p][h]);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            floats b = (r < 4 ? x : more)[r % 4 * depth] - (floats){0};
            KEEP(b);
#pragma GCC unroll 4
            for (int i = 0; i < span * PARTS; i++) {
                sum[r][i / PARTS][i % PARTS] += a[i / PARTS][i % PARTS] * b;
                KEEP(sum[r][i / PARTS][i % PARTS]);
            }
        }
        __asm__("" : "+r"(x), "+r"(more)); /* or gcc makes a pointer of each row */
    }
#pragma GCC unroll 32
    for (int i = 0; i < rows * span * PARTS; i++)
        *sums_at(w, i / PARTS / span, i / PARTS % span, i % PARTS) =
            sum[i / PARTS / span][i / PARTS % span][i % PARTS];
}

#define CASE(n, span) \
    case n: micro(w, format, n < TOGETHER ? n : TOGETHER, span); break;

INLINE void group(const piece *w, const int format, long rows, long span) {
    if (span == 1) {
        switch (rows) {
            CASE(1, 1) CASE(2, 1) CASE(3, 1) CASE(4, 1) CASE(5, 1) CASE(6, 1) CASE(7, 1) CASE(8, 1)
        }
        return;
    }
    switch (rows) {
        CASE(1, 2) CASE(2, 2)
#if LANES == 16
        CASE(3, 2) CASE(4, 2) CASE(5, 2) CASE(6, 2) CASE(7, 2) CASE(8, 2)
#endif
    }
}

/* A block of `span` panels as floats, (span, DEEP, WIDTH). */
static void widen_panels(const matrix *w, const char *block, long panel, long span, long k, long deep,
                         float *wide) {
    for (long p = 0; p < span; p++, wide += DEEP * WIDTH) {
        const char *from = block + p * w->depth * WIDTH * bytes_of(w->format);
        if (is_quantized(w))
            widen_block(w, panel + p, k, deep, wide);
        for (long i = 0; i < deep * WIDTH && !is_quantized(w); i += LANES)
            *(floats *)(wide + i) = w->format == INT8 ? load(from, INT8, i) : load(from, BF16, i);
    }
}

/* At most MANY rows against panels p .. p + span, some steps of k at a time: so much of a panel stays
 * in the first cache while the groups of rows pass over it and together fetch what comes next. */
static void panels(const matrix *w, const float *x, float *y, long rows, int add, long p, long span) {
    const long first = p * WIDTH, depth = w->depth, groups = (rows + TOGETHER - 1) / TOGETHER;
    const long size = bytes_of(w->format), stride = size * WIDTH / groups;
    const long steps = groups > 1 ? DEEP : DEEP / 2; /* few rows wait for memory: it is read sooner */
    const char *start = (const char *)w->panels + first * depth * size;
    const int wider = is_quantized(w) || (w->format != FLOAT32 && groups > 1);
    float out[MANY * SPAN * WIDTH] ALIGNED, wide[SPAN * DEEP * WIDTH] ALIGNED;
    memset(out, 0, sizeof(float) * rows * SPAN * WIDTH);
    for (long k = 0; k < depth; k += steps) {
        const long deep = depth - k < steps ? depth - k : steps;
        const char *block = start + k * WIDTH * size; /* behind the last one: the panels that follow */
        const char *next = block + (k + steps < depth ? steps : span * depth - k) * WIDTH * size;
        if (wider) widen_panels(w, block, p, span, k, deep, wide);
        for (long g = 0; g < groups; g++) {
            const long from = g * rows / groups, upto = (g + 1) * rows / groups;
            const piece part = {.panel = wider ? (const char *)wide : block,
                                .next = next + g * steps * stride,
                                .x = x + from * depth + k,
                                .out = out + from * SPAN * WIDTH,
                                .depth = depth,
                                .deep = deep,
                                .apart = (wider ? DEEP : depth) * WIDTH,
                                .stride = stride,
                                .next_apart = depth * WIDTH * size,
                                .second = w->format == FLOAT32 && groups <= 2};
            if (wider || w->format == FLOAT32)
                group(&part, FLOAT32, upto - from, span);
            else if (w->format == INT8)
                group(&part, INT8, upto - from, span);
            else
                group(&part, BF16, upto - from, span);
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

/* Rows quantised and multiplied as integers. A row is quantised once, by the thread whose turn it is. */
static void share_quantized(const matrix *w, const float *x, row_group *scratch, float *y, long rows,
                            int add) {
    const long groups = groups_of(w), count = (w->outputs + WIDTH - 1) / WIDTH;
#pragma omp for schedule(static)
    for (long i = 0; i < rows * groups; i++) {
        const long at = i % groups * GROUP, left = w->depth - at;
        quantize_group(x + i / groups * w->depth + at, left < GROUP ? left : GROUP, w->format,
                       scratch + i);
    }
    for (long r = 0; r < rows; r += MANY) {
        const long few = rows - r < MANY ? rows - r : MANY;
#pragma omp for schedule(static) nowait
        for (long p = 0; p < count; p++)
            quantized_panel(w, scratch + r * groups, y + r * w->outputs, few, add, p);
    }
}

/* To be called by all threads of a parallel region, each of which does its share. x (rows, depth),
 * y (rows, outputs), MANY rows at a time; with `add` the product is added to what y holds. `scratch`
 * has room for row_groups(w, rows), which no other product may use before the next barrier. No barrier
 * at its end. */
void share_product(const matrix *w, const float *x, row_group *scratch, float *y, long rows, int add) {
    if (is_quantized(w) && !w->float_rows) {
        share_quantized(w, x, scratch, y, rows, add);
        return;
    }
    const long count = (w->outputs + WIDTH - 1) / WIDTH;
    const long span = LANES == 16 || rows <= 2 ? SPAN : 1; /* no more sums than registers */
    for (long r = 0; r < rows; r += MANY) {
        const long few = rows - r < MANY ? rows - r : MANY;
#pragma omp for schedule(static) nowait
        for (long p = 0; p < count; p += span)
            (w->format == COMPACT ? compact_panels : panels)(w, x + r * w->depth,
                                                             y + r * w->outputs, few, add, p,
                                                             p + span <= count ? span : count - p);
    }
}

/* -1 if there is no memory. */
int skinny_product(const matrix *w, const float *x, float *y, long rows) {
    const long groups = row_groups(w, rows);
    row_group *scratch = groups ? malloc(sizeof(row_group) * groups) : NULL;
    if (groups && !scratch) return -1;
#pragma omp parallel
    share_product(w, x, scratch, y, rows, 0);
    free(scratch);
    return 0;
}
