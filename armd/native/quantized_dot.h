/* The integer part of a quantised product, for the vectors that the machine has: 4 x 8 bits of weights
 * in each 32-bit lane against 32 bytes of a row. All forms give the same integers. ARMD_PLAIN asks for
 * the plain form, which is the reference.
 *
 * A group of a panel is 8 vectors of [16 outputs][4 inputs]; Q8 weights are stored as value + 128, Q4
 * weights as value + 8, two in a byte: inputs 4i .. 4i + 3 low, inputs 16 + 4i .. 16 + 4i + 3 high. */
#pragma once
#include "gemm.h"
#include <math.h>
#include <string.h>

#if !defined(ARMD_PLAIN) && defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
enum { LANES = 16, ROWS = 8 };
typedef __m512i integers;
typedef __m512 floats;

INLINE void load_group(const uint8_t *w, const int bits, integers v[8]) {
    const integers low = _mm512_set1_epi8(15);
    for (int i = 0; i < 8 && bits == 8; i++) v[i] = _mm512_loadu_si512(w + i * 64);
    for (int i = 0; i < 4 && bits == 4; i++) {
        const integers both = _mm512_loadu_si512(w + i * 64);
        v[i] = _mm512_and_si512(both, low);
        v[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
}

INLINE integers group_dot(const integers v[8], const row_group *x, const int bits) {
    integers d = _mm512_set1_epi32(x->offset);
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x->value + 4 * i, 4);
        d = _mm512_dpbusd_epi32(d, v[i], _mm512_set1_epi32(four));
    }
    return d;
}

INLINE floats load_scales(const uint16_t *s) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)s));
    return (floats)_mm512_slli_epi32(wide, 16);
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale, _mm512_set1_ps(x)), sum);
}

INLINE void round_values(const float *x, float inverse, int8_t *to) {
    for (int i = 0; i < GROUP; i += 16) {
        const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse));
        _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(scaled)));
    }
}

#elif !defined(ARMD_PLAIN) && defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8, ROWS = 4 };
typedef __m256i integers;
typedef __m256 floats;

INLINE void load_group(const uint8_t *w, const int bits, integers v[8]) {
    const integers low = _mm256_set1_epi8(15);
    for (int i = 0; i < 8 && bits == 8; i++) v[i] = _mm256_loadu_si256((const integers *)(w + i * 64));
    for (int i = 0; i < 4 && bits == 4; i++) {
        const integers both = _mm256_loadu_si256((const integers *)(w + i * 64));
        v[i] = _mm256_and_si256(both, low);
        v[i + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
}

INLINE integers group_dot(const integers v[8], const row_group *x, const int bits) {
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
#ifdef __AVXVNNI__
#define DOT _mm256_dpbusd_avx_epi32
#else
#define DOT _mm256_dpbusd_epi32
#endif
    integers d = _mm256_set1_epi32(x->offset);
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x->value + 4 * i, 4);
        d = DOT(d, v[i], _mm256_set1_epi32(four));
    }
    return d;
#else
    const integers one = _mm256_set1_epi16(1), middle = _mm256_set1_epi8((char)128);
    integers pairs = _mm256_setzero_si256(), d = _mm256_set1_epi32(bits == 4 ? x->offset : 0);
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x->value + 4 * i, 4);
        const integers b = _mm256_set1_epi32(four);
        if (bits == 4) { /* 8 sums of two products of at most 15 * 127 fit 16 bits */
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(v[i], b));
            continue;
        }
        /* |w| times x with the sign of w: two products of at most 127 * 127 fit 16 bits */
        const integers w = _mm256_xor_si256(v[i], middle);
        pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(b, w));
        d = _mm256_add_epi32(d, _mm256_madd_epi16(pairs, one));
    }
    return bits == 4 ? _mm256_add_epi32(d, _mm256_madd_epi16(pairs, one)) : d;
#endif
}

INLINE floats load_scales(const uint16_t *s) {
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)s)), 16);
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(d), _mm256_mul_ps(scale, _mm256_set1_ps(x)), sum);
}

INLINE void round_values(const float *x, float inverse, int8_t *to) {
    for (int i = 0; i < GROUP; i += 8) {
        int32_t rounded[8];
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse));
        _mm256_storeu_si256((integers *)rounded, _mm256_cvtps_epi32(scaled));
        for (int j = 0; j < 8; j++) to[i + j] = (int8_t)rounded[j];
    }
}

#elif !defined(ARMD_PLAIN) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
enum { LANES = 4, ROWS = 8 };
typedef int8x16_t integers;
typedef float32x4_t floats;

INLINE void load_group(const uint8_t *w, const int bits, integers v[8]) {
    const uint8x16_t low = vdupq_n_u8(15), middle = vdupq_n_u8(128);
    for (int i = 0; i < 8 && bits == 8; i++)
        v[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + i * 64), middle));
    for (int i = 0; i < 4 && bits == 4; i++) {
        const uint8x16_t both = vld1q_u8(w + i * 64);
        v[i] = vreinterpretq_s8_u8(vandq_u8(both, low));
        v[i + 4] = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
    }
}

INLINE integers group_dot(const integers v[8], const row_group *x, const int bits) {
    int32x4_t d = vdupq_n_s32(bits == 4 ? x->offset : 0);
    for (int i = 0; i < 8; i++) {
        int32_t four;
        memcpy(&four, x->value + 4 * i, 4);
        d = vdotq_s32(d, v[i], vreinterpretq_s8_s32(vdupq_n_s32(four)));
    }
    return vreinterpretq_s8_s32(d);
}

INLINE floats load_scales(const uint16_t *s) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(s), 16));
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return vfmaq_f32(sum, vcvtq_f32_s32(vreinterpretq_s32_s8(d)), vmulq_n_f32(scale, x));
}

INLINE void round_values(const float *x, float inverse, int8_t *to) {
    for (int i = 0; i < GROUP; i += 4) {
        const int32x4_t rounded = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
        for (int j = 0; j < 4; j++) to[i + j] = (int8_t)rounded[j];
    }
}

#else /* the plain form */
enum { LANES = 1, ROWS = 4 };
typedef struct {
    int32_t four[4];
} integers;
typedef float floats;

INLINE void load_group(const uint8_t *w, const int bits, integers v[8]) {
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 4; j++)
            v[i].four[j] = bits == 8 ? w[i * 64 + j] - 128
                                     : (w[i % 4 * 64 + j] >> (i < 4 ? 0 : 4) & 15) - 8;
}

INLINE integers group_dot(const integers v[8], const row_group *x, const int bits) {
    integers d = {{0}};
    (void)bits;
    for (int i = 0; i < 32; i++) d.four[0] += v[i / 4].four[i % 4] * x->value[i];
    return d;
}

INLINE floats load_scales(const uint16_t *s) {
    const uint32_t bits = (uint32_t)*s << 16;
    float scale;
    memcpy(&scale, &bits, 4);
    return scale;
}

INLINE floats add_scaled(floats sum, integers d, floats scale, float x) {
    return fmaf((float)d.four[0], scale * x, sum);
}

INLINE void round_values(const float *x, float inverse, int8_t *to) {
    for (int i = 0; i < GROUP; i++) to[i] = (int8_t)lrintf(x[i] * inverse);
}
#endif
