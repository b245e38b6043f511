/* Sample a token from each row of logits, in float64: the first token whose cumulative probability
 * exceeds a number in [0, 1). The cumulative sum is never stored: blocks are summed first, then only
 * the block that contains the number is scanned. */
#include "sample.h"
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

enum { BLOCK = 1024 };
enum { LANES = 8 };
typedef double doubles __attribute__((vector_size(8 * LANES), aligned(8)));
typedef float floats __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t integers __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int64_t longs __attribute__((vector_size(8 * LANES), aligned(8)));
typedef uint64_t eight __attribute__((aligned(1), may_alias)); /* flags of LANES tokens */

/* 1 / k!, from k = 13 down. */
static const double series[] = {1 / 6227020800., 1 / 479001600., 1 / 39916800., 1 / 3628800.,
                                1 / 362880.,     1 / 40320.,     1 / 5040.,     1 / 720.,
                                1 / 120.,        1 / 24.,        1 / 6.,        1 / 2.,
                                1,               1};

/* e^x for x <= 0, within a rounding or two; 0 below -708. */
static inline doubles exponential(doubles x) {
    const longs tiny = x < -708.0 + (doubles){0};
    x = (doubles)((longs)x & ~tiny);
    const doubles shifted = x * 1.4426950408889634 + 6755399441055744.0; /* low bits: x / ln 2 */
    const doubles n = shifted - 6755399441055744.0;
    const doubles r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    doubles p = {0};
    for (int k = 0; k < 14; k++) p = p * r + series[k];
    return (doubles)(((longs)p + ((longs)shifted << 52)) & ~tiny);
}

/* Logits of a row, or of a part of it. With `seen`, those of tokens that the sequence has are made
 * smaller. */
typedef struct {
    const float *logits;
    const unsigned char *seen;
    double penalty;
    long count;
} scores;

static double score(scores s, long i) {
    const double x = s.logits[i];
    return !s.seen || !s.seen[i] ? x : x > 0 ? x / s.penalty : x * s.penalty;
}

/* LANES of them, -inf behind the end. */
static inline doubles load(scores s, long i) {
    doubles x;
    if (i + LANES <= s.count && (!s.seen || !*(const eight *)(s.seen + i)))
        x = __builtin_convertvector(*(const floats *)(s.logits + i), doubles);
    else
        for (int j = 0; j < LANES; j++) x[j] = i + j < s.count ? score(s, i + j) : -INFINITY;
    return x;
}

static scores part_of(scores s, long start, long most) {
    const long left = s.count - start;
    return (scores){s.logits + start, s.seen ? s.seen + start : NULL, s.penalty,
                    left < most ? left : most};
}

/* Weights of one block, relative to the largest score. */
static double weigh(scores s, double most, double rate, double *out) {
    const long count = s.count;
    doubles total = {0};
    for (long i = 0; i < count; i += LANES) {
        const doubles weight = exponential((load(s, i) - most) * rate);
        total += weight;
        if (out && i + LANES <= count)
            *(doubles *)(out + i) = weight;
        else if (out)
            for (int j = 0; j < LANES && i + j < count; j++) out[i + j] = weight[j];
    }
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += total[j];
    return sum;
}

static float largest(const float *x, long count) {
    floats lanes = {0};
    lanes -= INFINITY;
    long i = 0;
    for (; i + LANES <= count; i += LANES) {
        const floats next = *(const floats *)(x + i);
        const integers first = next > lanes;
        lanes = (floats)(((integers)next & first) | ((integers)lanes & ~first));
    }
    float most = -INFINITY;
    for (int j = 0; j < LANES; j++) most = lanes[j] > most ? lanes[j] : most;
    for (; i < count; i++) most = x[i] > most ? x[i] : most;
    return most;
}

static double largest_score(scores s) {
    doubles lanes = {0};
    lanes -= INFINITY;
    for (long i = 0; i < s.count; i += LANES) {
        const doubles next = load(s, i);
        const longs first = next > lanes;
        lanes = (doubles)(((longs)next & first) | ((longs)lanes & ~first));
    }
    double most = -INFINITY;
    for (int j = 0; j < LANES; j++) most = lanes[j] > most ? lanes[j] : most;
    return most;
}

