/* One layer of a decoding pass on its few rows, from cache to cache: what torch would do in some
 * thirty operations, each with its own start and end, is here one parallel region.
 *
 * Attention goes over the cache in chunks of 32 slots, each read once, in order, for all rows and
 * heads; the chunks' sums are put together in the end. As in skinny.c nothing depends on the rows
 * beside a row, nor on the number of threads. */
#include "skinny.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 32 };
typedef int32_t ints __attribute__((vector_size(32), aligned(4)));

typedef struct {
    const float *attention_norm, *mlp_norm;
    matrix query, key_value, out, gate_up, down;
    long heads;
    float epsilon;
} layer;

typedef struct {
    float *keys, *values;     /* (batch, slots, heads, width) */
    const float *turn;        /* (batch, rows, width / 2, 2): cosines and sines */
    const long *slot, *limit; /* (batch, own): where keys go, or NULL: from `start` on;
                                 (batch, rows): how many slots a row sees, or NULL: `count` */
    long batch, rows, own, skip, slots, start, count;
} entry; /* the first `own` rows leave keys and values, those from `skip` on see them and go up */

static inline vec exponential(vec x) {
    const vec most = {88, 88, 88, 88, 88, 88, 88, 88}, zero = {0};
    const ints high = x > most, low = x < -87 + zero;
    x = (vec)(((ints)x & ~high & ~low) | ((ints)most & high) | ((ints)(-87 + zero) & low));
    const vec shifted = x * 1.44269504f + 12582912.0f; /* its low bits: x / ln 2, rounded */
    const vec n = shifted - 12582912.0f, r = x - n * 0.693359375f - n * -2.12194440e-4f;
    vec p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1;
    return (vec)((ints)p + ((ints)shifted << 23));
}

