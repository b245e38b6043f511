/* Attention of the few rows of a sequence over its KV cache, in chunks of 64 slots: keys and values
 * are read once, in order, for all rows and heads; the sums of the chunks are combined at the end.
 * The result of a row does not depend on the rows beside it. */
#include "vectors.h"

enum { CHUNK = 64, QUERIES = 4 };              /* slots of a chunk; queries that share values */
enum { MAX_WIDTH = 256, MAX_PAIRED = 128 };    /* of a head: where the cache is bf16; for two_dots */
enum { MAX_ROWS = 32 };                        /* that attend together */

/* The rows of one sequence in one layer. Each group of heads / kv_heads query heads shares the keys and
 * values of one head of the cache. */
typedef struct {
    const float *query;        /* (rows, heads, width) */
    const float *turned;       /* the same, moved to the right by right_offset once; or NULL */
    const void *keys, *values; /* (length, kv_heads, width), float or bf16 */
    long rows, heads, kv_heads, length;
    const long *visible;     /* (rows): how many slots each row attends to */
    const float *right_bias; /* (heads): added to scores of keys to the right of the row; or NULL */
    long right_offset;       /* how far such keys are moved to the left, or 0 */
    const float *rope;       /* of all positions, (positions, width); needed for right_offset alone */
    const long *row_at;      /* (rows): RoPE position of each row; needed for both of these */
    const long *position;    /* token k is at RoPE position position[k] + 1 ... */
    long bos_slots;          /* ... and in slot k + bos_slots; BOS, at position 0, is before them */
} attention_input;

/* Rotate each pair of channels of one row. */
static void apply_rope(const float *x, const float *rope, long heads, long width, float *out) {
    for (long h = 0; h < heads; h++, x += width, out += width)
        for (long i = 0; i < width; i += 2) {
            const float a = x[i], b = x[i + 1], cosine = rope[i], sine = rope[i + 1];
            out[i] = a * cosine - b * sine;
            out[i + 1] = a * sine + b * cosine;
        }
}

/* Scores of eight keys against one query; with 512-bit vectors against two, which share the keys. */
INLINE void dots(const float *q, const float *const key[8], const long width, float scale,
                 float *scores) {
    vec dot[8] = {{0}};
    for (long i = 0; i < width; i += 8)
        for (long j = 0; j < 8; j++) dot[j] += *(vec *)(q + i) * *(vec *)(key[j] + i);
    *(vec *)scores = sums(dot) * scale;
}

#ifdef __AVX512DQ__
INLINE void pair_keys(const float *const key[8], const long width, float *pairs) {
    for (long i = 0; i < width; i += 8)
        for (long j = 0; j < 4; j++, pairs += 16)
            *(wide_vec *)pairs = (wide_vec)_mm512_insertf32x8(
                _mm512_castps256_ps512(_mm256_loadu_ps(key[j] + i)),
                _mm256_loadu_ps(key[j + 4] + i), 1);
}

INLINE void two_dots(const float *q, const float *r, const float *pairs, const long width,
                     float scale, float *scores, float *others) {
    wide_vec dot[4] = {{0}}, other[4] = {{0}};
    for (long i = 0; i < width; i += 8, pairs += 64) {
        const wide_vec a = twice(q + i), b = twice(r + i);
        for (long j = 0; j < 4; j++) {
            const wide_vec keys = *(wide_vec *)(pairs + j * 16);
            dot[j] += a * keys, other[j] += b * keys;
        }
    }
    *(vec *)scores = wide_sums(dot) * scale, *(vec *)others = wide_sums(other) * scale;
}
#else
INLINE void pair_keys(const float *const key[8], const long width, float *pairs) {}
#endif

/* Scores of eight keys, and the same as pairs if `paired`, against two queries. */
INLINE void both_dots(const float *q, const float *r, const float *const key[8], const float *pairs,
                      const long width, const int paired, float scale, float *scores,
                      float *others) {
#ifdef __AVX512DQ__
    if (paired) {
        two_dots(q, r, pairs, width, scale, scores, others);
        return;
    }
#endif
    dots(q, key, width, scale, scores);
    dots(r, key, width, scale, others);
}

