/* y = x W^T for float32 weights in 28 bits (compact.h): memory is what few rows wait for, and there is
 * an eighth less to read. The weights come out as they were, and every output is one sum in the order
 * of k, so that all bits are those of gemm.c.
 *
 * On a Zen 4, 16 vector products of 512 bits leave room for 4 byte permutations and 4 operations of two
 * operands beside them, but not for shifts, for operations of three operands or for `vbroadcastss`, which
 * use the same pipes. So weights are unpacked anew for each group of rows, at no cost. */
#include "compact.h"
#include <string.h>

#if defined(__AVX512VBMI__) && (defined(__znver3__) || defined(__znver4__) || defined(__znver5__))
#include <immintrin.h>

enum { SPAN = 2, TOGETHER = 8, DEEP = 128, MANY = 96 }; /* as in gemm.c */
enum { NEAR = 1024 }; /* bytes between what is read and what is prefetched from the second cache */
#define KEEP(a) __asm__("" : "+v"(a)) /* in a register */

/* Some inputs of `span` panels, `apart` bytes from one to the next, against some rows of x. What is
 * fetched meanwhile starts at `next`, `stride` bytes a pair; with `second` into the second cache, and
 * from there into the first. */
typedef struct {
    const uint8_t *pairs, *tables, *next;
    const float *x;
    const uint32_t *mends; /* exceptions: pair << 16 | place in `mended` << 8 | upper byte; then END */
    float *out;            /* (rows, SPAN, WIDTH): the sums so far */
    long depth, deep, apart, stride;
    int second;
} piece;
static const uint32_t END = 0xffffffff;

#define LOW(i, from, code) from + 3 * (i), from + 3 * (i) + 1, from + 3 * (i) + 2, code + (i)
#define FOUR(i, from, code) \
    LOW(i, from, code), LOW(i + 1, from, code), LOW(i + 2, from, code), LOW(i + 3, from, code)
#define SPREAD(from, code) \
    {FOUR(0, from, code), FOUR(4, from, code), FOUR(8, from, code), FOUR(12, from, code)}
/* from the 64 bytes of an input and the codes: three bytes and a byte of codes for each output */
static const uint8_t spread[2][64] ALIGNED = {SPREAD(0, CODES), SPREAD(16, 0)};
static const __mmask64 UPPER = 0x8888888888888888; /* the upper byte of each weight */

typedef struct {
    __m512i spread[2], table[2][SPAN], low;
} unpacking;

INLINE unpacking begin(const piece *w, const int span) {
    unpacking u = {.low = _mm512_set1_epi32((int)0x80ffffff)};
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; odd++) {
        u.spread[odd] = _mm512_load_si512(spread[odd]);
        KEEP(u.spread[odd]);
#pragma GCC unroll 2
        for (int p = 0; p < span; p++) {
            u.table[odd][p] = _mm512_loadu_si512(w->tables + p * w->apart + odd * (TABLES / 2));
            KEEP(u.table[odd][p]);
        }
    }
    KEEP(u.low);
    return u;
}

/* The 16 weights of one input of a panel. */
INLINE __m512i unpack(const unpacking *u, const uint8_t *pair, const int odd, const int p) {
    const __m512i all = _mm512_loadu_si512(pair + odd * CODES);
    const __m512i v = _mm512_permutexvar_epi8(u->spread[odd], all);
    const __m512i upper = _mm512_maskz_permutexvar_epi8(UPPER, v, u->table[odd][p]);
    __m512i made = odd ? _mm512_and_si512(v, u->low) : _mm512_maskz_add_epi8(UPPER, v, upper);
    KEEP(made); /* or both operations become one of three operands */
    made = odd ? _mm512_or_si512(made, upper) : _mm512_add_epi8(v, made);
    KEEP(made);
    return made;
}

/* Put the exceptions of a pair into its weights; what comes next. */
INLINE const uint32_t *mend(__m512i a[2][SPAN], const uint32_t *mends, long pair, const int span) {
    for (; *mends >> 16 == pair; mends++) {
        const __m512i upper = _mm512_set1_epi8((char)*mends);
        const uint32_t place = *mends >> 8 & 255;
        const __mmask64 at = (__mmask64)8 << place % WIDTH * 4;
#pragma GCC unroll 4
        for (int i = 0; i < 2 * span; i++)
            a[i / span][i % span] =
                _mm512_mask_mov_epi8(a[i / span][i % span], place / WIDTH == i ? at : 0, upper);
    }
    return mends;
}

/* One input: its weights against `rows` rows; rows from 4 on start at `more`. */
INLINE void add_input(__m512 sum[TOGETHER][SPAN], const __m512i *a, const float *x, const float *more,
                      long depth, const int rows, const int span) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        int bits;
        memcpy(&bits, (r < 4 ? x : more) + r % 4 * depth, sizeof(bits));
        __m512i b = _mm512_set1_epi32(bits); /* not `vbroadcastss` */
        KEEP(b);
#pragma GCC unroll 2
        for (int p = 0; p < span; p++) {
            sum[r][p] = _mm512_fmadd_ps((__m512)a[p], (__m512)b, sum[r][p]);
            KEEP(sum[r][p]);
        }
    }
}

/* One or two rows leave it to the processor, which reads ahead by itself: they go through what is there
 * so quickly that prefetches stand in the way of the loads. */
