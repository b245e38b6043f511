/* Vectors of 8 floats: exponential, sums, bf16; and of 16 where the machine has them. */
#pragma once
#include "gemm.h"
#include <math.h>
#include <string.h>

typedef int32_t ints __attribute__((vector_size(32), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(16), aligned(2)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

/* For vectors of one kind: the larger of two; and e^x, to about float's precision, x clamped to
 * -87..88. Wide ones give the same bits. */
#define ARITHMETIC(larger, exponential, vec, ints)                                                 \
    INLINE vec larger(vec a, vec b) {                                                              \
        const ints first = a > b;                                                                  \
        return (vec)(((ints)a & first) | ((ints)b & ~first));                                      \
    }                                                                                              \
    INLINE vec exponential(vec x) {                                                                \
        const vec zero = {0};                                                                      \
        x = -larger(-larger(x, zero - 87), zero - 88);                                             \
        const vec shifted = x * 1.44269504f + 12582912.0f; /* low bits: x / ln 2, rounded */       \
        const vec n = shifted - 12582912.0f, r = x - n * 0.693359375f - n * -2.12194440e-4f;       \
        vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;                                           \
        p = p * r + 8.3334519073e-3f;                                                              \
        p = p * r + 4.1665795894e-2f;                                                              \
        p = p * r + 1.6666665459e-1f;                                                              \
        p = p * r + 5.0000001201e-1f;                                                              \
        p = p * r * r + r + 1;                                                                     \
        return (vec)((ints)p + ((ints)shifted << 23));                                             \
    }
ARITHMETIC(larger, exponential, vec, ints)

/* From bf16 to float. The width is a multiple of 8. */
INLINE void widen_bf16(const uint16_t *x, const long width, float *out) {
    for (long i = 0; i < width; i += 8)
        *(vec *)(out + i) = (vec)(__builtin_convertvector(*(const halves *)(x + i), ints) << 16);
}

/* From float to bf16, rounded to nearest even; NaN stays NaN. */
static inline void narrow_bf16(const float *x, long width, uint16_t *out) {
    for (long i = 0; i < width; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
        out[i] = (x[i] == x[i] ? rounded : bits | 0x400000) >> 16;
    }
}

INLINE float sum(vec x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* The sums of eight vectors, one in each lane. */
INLINE vec sums(const vec x[8]) {
    vec pair[4], four[2];
    for (int i = 0; i < 4; i++)
        pair[i] = SHUFFLE(x[2 * i], x[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13) +
                  SHUFFLE(x[2 * i], x[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    for (int i = 0; i < 2; i++)
        four[i] = SHUFFLE(pair[2 * i], pair[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                  SHUFFLE(pair[2 * i], pair[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return SHUFFLE(four[0], four[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           SHUFFLE(four[0], four[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

#ifdef __AVX512DQ__
#include <immintrin.h>
/* Two vectors side by side. What is done with them is done with each, so bits stay the same. */
enum { WIDE = 16 };
typedef float wide_vec __attribute__((vector_size(64), aligned(4)));
typedef int32_t wide_ints __attribute__((vector_size(64), aligned(4)));
ARITHMETIC(wide_larger, wide_exponential, wide_vec, wide_ints)
#ifdef __clang__
#define SHUFFLE_WIDE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE_WIDE(a, b, ...) __builtin_shuffle(a, b, (wide_ints){__VA_ARGS__})
#endif

INLINE wide_vec twice(const float *x) {
    return (wide_vec)_mm512_broadcast_f32x8(_mm256_loadu_ps(x));
}

/* As `sums`, of vectors i and i + 4 side by side. */
INLINE vec wide_sums(const wide_vec x[4]) {
    wide_vec pair[2];
    for (int i = 0; i < 2; i++)
        pair[i] = SHUFFLE_WIDE(x[2 * i], x[2 * i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12,
                               28, 13, 29) +
                  SHUFFLE_WIDE(x[2 * i], x[2 * i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27,
                               14, 30, 15, 31);
    const wide_vec four = SHUFFLE_WIDE(pair[0], pair[1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25,
                                       12, 13, 28, 29) +
                          SHUFFLE_WIDE(pair[0], pair[1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27,
                                       14, 15, 30, 31);
    const vec a = (vec)_mm512_castps512_ps256((__m512)four);
    const vec b = (vec)_mm512_extractf32x8_ps((__m512)four, 1);
    return SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
#else
enum { WIDE = 8 };
typedef vec wide_vec;
#define wide_exponential exponential
#endif
