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

/* Weights of one block, relative to the largest logit. */
static double weigh(const float *logits, long count, double most, double rate, double *out) {
    doubles total = {0};
    for (long i = 0; i < count; i += LANES) {
        doubles x;
        if (i + LANES <= count)
            x = __builtin_convertvector(*(const floats *)(logits + i), doubles);
        else
            for (int j = 0; j < LANES; j++) x[j] = i + j < count ? logits[i + j] : -INFINITY;
        const doubles weight = exponential((x - most) * rate);
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

/* The first token whose cumulative weight exceeds uniform * total; never one of weight 0. */
static long invert(const float *logits, long count, double most, double rate, double uniform,
                 const double *sums) {
    const long blocks = (count + BLOCK - 1) / BLOCK;
    double total = 0, before = 0, weights[BLOCK];
    for (long b = 0; b < blocks; b++) total += sums[b];
    const double target = fmin(uniform * total, nextafter(total, 0));
    long b = 0, token = 0;
    while (b < blocks - 1 && before + sums[b] <= target) before += sums[b++];
    const long start = b * BLOCK, size = count - start < BLOCK ? count - start : BLOCK;
    weigh(logits + start, size, most, rate, weights);
    for (long i = 0; i < size; i++) {
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

static int penalised(const sampling *c, const unsigned char *const *seen, long row) {
    return c->repetition_penalty != 1 && seen && seen[row];
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

/* Weights of all tokens, relative to the largest logit. */
static void fill_weights(const float *logits, long count, double most, double rate,
                         double *weights) {
    for (long start = 0; start < count; start += BLOCK) {
        const long left = count - start;
        weigh(logits + start, left < BLOCK ? left : BLOCK, most, rate, weights + start);
    }
}

/* The logits in float64, those of tokens that the sequence has made smaller. Returns the first of the
 * largest. */
static long penalise(const float *logits, long count, const unsigned char *seen, double penalty,
                     double *scores) {
    long best = 0;
    for (long i = 0; i < count; i++) {
        const double x = logits[i];
        scores[i] = !seen[i] ? x : x > 0 ? x / penalty : x * penalty;
        if (scores[i] > scores[best]) best = i;
    }
    return best;
}

/* From scores to weights relative to the largest, in place. */
static void weigh_scores(double *scores, long count, double most, double rate) {
    for (long i = 0; i < count; i += LANES) {
        doubles x = {0};
        for (int j = 0; j < LANES; j++) x[j] = i + j < count ? scores[i + j] : -INFINITY;
        const doubles weight = exponential((x - most) * rate);
        for (int j = 0; j < LANES && i + j < count; j++) scores[i + j] = weight[j];
    }
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

static long first_largest(const float *logits, long count, float most) {
    for (long i = 0; i < count; i++)
        if (logits[i] == most) return i;
    return 0;
}

/* For rows with filters or a penalty, which need the weights of all tokens at once. -1 if there is no
 * memory. */
static long sample_slowly(const float *logits, long count, double most, const sampling *c,
                          const unsigned char *seen, double uniform) {
    double *weights = malloc((sizeof(double) + sizeof(item)) * count);
    if (!weights) return -1;
    long token = 0;
    if (seen) {
        token = penalise(logits, count, seen, c->repetition_penalty, weights);
        if (c->temperature > 0) weigh_scores(weights, count, weights[token], rate_of(c));
    } else
        fill_weights(logits, count, most, rate_of(c), weights);
    if (c->temperature > 0)
        token = sample_weights(weights, count, c, uniform, (item *)(weights + count));
    free(weights);
    return token;
}

/* logits (rows, count), uniform and samplings (rows); given[r] >= 0 is a token to be taken; seen[r],
 * (count), says which tokens the penalty applies to. given, seen and seen[r] may be NULL. logp is the
 * log-probability of the token at temperature 1 without a penalty. The token of a row whose logits
 * are NaN or infinite is -1. Returns -1 if there is no memory. */
int sample_rows(const float *logits, const double *uniform, const long *given,
                const sampling *samplings, const unsigned char *const *seen, long rows, long count,
                long *token, double *logp) {
    const long blocks = (count + BLOCK - 1) / BLOCK;
    double *sums = malloc(sizeof(double) * rows * (2 * blocks + 1));
    if (!sums) return -1;
    double *plain = sums + rows * blocks, *most = plain + rows * blocks;
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
            most[r] = -INFINITY;
            for (long b = 0; b < blocks; b++) most[r] = fmax(most[r], plain[r * blocks + b]);
        }
#pragma omp for schedule(static)
        for (long i = 0; i < rows * blocks; i++) {
            const long r = i / blocks, start = i % blocks * BLOCK, left = count - start;
            const long size = left < BLOCK ? left : BLOCK;
            const float *part = logits + r * count + start;
            sums[i] = plain[i] = weigh(part, size, most[r], 1, NULL);
            const sampling *c = samplings + r;
            if (c->temperature > 0 && c->temperature != 1 && !filters(c) && !penalised(c, seen, r))
                sums[i] = weigh(part, size, most[r], rate_of(c), NULL);
        }
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            const float *row = logits + r * count;
            const sampling *c = samplings + r;
            double total = 0;
            for (long b = 0; b < blocks; b++) total += plain[r * blocks + b];
            if (!isfinite(total) || !isfinite(most[r])) {
                token[r] = -1, logp[r] = NAN;
                continue;
            }
            if (given && given[r] >= 0)
                token[r] = given[r];
            else if (filters(c) || penalised(c, seen, r)) {
                const unsigned char *has = penalised(c, seen, r) ? seen[r] : NULL;
                token[r] = sample_slowly(row, count, most[r], c, has, uniform[r]);
                if (token[r] < 0) token[r] = 0, failed = -1;
            } else if (c->temperature <= 0)
                token[r] = first_largest(row, count, most[r]);
            else
                token[r] = invert(row, count, most[r], rate_of(c), uniform[r], sums + r * blocks);
            logp[r] = row[token[r]] - most[r] - log(total);
        }
    }
    free(sums);
    return failed;
}
