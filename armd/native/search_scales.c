/* 4-bit weights: the scale of each group of 32 that has the least squared error. Tried are scales that
 * put the largest weight at -8 or near it (what is beyond -8 .. 7 is clipped), with either sign, and
 * what least squares make of each with the same values. */
#include "vectors.h"

static const float TRIALS[] = {8, 7.5, 8.5, 9, 9.5, 10, -7, -7.5, -8};
enum { PARTS = GROUP / 8 };

static float as_bf16(float x) {
    uint16_t narrow;
    narrow_bf16(&x, 1, &narrow);
    const uint32_t bits = (uint32_t)narrow << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Values of the weights with this scale; the squared error. */
INLINE float round_group(const vec *x, float scale, vec *values) {
    const vec zero = {0}, low = zero - 8, high = zero + 7;
    const float inverse = scale != 0 ? 1 / scale : 0;
    vec error = zero;
    for (int i = 0; i < PARTS; i++) {
        const vec clipped = -larger(-larger(x[i] * inverse, low), -high);
        values[i] = (clipped + 12582912.0f) - 12582912.0f; /* to nearest */
        const vec off = x[i] - values[i] * scale;
        error += off * off;
    }
    return sum(error);
}

static void search_group(const float *weights, float *scale, int8_t *stored) {
    vec x[PARTS], values[PARTS], best[PARTS] = {{0}};
    float largest = 0, least = INFINITY;
    for (int i = 0; i < GROUP; i++)
        if (fabsf(weights[i]) > fabsf(largest)) largest = weights[i];
    const float size = fabsf(largest) < 1e-36f ? 0 : fabsf(largest);
    *scale = 0;
    memcpy(x, weights, sizeof(x));
    for (int i = 0; i < PARTS; i++) x[i] /= size; /* so that no square is too large or too small */
    for (unsigned t = 0; t < 2 * sizeof(TRIALS) / sizeof(float) && size > 0; t++) {
        float now = as_bf16(largest / -TRIALS[t / 2]);
        if (t % 2) { /* after the trial itself, whose values are still there */
            vec product = {0}, square = {0};
            for (int i = 0; i < PARTS; i++)
                product += x[i] * values[i], square += values[i] * values[i];
            const float all = sum(square);
            now = as_bf16(sum(product) / (all > 1 ? all : 1) * size);
        }
        const float error = round_group(x, now / size, values);
        if (error < least) least = error, *scale = now, memcpy(best, values, sizeof(best));
    }
    for (int i = 0; i < GROUP; i++) stored[i] = (int8_t)best[i / 8][i % 8];
}

/* weights and values (groups, 32), scale (groups). */
void search_scales(const float *weights, long groups, float *scale, int8_t *values) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < groups; i++)
        search_group(weights + i * GROUP, scale + i, values + i * GROUP);
}