/* Keys of a chunk to the right of each row. */
enum { NONE, SOME, ALL }; /* of eight keys, those that are moved once */
typedef struct {
    int32_t times[MAX_ROWS][CHUNK]; /* how often a key is moved to the left until it is before a row */
    int32_t most[MAX_ROWS];         /* the largest of them */
    char once[MAX_ROWS][CHUNK / 8];
} moves;

static void count_moves(const attention_input *a, long first, long slots, moves *m) {
    const long offset = a->right_offset;
    for (long r = 0; r < a->rows; r++) {
        int32_t *times = m->times[r];
        m->most[r] = 0;
        for (long s = 0; s < CHUNK; s++) {
            const long token = s < slots ? first + s - a->bos_slots : -1;
            const long right = token < 0 ? 0 : a->position[token] + 1 - a->row_at[r];
            times[s] = right <= 0 ? 0 : !offset || right <= offset ? 1 : (right - 1) / offset + 1;
            m->most[r] = times[s] > m->most[r] ? times[s] : m->most[r];
        }
        for (long s = 0; s < slots; s += 8) {
            const long count = slots - s < 8 ? slots - s : 8;
            long once = 0;
            for (long j = 0; j < count && a->turned; j++) once += times[s + j] == 1;
            m->once[r][s / 8] = once == count ? ALL : once ? SOME : NONE;
        }
    }
}

/* Of eight scores, those of the turned query for keys that are moved once. */
INLINE void take_turned(const int32_t *times, const float *turned, float *scores) {
    const ints once = *(const ints *)times == 1;
    *(vec *)scores = (vec)(((ints) * (vec *)turned & once) | ((ints) * (vec *)scores & ~once));
}

/* Lines from .. upto of eight rows of a head of the cache, `row` bytes apart: of the values that are
 * needed next, and of the keys of 16 slots further. */
INLINE void fetch_lines(const char *keys, const char *values, long row, const long lines, long from,
                        long upto) {
    for (long i = from; i < upto; i++) {
        const long at = i / lines * row + i % lines * 64;
        __builtin_prefetch(values + at, 0, 2);
        __builtin_prefetch(keys + 16 * row + at, 0, 2);
    }
}

/* Scores of one chunk of a cache, (rows, heads, CHUNK): eight keys at a time against all rows and all
 * heads of their group. What is needed next is prefetched here, a few lines with each pair of queries:
 * all at once they would have to wait for each other, and arithmetic for them. */
INLINE void score(const attention_input *a, const char *keys, const char *values, const long width,
                  const int bf16, long slots, const moves *m, float *scores) {
    float wide[8 * MAX_WIDTH] ALIGNED;
    const long size = bf16 ? sizeof(uint16_t) : sizeof(float), lines = (width * size + 63) / 64;
    const float scale = 1 / sqrtf(width);
    const long rows = a->rows, heads = a->heads, kv_heads = a->kv_heads, group = heads / kv_heads;
    const long row = kv_heads * width * size, queries = rows * group;
    const int paired = queries > 1 && width <= MAX_PAIRED;
    for (long s = 0; s < slots; s += 8)
        for (long h = 0; h < kv_heads; h++) {
            const long start = s * row + h * width * size;
            const float *key[8]; /* past the last slot: the last slot again */
            for (long j = 0; j < 8; j++) {
                const long at = start + (s + j < slots ? j : slots - 1 - s) * row;
                if (bf16)
                    widen_bf16((const uint16_t *)(keys + at), width, wide + j * width);
                key[j] = bf16 ? wide + j * width : (const float *)(keys + at);
            }
            float pairs[8 * MAX_PAIRED] ALIGNED, turned[8];
            if (paired) pair_keys(key, width, pairs);
            const float *waits = NULL; /* a query without another one */
            float *waits_for = NULL;
            for (long n = 0; n < queries; n++) {
                const long cell = n / group * heads + h * group + n % group;
                const int once = m ? m->once[n / group][s / 8] : NONE;
                const float *query = (once == ALL ? a->turned : a->query) + cell * width;
                float *to = scores + cell * CHUNK + s;
                fetch_lines(keys + start, values + start, row, lines, n * 8 * lines / queries,
                            (n + 1) * 8 * lines / queries);
                if (once == SOME) {
                    both_dots(query, a->turned + cell * width, key, pairs, width, paired, scale, to,
                              turned);
                    take_turned(m->times[n / group] + s, turned, to);
                } else if (waits) {
                    both_dots(waits, query, key, pairs, width, paired, scale, waits_for, to);
                    waits = NULL;
                } else
                    waits = query, waits_for = to;
            }
            if (waits) dots(waits, key, width, scale, waits_for);
        }
}

