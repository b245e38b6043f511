/* The integer part of a quantised product, for the vectors that the machine has: 4 x 8 bits of weights
 * in each 32-bit lane against 4 bytes of a row. All forms give the same integers. ARMD_PLAIN asks for
 * the plain form, which is the reference.
 *
 * The sum of a group and a row is begin_dot, add_part for each vector of weights, end_dot. A vector is
 * loaded and unpacked once for up to ROWS rows, whose sums do not wait for each other.
 *
 * A group of a panel is 8 vectors of [16 outputs][4 inputs]; Q8 weights are stored as value + 128, Q4
 * weights as value + 8, two in a byte: inputs 4i .. 4i + 3 low, inputs 16 + 4i .. 16 + 4i + 3 high. */
#pragma once
#include "gemm.h"
#include <math.h>
#include <string.h>

/* Four numbers of a row, as they lie. */
INLINE int32_t four_at(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return four;
}

#if !defined(ARMD_PLAIN) && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
enum { LANES = 16, ROWS = 12 };
typedef __m512i integers;
typedef __m512 floats;
typedef struct {
    integers low, high;
} weights_part;

INLINE weights_part load_part(const uint8_t *w, const int bits) {
    const integers mask = _mm512_set1_epi8(15);
    weights_part v = {.low = _mm512_loadu_si512(w)};
    if (bits == 4) {
        v.high = _mm512_and_si512(_mm512_srli_epi16(v.low, 4), mask);
        v.low = _mm512_and_si512(v.low, mask);
        __asm__("" : "+v"(v.high)); /* unpacked once for all rows */
    }
    __asm__("" : "+v"(v.low));
    return v;
}

INLINE integers begin_dot(const row_group *x, const int bits) { return _mm512_set1_epi32(x->offset); }

INLINE integers add_part(integers d, weights_part v, const int8_t *x, const int bits) {
    d = _mm512_dpbusd_epi32(d, v.low, _mm512_set1_epi32(four_at(x)));
    return bits == 8 ? d : _mm512_dpbusd_epi32(d, v.high, _mm512_set1_epi32(four_at(x + 16)));
}

INLINE integers end_dot(integers d, const row_group *x, const int bits) { return d; }

INLINE floats load_scales(const uint16_t *s) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)s));
    return (floats)_mm512_slli_epi32(wide, 16);
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale, _mm512_set1_ps(x)), sum);
}

INLINE int32_t round_values(const float *x, float inverse, int8_t *to) {
    integers sum = _mm512_setzero_si512();
    for (int i = 0; i < GROUP; i += 16) {
        const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse));
        const integers rounded = _mm512_cvtps_epi32(scaled);
        _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(rounded));
        sum = _mm512_add_epi32(sum, rounded);
    }
    return _mm512_reduce_add_epi32(sum);
}

#elif !defined(ARMD_PLAIN) && defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8, ROWS = 4 };
typedef __m256i integers;
typedef __m256 floats;
typedef struct {
    integers low, high, sign;
} weights_part;

#if defined(__AVXVNNI__)
#define DOT _mm256_dpbusd_avx_epi32
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DOT _mm256_dpbusd_epi32
#endif

/* Without DOT: 8-bit weights are |w|, and x gets the sign of w, so that two products of at most
 * 127 * 127 fit 16 bits; of 4-bit weights all 16 sums of products of at most 15 * 127 do. */
INLINE weights_part load_part(const uint8_t *w, const int bits) {
    const integers mask = _mm256_set1_epi8(15);
    weights_part v = {.low = _mm256_loadu_si256((const integers *)w)};
    if (bits == 4) {
        v.high = _mm256_and_si256(_mm256_srli_epi16(v.low, 4), mask);
        v.low = _mm256_and_si256(v.low, mask);
    }
#ifndef DOT
    if (bits == 8) {
        v.sign = _mm256_xor_si256(v.low, _mm256_set1_epi8((char)128));
        v.low = _mm256_abs_epi8(v.sign);
    }
#endif
    return v;
}

INLINE integers begin_dot(const row_group *x, const int bits) {
#ifdef DOT
    return _mm256_set1_epi32(x->offset);
#else
    return _mm256_setzero_si256();
#endif
}