INLINE void fetch(const piece *w, const uint8_t *pair, long i, const int p, const int rows) {
    if (rows <= 2) return;
    const uint8_t *next = w->next + p * w->apart + i * w->stride;
    if (!w->second) {
        __builtin_prefetch(next);
        return;
    }
    __builtin_prefetch(next, 0, 2);
    if (w->stride == PAIR) __builtin_prefetch(next + PAIR / 2, 0, 2);
    __builtin_prefetch(pair + NEAR);
    __builtin_prefetch(pair + NEAR + PAIR / 2);
}

INLINE void micro(const piece *w, const int rows, const int span) {
    __m512 sum[TOGETHER][SPAN];
#pragma GCC unroll 16
    for (int i = 0; i < rows * span; i++)
        sum[i / span][i % span] = _mm512_load_ps(w->out + (i / span * SPAN + i % span) * WIDTH);
    const unpacking u = begin(w, span);
    const uint8_t *pair = w->pairs;
    const long depth = w->depth, pairs = w->deep / 2;
    const float *x = w->x, *more = x + 4 * depth;
    const uint32_t *mends = w->mends;
    __m512i a[2][SPAN];
    for (long i = 0; i < pairs; i++, x += 2, more += 2, pair += PAIR) {
#pragma GCC unroll 2
        for (int p = 0; p < span; p++) {
            fetch(w, pair + p * w->apart, i, p, rows);
            a[0][p] = unpack(&u, pair + p * w->apart, 0, p);
            a[1][p] = unpack(&u, pair + p * w->apart, 1, p);
        }
        if (__builtin_expect(*mends >> 16 == i, 0)) mends = mend(a, mends, i, span);
        add_input(sum, a[0], x, more, depth, rows, span);
        add_input(sum, a[1], x + 1, more + 1, depth, rows, span);
        __asm__("" : "+r"(x), "+r"(more)); /* or gcc makes a pointer of each row */
    }
    if (w->deep % 2) {
#pragma GCC unroll 2
        for (int p = 0; p < span; p++) a[0][p] = a[1][p] = unpack(&u, pair + p * w->apart, 0, p);
        mend(a, mends, pairs, span);
        add_input(sum, a[0], x, more, depth, rows, span);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows * span; i++)
        _mm512_store_ps(w->out + (i / span * SPAN + i % span) * WIDTH, sum[i / span][i % span]);
}

#define CASE(n) \
    case n: \
        if (span == 2) \
            micro(w, n, 2); \
        else \
            micro(w, n, 1); \
        break;

static void group(const piece *w, long rows, long span) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
    }
}

/* The exceptions of `deep` inputs from k on, of all panels, in the order of their pairs. `left` is moved
 * behind them. */
static void find_mends(const uint32_t *left[SPAN], const uint32_t *const end[SPAN], long span, long k,
                       long deep, uint32_t *to) {
    for (;;) {
        long first = -1;
        for (long p = 0; p < span; p++)
            if (left[p] < end[p] && (*left[p] >> 8) < (k + deep) * WIDTH &&
                (first < 0 || *left[p] >> 13 < *left[first] >> 13))
                first = p;
        if (first < 0) break;
        const uint32_t one = *left[first]++, step = (one >> 12) - (uint32_t)k;
        const uint32_t place = (step % 2 * (uint32_t)span + (uint32_t)first) * WIDTH + (one >> 8) % WIDTH;
        *to++ = step / 2 << 16 | place << 8 | (one & 255);
    }
    *to = END;
}

/* At most MANY rows against panels p .. p + span, as in gemm.c. */
void compact_panels(const matrix *w, const float *x, float *y, long rows, int add, long p, long span) {
    const long first = p * WIDTH, depth = w->depth, groups = (rows + TOGETHER - 1) / TOGETHER;
    const long apart = compact_bytes(depth), stride = PAIR / groups;
    const uint8_t *start = (const uint8_t *)w->panels + p * apart;
    const uint32_t *left[SPAN], *end[SPAN];
    uint32_t mends[DEEP * SPAN * WIDTH + 1];
    float out[MANY * SPAN * WIDTH] ALIGNED;
    for (long i = 0; i < span; i++)
        left[i] = first_exception(w, p + i), end[i] = first_exception(w, p + i + 1);
    memset(out, 0, sizeof(float) * rows * SPAN * WIDTH);
    for (long k = 0; k < depth; k += DEEP) {
        const long deep = depth - k < DEEP ? depth - k : DEEP;
        const uint8_t *pairs = start + TABLES + k / 2 * PAIR;
        const uint8_t *next = k + DEEP < depth ? pairs + DEEP / 2 * PAIR : start + span * apart;
        find_mends(left, end, span, k, deep, mends);
        for (long g = 0; g < groups; g++) {
            const long from = g * rows / groups, upto = (g + 1) * rows / groups;
            const piece part = {pairs, start, next + g * (DEEP / 2) * stride, x + from * depth + k,
                                mends, out + from * SPAN * WIDTH, depth, deep, apart, stride,
                                groups <= 2};
            group(&part, upto - from, span);
        }
    }
    const long outputs = w->outputs - first, width = outputs < span * WIDTH ? outputs : span * WIDTH;
    for (long r = 0; r < rows; r++) {
        float *made = out + r * SPAN * WIDTH, *to = y + r * w->outputs + first;
        for (long i = 0; i < width; i++) to[i] = add ? to[i] + made[i] : made[i];
    }
}

int has_compact(void) { return 1; }
#else
void compact_panels(const matrix *w, const float *x, float *y, long rows, int add, long p, long span) {}
int has_compact(void) { return 0; }
#endif