/* The first token whose cumulative weight exceeds uniform * total; never one of weight 0. */
static long invert(scores s, double most, double rate, double uniform, const double *sums) {
    const long blocks = (s.count + BLOCK - 1) / BLOCK;
    double total = 0, before = 0, weights[BLOCK];
    for (long b = 0; b < blocks; b++) total += sums[b];
    const double target = fmin(uniform * total, nextafter(total, 0));
    long b = 0, token = 0;
    while (b < blocks - 1 && before + sums[b] <= target) before += sums[b++];
    const long start = b * BLOCK;
    const scores part = part_of(s, start, BLOCK);
    weigh(part, most, rate, weights);
    for (long i = 0; i < part.count; i++) {
        if (weights[i] > 0) token = start + i;
        if ((before += weights[i]) > target) break;
    }
    return token;
}

/* 1 / temperature, but finite: inf times 0 would be NaN. */
static double rate_of(const sampling *c) { return fmin(1 / c->temperature, 1e300); }

static int filters(const sampling *c) {
    return c->temperature > 0 && (c->top_k || c->top_p || c->min_p);
}

/* Weights in (0, 1] fall into buckets by size, the largest first: 16 for each power of two, the last
 * for all that is tiny. Only the one bucket in which a filter ends has to be sorted. */
enum { BUCKETS = 64 * 16 + 2 };

static long bucket_of(double weight) {
    union {
        double number;
        uint64_t bits;
    } w = {weight};
    const long place = (long)(0x3ff0 - (int64_t)(w.bits >> 48)); /* sign, exponent, four more */
    return place < BUCKETS - 1 ? place : BUCKETS - 1;
}

typedef struct {
    double weight;
    long token;
} item;

/* The larger weight first; of equal ones the lower token. */
static int by_size(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    return x->token < y->token ? -1 : 1;
}

/* The last item that is kept by top-k (`most` items) and top-p (as many of the largest items as it
 * takes to hold `share` of the weight); 0 turns each off. `items` has room for all. */
static item last_kept(const double *weights, long count, long most, double share, item *items) {
    long number[BUCKETS] = {0};
    double mass[BUCKETS] = {0}, before = 0, total = 0;
    for (long i = 0; i < count; i++) {
        if (!(weights[i] > 0)) continue;
        const long b = bucket_of(weights[i]);
        number[b]++, mass[b] += weights[i], total += weights[i];
    }
    item last = {0, count};
    for (long b = 0, rank = 0; b < BUCKETS; b++) {
        const int ends = (most && rank + number[b] >= most) || (share && before + mass[b] >= share * total);
        if (!number[b]) continue;
        if (!ends) {
            rank += number[b], before += mass[b];
            continue;
        }
        long found = 0;
        for (long i = 0; i < count; i++)
            if (weights[i] > 0 && bucket_of(weights[i]) == b) items[found++] = (item){weights[i], i};
        qsort(items, found, sizeof(item), by_size);
        for (long i = 0; i < found; i++) {
            if ((most && rank >= most) || (share && before >= share * total)) return last;
            last = items[i], rank++, before += last.weight;
        }
    }
    return last;
}

static int is_kept(double weight, long token, item last) {
    return weight > last.weight || (weight == last.weight && token <= last.token);
}

/* Sample among the tokens that the filters keep. `items` has room for all tokens. */
static long sample_weights(double *weights, long count, const sampling *c, double uniform,
                           item *items) {
    /* top-p counts the weight that top-k keeps */
    for (int pass = 0; pass < 2; pass++) {
        const long top_k = pass ? 0 : c->top_k;
        const double top_p = pass ? c->top_p : 0;
        if (!top_k && !top_p) continue;
        const item last = last_kept(weights, count, top_k, top_p, items);
        for (long i = 0; i < count; i++)
            if (!is_kept(weights[i], i, last)) weights[i] = 0;
    }
    double total = 0, before = 0;
    for (long i = 0; i < count; i++) {
        if (weights[i] < c->min_p) weights[i] = 0; /* the largest is 1 */
        total += weights[i];
    }
    const double target = fmin(uniform * total, nextafter(total, 0));
    long token = 0;
    for (long i = 0; i < count; i++) {
        if (weights[i] > 0) token = i;
        if ((before += weights[i]) > target) break;
    }
    return token;
}

