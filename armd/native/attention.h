/* Attention of the few rows of a sequence over its KV cache, in chunks of 32 slots: keys and values
 * are read once, in order, for all rows and heads; the sums of the chunks are combined at the end.
 * The result of a row does not depend on the rows beside it. */
#include "gemm.h"
#include <math.h>
#include <string.h>

enum { CHUNK = 32, MAX_WIDTH = 256 }; /* MAX_WIDTH: of a head, where the cache is bf16 */
typedef int32_t ints __attribute__((vector_size(32), aligned(4)));
typedef uint16_t halves __attribute__((vector_size(16), aligned(2)));

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

INLINE vec larger(vec a, vec b) {
    const ints first = a > b;
    return (vec)(((ints)a & first) | ((ints)b & ~first));
}

/* e^x, to about float's precision; x is clamped to -87..88. */
INLINE vec exponential(vec x) {
    const vec zero = {0};
    x = -larger(-larger(x, zero - 87), zero - 88);
    const vec shifted = x * 1.44269504f + 12582912.0f; /* low bits: x / ln 2, rounded */
    const vec n = shifted - 12582912.0f, r = x - n * 0.693359375f - n * -2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return (vec)((ints)p + ((ints)shifted << 23));
}

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

/* The rows of one sequence in one layer. Each group of heads / kv_heads query heads shares the keys and
 * values of one head of the cache. */
typedef struct {
    const float *query;        /* (rows, heads, width) */
    const void *keys, *values; /* (length, kv_heads, width), float or bf16 */
    long rows, heads, kv_heads, length;
    const long *visible;     /* (rows): how many slots each row attends to */
    const float *right_bias; /* (heads): added to scores of keys to the right of the row; or NULL */
    const long *row_at;      /* (rows): RoPE position of each row; needed for right_bias alone */
    const long *position;    /* token k is at RoPE position position[k] + 1 ... */
    long bos_slots;          /* ... and in slot k + bos_slots; BOS, at position 0, is before them */
} attention_input;

/* Scores of one chunk of a cache, (rows, heads, CHUNK): eight keys at a time against all rows and all
 * heads of their group. The values are needed next, so they are prefetched here. */
INLINE void score(const attention_input *a, const char *keys, const char *values, const long width,
                  const int bf16, long slots, float *scores) {
    float wide[8 * MAX_WIDTH];
    const long size = bf16 ? sizeof(uint16_t) : sizeof(float);
    const float scale = 1 / sqrtf(width), *query = a->query;
    const long rows = a->rows, heads = a->heads, kv_heads = a->kv_heads, group = heads / kv_heads;
    for (long s = 0; s < slots; s += 8)
        for (long h = 0; h < kv_heads; h++) {
            const float *key[8]; /* past the last slot: the last slot again */
            for (long j = 0; j < 8; j++) {
                const long at = ((s + j < slots ? s + j : slots - 1) * kv_heads + h) * width * size;
                if (bf16)
                    widen_bf16((const uint16_t *)(keys + at), width, wide + j * width);
                key[j] = bf16 ? wide + j * width : (const float *)(keys + at);
                for (long i = 0; i < width * size; i += 64) __builtin_prefetch(values + at + i);
            }
            for (long r = 0; r < rows; r++)
                for (long g = 0; g < group; g++) {
                    const long cell = r * heads + h * group + g;
                    const float *q = query + cell * width;
                    vec dot[8] = {{0}};
                    for (long i = 0; i < width; i += 8)
                        for (long j = 0; j < 8; j++)
                            dot[j] += *(vec *)(q + i) * *(vec *)(key[j] + i);
                    *(vec *)(scores + cell * CHUNK + s) = sums(dot) * scale;
                }
        }
}

/* Add right_bias to the scores of all keys whose RoPE position is greater than the row's. */
static void add_right_bias(const attention_input *a, long first, long slots, float *scores) {
    for (long r = 0; r < a->rows; r++) {
        float right[CHUNK] = {0};
        int any = 0;
        for (long s = 0; s < slots; s++) {
            const long token = first + s - a->bos_slots;
            if (token >= 0 && a->position[token] + 1 > a->row_at[r]) right[s] = 1, any = 1;
        }
        for (long h = 0; h < a->heads && any; h++) {
            float *row = scores + (r * a->heads + h) * CHUNK;
            for (long s = 0; s < slots; s++) row[s] += right[s] * a->right_bias[h];
        }
    }
}