/* Scores of the keys that are moved `move` times, more than once, of one row and head: RoPE knows
 * distances alone, so the row is moved to the right instead. */
INLINE void score_moved(const attention_input *a, const float *query, const char *keys, long head,
                        const long width, const int bf16, long slots, long move,
                        const int32_t *times, float *scores) {
    float turned[MAX_WIDTH] ALIGNED, wide[8 * MAX_WIDTH] ALIGNED, found[8] ALIGNED;
    const long size = bf16 ? sizeof(uint16_t) : sizeof(float);
    apply_rope(query, a->rope + move * a->right_offset * width, 1, width, turned);
    for (long s = 0; s < slots; s += 8) {
        const float *key[8];
        int any = 0;
        for (long j = 0; j < 8 && s + j < slots; j++) any |= times[s + j] == move;
        if (!any) continue;
        for (long j = 0; j < 8; j++) {
            const long slot = s + j < slots ? s + j : slots - 1;
            const char *at = keys + (slot * a->kv_heads + head) * width * size;
            if (bf16) widen_bf16((const uint16_t *)at, width, wide + j * width);
            key[j] = bf16 ? wide + j * width : (const float *)at;
        }
        dots(turned, key, width, 1 / sqrtf(width), found);
        for (long j = 0; j < 8 && s + j < slots; j++)
            if (times[s + j] == move) scores[s + j] = found[j];
    }
}

/* Mend the scores of keys whose RoPE position is greater than the row's: those that are moved more than
 * once, and with the bias all. */
INLINE void score_right(const attention_input *a, const char *keys, const long width, const int bf16,
                        long slots, const moves *m, float *scores) {
    const long group = a->heads / a->kv_heads;
    for (long r = 0; r < a->rows; r++)
        for (long h = 0; h < a->heads && m->most[r]; h++) {
            const long cell = r * a->heads + h;
            float *row = scores + cell * CHUNK;
            for (long move = 2; move <= m->most[r]; move++)
                score_moved(a, a->query + cell * width, keys, h / group, width, bf16, slots, move,
                            m->times[r], row);
            for (long s = 0; s < slots && a->right_bias; s++)
                if (m->times[r][s]) row[s] += a->right_bias[h];
        }
}

/* For one row and head: scores become weights; the largest score and the sum of weights to `part`. */
INLINE void weigh(float *score, long visible, float *part) {
    for (long s = visible; s < CHUNK; s++) score[s] = -INFINITY;
    vec most = *(vec *)score, total = {0};
    for (long s = 8; s < CHUNK; s += 8) most = larger(most, *(vec *)(score + s));
    most = larger(most, SHUFFLE(most, most, 4, 5, 6, 7, 0, 1, 2, 3));
    most = larger(most, SHUFFLE(most, most, 2, 3, 0, 1, 6, 7, 4, 5));
    most = larger(most, SHUFFLE(most, most, 1, 0, 3, 2, 5, 4, 7, 6));
    for (long s = 0; s < CHUNK; s += WIDE)
        *(wide_vec *)(score + s) = wide_exponential(*(wide_vec *)(score + s) - most[0]);
    for (long s = visible; s < CHUNK; s++) score[s] = 0;
    for (long s = 0; s < CHUNK; s += 8) total += *(vec *)(score + s);
    part[0] = most[0];
    part[1] = sum(total);
}