static long first_largest(scores s, double most) {
    for (long i = 0; i < s.count; i++)
        if (score(s, i) == most) return i;
    return 0;
}

/* For rows with filters, which need the weights of all tokens at once. -1 if there is no memory. */
static long sample_filtered(scores s, double most, const sampling *c, double uniform) {
    double *weights = malloc((sizeof(double) + sizeof(item)) * s.count);
    if (!weights) return -1;
    for (long start = 0; start < s.count; start += BLOCK)
        weigh(part_of(s, start, BLOCK), most, rate_of(c), weights + start);
    const long token = sample_weights(weights, s.count, c, uniform, (item *)(weights + s.count));
    free(weights);
    return token;
}

static scores scores_of(const float *logits, long count, const sampling *c,
                        const unsigned char *const *seen, long row) {
    const int penalised = c[row].repetition_penalty != 1 && seen;
    return (scores){logits + row * count, penalised ? seen[row] : NULL, c[row].repetition_penalty,
                    count};
}

/* logits (rows, count), uniform and samplings (rows); given[r] >= 0 is a token to be taken; seen[r],
 * (count), says which tokens the penalty applies to. given, seen and seen[r] may be NULL. logp is the
 * log-probability of the token at temperature 1 without a penalty. The token of a row whose logits
 * are NaN or infinite is -1. Returns -1 if there is no memory. */
int sample_rows(const float *logits, const double *uniform, const long *given,
                const sampling *samplings, const unsigned char *const *seen, long rows, long count,
                long *token, double *logp) {
    const long blocks = (count + BLOCK - 1) / BLOCK;
    double *sums = malloc(sizeof(double) * rows * (2 * blocks + 2));
    if (!sums) return -1;
    /* of the logits, then of the scores */
    double *plain = sums + rows * blocks, *most = plain + rows * blocks, *top = most + rows;
    int failed = 0;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long i = 0; i < rows * blocks; i++) {
            const long start = i % blocks * BLOCK, left = count - start;
            plain[i] = largest(logits + i / blocks * count + start, left < BLOCK ? left : BLOCK);
        }
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            const scores all = scores_of(logits, count, samplings, seen, r);
            most[r] = -INFINITY;
            for (long b = 0; b < blocks; b++) most[r] = fmax(most[r], plain[r * blocks + b]);
            top[r] = all.seen ? largest_score(all) : most[r];
        }
#pragma omp for schedule(static)
        for (long i = 0; i < rows * blocks; i++) {
            const long r = i / blocks;
            const sampling *c = samplings + r;
            const scores all = scores_of(logits, count, samplings, seen, r);
            const scores part = part_of(all, i % blocks * BLOCK, BLOCK);
            const scores unchanged = {part.logits, NULL, 1, part.count};
            sums[i] = plain[i] = weigh(unchanged, most[r], 1, NULL);
            if (c->temperature > 0 && !filters(c) && (c->temperature != 1 || part.seen))
                sums[i] = weigh(part, top[r], rate_of(c), NULL);
        }
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            const scores all = scores_of(logits, count, samplings, seen, r);
            const sampling *c = samplings + r;
            double total = 0;
            for (long b = 0; b < blocks; b++) total += plain[r * blocks + b];
            if (!isfinite(total) || !isfinite(most[r])) {
                token[r] = -1, logp[r] = NAN;
                continue;
            }
            if (given && given[r] >= 0)
                token[r] = given[r];
            else if (filters(c)) {
                token[r] = sample_filtered(all, top[r], c, uniform[r]);
                if (token[r] < 0) token[r] = 0, failed = -1;
            } else if (c->temperature <= 0)
                token[r] = first_largest(all, top[r]);
            else
                token[r] = invert(all, top[r], rate_of(c), uniform[r], sums + r * blocks);
            logp[r] = all.logits[token[r]] - most[r] - log(total);
        }
    }
    free(sums);
    return failed;
}
