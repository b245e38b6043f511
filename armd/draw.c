/* A token for each row of logits, in float64: one number in [0, 1) against the cumulative sum of the
 * probabilities, which is never written down. Blocks are summed first, then the one block in which
 * the number falls is walked through. */
#include <math.h>
#include <stdlib.h>

enum { BLOCK = 1024 };
typedef double quad __attribute__((vector_size(32), aligned(8)));
typedef long longs __attribute__((vector_size(32), aligned(8)));

/* e^x for x <= 0, within a rounding or two; 0 below -708. */
static inline quad exponential(quad x) {
    const longs tiny = x < -708.0 + (quad){0};
    x = (quad)((longs)x & ~tiny);
    const quad shifted = x * 1.4426950408889634 + 6755399441055744.0; /* low bits: x / ln 2 */
    const quad n = shifted - 6755399441055744.0;
    const quad r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
    quad p = 1 + (quad){0};
    for (int k = 13; k > 0; k--) p = 1 + p * r * (1.0 / k);
    return (quad)(((longs)p + ((longs)shifted << 52)) & ~tiny);
}

/* Weights of one block, relative to the largest logit. */
static double weigh(const float *logits, long count, double most, double rate, double *out) {
    quad total = {0};
    for (long i = 0; i < count; i += 4) {
        quad x;
        for (int j = 0; j < 4; j++) x[j] = i + j < count ? logits[i + j] : -INFINITY;
        const quad weight = exponential((x - most) * rate);
        total += weight;
        if (out)
            for (int j = 0; j < 4 && i + j < count; j++) out[i + j] = weight[j];
    }
    return (total[0] + total[1]) + (total[2] + total[3]);
}

static float largest(const float *x, long count) {
    float most = -INFINITY;
    for (long i = 0; i < count; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* The first token whose cumulative weight exceeds uniform * total; never one of weight 0. */
static long find(const float *logits, long count, double most, double rate, double uniform,
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

/* 1 / temperature, but finite: inf times 0 would be no number. */
static double rate_of(double temperature) { return fmin(1 / temperature, 1e300); }

/* logits (rows, count), uniform and temperature (rows); given[r] >= 0 is a token to be taken, given
 * may be NULL. logp is the token's at temperature 1. -1 if there is no memory. */
int draw_rows(const float *logits, const double *uniform, const long *given,
              const double *temperature, long rows, long count, long *token, double *logp) {
    const long blocks = (count + BLOCK - 1) / BLOCK;
    double *sums = malloc(sizeof(double) * rows * (2 * blocks + 1));
    if (!sums) return -1;
    double *plain = sums + rows * blocks, *most = plain + rows * blocks;
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
            const double rate = rate_of(temperature[r]);
            sums[i] = plain[i] = weigh(part, size, most[r], 1, NULL);
            if (rate != 1) sums[i] = weigh(part, size, most[r], rate, NULL);
        }
#pragma omp for schedule(static)
        for (long r = 0; r < rows; r++) {
            const float *row = logits + r * count;
            double total = 0;
            for (long b = 0; b < blocks; b++) total += plain[r * blocks + b];
            token[r] = given && given[r] >= 0
                ? given[r]
                : find(row, count, most[r], rate_of(temperature[r]), uniform[r], sums + r * blocks);
            logp[r] = row[token[r]] - most[r] - log(total);
        }
    }
    free(sums);
    return 0;
}