static inline float sum(vec x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

static void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out) {
    vec squares = {0};
    float rest = 0;
    long i = 0;
    for (; i + 8 <= width; i += 8) squares += *(vec *)(x + i) * *(vec *)(x + i);
    for (; i < width; i++) rest += x[i] * x[i];
    const float scale = 1 / sqrtf((sum(squares) + rest) / width + epsilon);
    for (i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
}

/* Turn each pair of channels of one row. */
static void turn_row(const float *x, const float *turn, long heads, long width, float *out) {
    for (long h = 0; h < heads; h++, x += width, out += width)
        for (long i = 0; i < width; i += 2) {
            const float a = x[i], b = x[i + 1], cosine = turn[i], sine = turn[i + 1];
            out[i] = a * cosine - b * sine;
            out[i + 1] = a * sine + b * cosine;
        }
}

/* Scores of one chunk of a text: keys as they come, each against all rows. The values will be wanted
 * next, so they are fetched meanwhile. */
static inline __attribute__((always_inline)) void
score(const float *query, const float *key, const float *value, long rows, long heads,
      const long width, long slots, float *scores) {
    const float scale = 1 / sqrtf(width);
    for (long s = 0; s < slots; s++)
        for (long h = 0; h < heads; h++, key += width, value += width) {
            for (long i = 0; i < width; i += 16) __builtin_prefetch(value + i);
            for (long r = 0; r < rows; r++) {
                const float *q = query + (r * heads + h) * width;
                vec dot = {0};
                for (long i = 0; i < width; i += 8) dot += *(vec *)(q + i) * *(vec *)(key + i);
                scores[(r * heads + h) * CHUNK + s] = sum(dot) * scale;
            }
        }
}

/* From one row's scores of one head: the largest, the sum of weights and of weighted values. */
static inline __attribute__((always_inline)) void
weigh(float *score, const float *value, long seen, long step, const long width, float *part) {
    float most = -INFINITY;
    for (long s = 0; s < seen; s++) most = fmaxf(most, score[s]);
    vec total = {0};
    for (long s = 0; s < CHUNK; s += 8) *(vec *)(score + s) = exponential(*(vec *)(score + s) - most);
    for (long s = seen; s < CHUNK; s++) score[s] = 0;
    for (long s = 0; s < CHUNK; s += 8) total += *(vec *)(score + s);
    for (long i = 0; i < width; i += 64) {
        vec out[8] = {{0}};
        const long blocks = width - i < 64 ? (width - i) / 8 : 8;
        for (long s = 0; s < seen; s++)
            for (long j = 0; j < blocks; j++)
                out[j] += score[s] * *(vec *)(value + s * step + i + j * 8);
        for (long j = 0; j < blocks; j++) *(vec *)(part + 2 + i + j * 8) = out[j];
    }
    part[0] = most;
    part[1] = sum(total);
}

/* Chunk c of text b, all its rows: `parts` (rows, heads, 2 + width). */
static inline __attribute__((always_inline)) void
attend(const entry *at, const float *query, long heads, const long width, long b, long c,
       float *scores, float *parts) {
    const long rows = at->rows - at->skip, step = heads * width, first = c * CHUNK;
    const long left = at->count - first, slots = left < CHUNK ? left : CHUNK;
    const float *key = at->keys + (b * at->slots + first) * step;
    const float *value = at->values + (b * at->slots + first) * step;
    score(query + b * rows * step, key, value, rows, heads, width, slots, scores);
    for (long h = 0; h < heads; h++)
        for (long r = 0; r < rows; r++) {
            const long limit = at->limit ? at->limit[b * at->rows + at->skip + r] : at->count;
            const long seen = limit - first < slots ? limit - first : slots;
            float *part = parts + (r * heads + h) * (2 + width);
            if (seen > 0)
                weigh(scores + (r * heads + h) * CHUNK, value + h * width, seen, step, width, part);
            else
                part[0] = -INFINITY;
        }
}

/* Put one row's chunks of one head together; they are `stride` apart. */
static void gather(const float *parts, long chunks, long stride, long width, float *out) {
    float most = -INFINITY, total = 0;
    for (long c = 0; c < chunks; c++) most = fmaxf(most, parts[c * stride]);
    memset(out, 0, sizeof(float) * width);
    for (long c = 0; c < chunks; c++, parts += stride) {
        if (parts[0] == -INFINITY) continue;
        const float share = expf(parts[0] - most);
        total += share * parts[1];
        for (long i = 0; i < width; i++) out[i] += share * parts[2 + i];
    }
    for (long i = 0; i < width; i++) out[i] /= total;
}

/* All rows see the cache; `seen` is (batch, rows, heads, width). */
static void share_attention(const entry *at, const float *query, long heads, long width,
                            float *scores, float *parts, float *seen) {
    const long chunks = (at->count + CHUNK - 1) / CHUNK, rows = at->rows - at->skip;
    const long part = rows * heads * (2 + width), score = rows * heads * CHUNK;
#pragma omp for schedule(static)
    for (long i = 0; i < at->batch * chunks; i++) {
        const long b = i / chunks, c = i % chunks;
        if (width == 64)
            attend(at, query, heads, 64, b, c, scores + i * score, parts + i * part);
        else
            attend(at, query, heads, width, b, c, scores + i * score, parts + i * part);
    }
#pragma omp for schedule(static)
    for (long i = 0; i < at->batch * rows * heads; i++) {
        const long b = i / (rows * heads), j = i % (rows * heads);
        gather(parts + b * chunks * part + j * (2 + width), chunks, part, width, seen + i * width);
    }
}

/* Keys and values of the rows that leave them, and turned queries in place. */
static void share_turns(const entry *at, float *query, const float *made, long heads, long width) {
    const long d = heads * width, rows = at->rows - at->skip;
#pragma omp for schedule(static)
    for (long i = 0; i < at->batch * (at->own + rows); i++) {
        const long b = i / (at->own + rows), j = i % (at->own + rows), n = b * at->own + j;
        if (j < at->own) {
            const long to = b * at->slots + (at->slot ? at->slot[n] : at->start + j);
            turn_row(made + n * 2 * d, at->turn + (b * at->rows + j) * width, heads, width,
                     at->keys + to * d);
            memcpy(at->values + to * d, made + (n * 2 + 1) * d, sizeof(float) * d);
        } else {
            const long r = j - at->own;
            float *row = query + (b * rows + r) * d;
            turn_row(row, at->turn + (b * at->rows + at->skip + r) * width, heads, width, row);
        }
    }
}

static void share_swiglu(const float *gate_up, long rows, long width, float *out) {
#pragma omp for schedule(static)
    for (long i = 0; i < rows * width; i += 8) {
        const float *gate = gate_up + i / width * 2 * width + i % width;
        const vec g = *(vec *)gate, u = *(vec *)(gate + width);
        *(vec *)(out + i) = g * u / (1 + exponential(-g));
    }
}

/* rows (batch, rows, d) -> out (batch, rows - skip, d). Widths of a head and of the feed-forward are
 * multiples of 8. -1 if there is no memory. */
int layer_pass(const layer *l, const entry *at, const float *rows, float *out) {
    const long d = l->query.depth, width = d / l->heads, ff = l->down.depth;
    const long up = at->rows - at->skip, all = at->batch * up, left = at->batch * at->own;
    const long chunks = (at->count + CHUNK - 1) / CHUNK, each = all * l->heads * chunks;
    float *space = malloc(sizeof(float) * (all * (3 * d + 3 * ff) + left * 3 * d +
                                           each * (CHUNK + 2 + width)));
    if (!space) return -1;
    float *normed = space, *query = normed + all * d, *seen = query + all * d;
    float *gate_up = seen + all * d, *hidden = gate_up + all * 2 * ff, *own = hidden + all * ff;
    float *made = own + left * d, *scores = made + left * 2 * d, *parts = scores + each * CHUNK;
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long i = 0; i < at->batch * at->rows; i++) {
            const long b = i / at->rows, j = i % at->rows, to = b * up + j - at->skip;
            if (j < at->own)
                rms_norm(rows + i * d, l->attention_norm, l->epsilon, d, own + (b * at->own + j) * d);
            if (j < at->skip) continue;
            rms_norm(rows + i * d, l->attention_norm, l->epsilon, d, normed + to * d);
            memcpy(out + to * d, rows + i * d, sizeof(float) * d);
        }
        share_product(&l->key_value, own, made, left, 0);
        share_product(&l->query, normed, query, all, 0);
#pragma omp barrier
        share_turns(at, query, made, l->heads, width);
        share_attention(at, query, l->heads, width, scores, parts, seen);
        share_product(&l->out, seen, out, all, 1);
#pragma omp barrier
#pragma omp for schedule(static)
        for (long i = 0; i < all; i++)
            rms_norm(out + i * d, l->mlp_norm, l->epsilon, d, normed + i * d);
        share_product(&l->gate_up, normed, gate_up, all, 0);
#pragma omp barrier
        share_swiglu(gate_up, all, ff, hidden);
        share_product(&l->down, hidden, out, all, 1);
    }
    free(space);
    return 0;
}