/* Weighted values of one head, summed up for some queries that see equally many. */
INLINE void add_values(const float *const *weight, float *const *part, const float *value,
                       long visible, long stride, const long width, const int queries) {
    long i = 0;
    for (; i + WIDE <= width; i += 4 * WIDE) {
        wide_vec out[QUERIES][4] = {{{0}}};
        const long blocks = width - i < 4 * WIDE ? (width - i) / WIDE : 4;
        for (long s = 0; s < visible; s++)
#pragma GCC unroll 4
            for (int j = 0; j < blocks; j++) {
                const wide_vec v = *(wide_vec *)(value + s * stride + i + j * WIDE);
#pragma GCC unroll 4
                for (int n = 0; n < queries; n++) out[n][j] += weight[n][s] * v;
            }
        for (int n = 0; n < queries; n++)
            for (int j = 0; j < blocks; j++) *(wide_vec *)(part[n] + 2 + i + j * WIDE) = out[n][j];
    }
    for (i = width / WIDE * WIDE; i < width; i += 8) /* half a vector is left, where WIDE is 16 */
        for (int n = 0; n < queries; n++) {
            vec out = {0};
            for (long s = 0; s < visible; s++)
                out += weight[n][s] * *(vec *)(value + s * stride + i);
            *(vec *)(part[n] + 2 + i) = out;
        }
}

/* One chunk of a cache, from slot `first` on: (rows, heads, 2 + width) to `parts`. */
INLINE void attend(const attention_input *a, const long width, const int bf16, long first,
                   float *scores, float *parts) {
    const long heads = a->heads, group = heads / a->kv_heads, row = a->kv_heads * width;
    const long slots = a->length - first < CHUNK ? a->length - first : CHUNK;
    const long start = first * row * (bf16 ? sizeof(uint16_t) : sizeof(float));
    const char *keys = (const char *)a->keys + start, *values = (const char *)a->values + start;
    const long stride = bf16 ? width : row;
    float wide[CHUNK * MAX_WIDTH] ALIGNED;
    moves right;
    const int moved = a->right_bias || a->right_offset;
    if (moved) count_moves(a, first, slots, &right);
    score(a, keys, values, width, bf16, slots, moved ? &right : NULL, scores);
    if (moved) score_right(a, keys, width, bf16, slots, &right, scores);
    for (long h = 0; h < a->kv_heads; h++) {
        const float *value = bf16 ? wide : (const float *)values + h * width;
        for (long s = 0; s < slots && bf16; s++)
            widen_bf16((const uint16_t *)values + s * row + h * width, width, wide + s * width);
        const float *weight[QUERIES];
        float *part[QUERIES];
        long seen = 0;
        int n = 0; /* queries that wait for the values: of equally many slots, `seen` */
        for (long i = 0; i <= a->rows * group; i++) {
            const long left = i < a->rows * group ? a->visible[i / group] - first : -1;
            const long now = left < slots ? left : slots;
            if (n == QUERIES || (n && now != seen)) {
                if (n == QUERIES)
                    add_values(weight, part, value, seen, stride, width, QUERIES);
                else
                    for (int j = 0; j < n; j++)
                        add_values(weight + j, part + j, value, seen, stride, width, 1);
                n = 0;
            }
            if (i == a->rows * group) break;
            const long cell = i / group * heads + h * group + i % group;
            float *to = parts + cell * (2 + width);
            to[0] = -INFINITY;
            if (left <= 0) continue;
            weigh(scores + cell * CHUNK, now, to);
            weight[n] = scores + cell * CHUNK, part[n++] = to, seen = now;
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