INLINE integers add_part(integers d, weights_part v, const int8_t *x, const int bits) {
    const integers b = _mm256_set1_epi32(four_at(x));
#ifdef DOT
    d = DOT(d, v.low, b);
    return bits == 8 ? d : DOT(d, v.high, _mm256_set1_epi32(four_at(x + 16)));
#else
    if (bits == 8) {
        const integers pairs = _mm256_maddubs_epi16(v.low, _mm256_sign_epi8(b, v.sign));
        return _mm256_add_epi32(d, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    d = _mm256_add_epi16(d, _mm256_maddubs_epi16(v.low, b));
    return _mm256_add_epi16(d, _mm256_maddubs_epi16(v.high, _mm256_set1_epi32(four_at(x + 16))));
#endif
}

INLINE integers end_dot(integers d, const row_group *x, const int bits) {
#ifndef DOT
    if (bits == 4)
        return _mm256_add_epi32(_mm256_madd_epi16(d, _mm256_set1_epi16(1)),
                                _mm256_set1_epi32(x->offset));
#endif
    return d;
}

INLINE floats load_scales(const uint16_t *s) {
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)s)), 16);
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(scale, _mm256_set1_ps(x)), sum);
}

INLINE int32_t round_values(const float *x, float inverse, int8_t *to) {
    int32_t sum = 0;
    for (int i = 0; i < GROUP; i += 8) {
        int32_t rounded[8];
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse));
        _mm256_storeu_si256((integers *)rounded, _mm256_cvtps_epi32(scaled));
        for (int j = 0; j < 8; j++) to[i + j] = (int8_t)rounded[j], sum += rounded[j];
    }
    return sum;
}

#elif !defined(ARMD_PLAIN) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
enum { LANES = 4, ROWS = 8 };
typedef int32x4_t integers;
typedef float32x4_t floats;
typedef struct {
    int8x16_t low, high;
} weights_part;

INLINE weights_part load_part(const uint8_t *w, const int bits) {
    const uint8x16_t both = vld1q_u8(w);
    if (bits == 8)
        return (weights_part){.low = vreinterpretq_s8_u8(veorq_u8(both, vdupq_n_u8(128)))};
    return (weights_part){vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))),
                          vreinterpretq_s8_u8(vshrq_n_u8(both, 4))};
}

INLINE integers begin_dot(const row_group *x, const int bits) {
    return vdupq_n_s32(bits == 4 ? x->offset : 0);
}

INLINE integers add_part(integers d, weights_part v, const int8_t *x, const int bits) {
    d = vdotq_s32(d, v.low, vreinterpretq_s8_s32(vdupq_n_s32(four_at(x))));
    if (bits == 8) return d;
    return vdotq_s32(d, v.high, vreinterpretq_s8_s32(vdupq_n_s32(four_at(x + 16))));
}

INLINE integers end_dot(integers d, const row_group *x, const int bits) { return d; }

INLINE floats load_scales(const uint16_t *s) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(s), 16));
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return vfmaq_f32(sum, vcvtq_f32_s32(d), vmulq_n_f32(scale, x));
}

INLINE int32_t round_values(const float *x, float inverse, int8_t *to) {
    int32_t sum = 0;
    for (int i = 0; i < GROUP; i += 4) {
        const int32x4_t rounded = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
        for (int j = 0; j < 4; j++) to[i + j] = (int8_t)rounded[j], sum += rounded[j];
    }
    return sum;
}

#else /* the plain form */
enum { LANES = 1, ROWS = 4 };
typedef int32_t integers;
typedef float floats;
typedef struct {
    const uint8_t *four;
} weights_part;

INLINE weights_part load_part(const uint8_t *w, const int bits) { return (weights_part){w}; }

INLINE integers begin_dot(const row_group *x, const int bits) { return 0; }

INLINE integers add_part(integers d, weights_part v, const int8_t *x, const int bits) {
    for (int i = 0; i < 4 && bits == 8; i++) d += (v.four[i] - 128) * x[i];
    for (int i = 0; i < 4 && bits == 4; i++)
        d += ((v.four[i] & 15) - 8) * x[i] + ((v.four[i] >> 4) - 8) * x[16 + i];
    return d;
}

INLINE integers end_dot(integers d, const row_group *x, const int bits) { return d; }

INLINE floats load_scales(const uint16_t *s) {
    const uint32_t bits = (uint32_t)*s << 16;
    float scale;
    memcpy(&scale, &bits, 4);
    return scale;
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return fmaf((float)d, scale * x, sum);
}

INLINE int32_t round_values(const float *x, float inverse, int8_t *to) {
    int32_t sum = 0;
    for (int i = 0; i < GROUP; i++) sum += to[i] = (int8_t)lrintf(x[i] * inverse);
    return sum;
}
#endif