/* For one row and head: the largest score, the sum of weights, and the sum of weighted values. */
INLINE void weigh(float *score, const float *value, long visible, long stride, const long width,
                  float *part) {
    for (long s = visible; s < CHUNK; s++) score[s] = -INFINITY;
    vec most = *(vec *)score, total = {0};
    for (long s = 8; s < CHUNK; s += 8) most = larger(most, *(vec *)(score + s));
    most = larger(most, SHUFFLE(most, most, 4, 5, 6, 7, 0, 1, 2, 3));
    most = larger(most, SHUFFLE(most, most, 2, 3, 0, 1, 6, 7, 4, 5));
    most = larger(most, SHUFFLE(most, most, 1, 0, 3, 2, 5, 4, 7, 6));
    for (long s = 0; s < CHUNK; s += 8)
        *(vec *)(score + s) = exponential(*(vec *)(score + s) - most);
    for (long s = visible; s < CHUNK; s++) score[s] = 0;
    for (long s = 0; s < CHUNK; s += 8) total += *(vec *)(score + s);
    for (long i = 0; i < width; i += 64) {
        vec out[8] = {{0}};
        const long blocks = width - i < 64 ? (width - i) / 8 : 8;
        for (long s = 0; s < visible; s++)
            for (long j = 0; j < blocks; j++)
                out[j] += score[s] * *(vec *)(value + s * stride + i + j * 8);
        for (long j = 0; j < blocks; j++) *(vec *)(part + 2 + i + j * 8) = out[j];
    }
    part[0] = most[0];
    part[1] = sum(total);
}

/* One chunk of a cache, from slot `first` on: (rows, heads, 2 + width) to `parts`. */
INLINE void attend(const attention_input *a, const long width, const int bf16, long first,
                   float *scores, float *parts) {
    const long heads = a->heads, group = heads / a->kv_heads, row = a->kv_heads * width;
    const long slots = a->length - first < CHUNK ? a->length - first : CHUNK;
    const long start = first * row * (bf16 ? sizeof(uint16_t) : sizeof(float));
    const char *keys = (const char *)a->keys + start, *values = (const char *)a->values + start;
    const long stride = bf16 ? width : row;
    float wide[CHUNK * MAX_WIDTH];
    score(a, keys, values, width, bf16, slots, scores);
    if (a->right_bias) add_right_bias(a, first, slots, scores);
    for (long h = 0; h < a->kv_heads; h++) {
        const float *value = bf16 ? wide : (const float *)values + h * width;
        for (long s = 0; s < slots && bf16; s++)
            widen_bf16((const uint16_t *)values + s * row + h * width, width, wide + s * width);
        for (long r = 0; r < a->rows; r++)
            for (long g = 0; g < group; g++) {
                const long left = a->visible[r] - first, cell = r * heads + h * group + g;
                float *part = parts + cell * (2 + width);
                part[0] = -INFINITY;
                if (left > 0)
                    weigh(scores + cell * CHUNK, value, left < slots ? left : slots, stride, width,
                          part);
            }
    }
}

/* The same for a cache of floats or of bf16, with the usual widths as constants, so that the compiler
 * keeps sums in registers. */
static void attend_chunk(const attention_input *a, long width, int bf16, long first, float *scores,
                         float *parts) {
    if (width == 64 && bf16)
        attend(a, 64, 1, first, scores, parts);
    else if (width == 64)
        attend(a, 64, 0, first, scores, parts);
    else if (width == 32 && !bf16)
        attend(a, 32, 0, first, scores, parts);
    else if (bf16)
        attend(a, width, 1, first, scores, parts);
    else
        attend(a, width, 0, first, scores, parts);
}

/* Combine the chunks of one row and head; they are `stride` floats apart. */
static void combine(const float *parts, long chunks, long stride, long width, float *out) {
    float most = -INFINITY, total = 0;
    for (long c = 0; c < chunks; c++)
        most = parts[c * stride] > most ? parts[c * stride] : most;
    memset(out, 0, sizeof(float) * width);
    for (long c = 0; c < chunks; c++, parts += stride) {
        if (parts[0] == -INFINITY) continue;
        const float share = expf(parts[0] - most);
        total += share * parts[1];
        for (long i = 0; i < width; i++) out[i] += share * parts[2 + i];
    }
    for (long i = 0; i < width; i++) out[i] /= total;
}
