/* The layers of a decoding pass on its few rows, from cache to cache: what torch would do in some
 * thirty operations a layer, each with its own start and end, is here one parallel region. A row's
 * result depends neither on the rows beside it nor on the number of threads. */
#include "layer.h"
#include "attention.h"
#include <stdlib.h>

typedef struct {
    const text *texts;
    long rows, kept, up, chunks, cells; /* of all texts: rows, those that leave keys, that go up */
    long index;                         /* of the layer */
    int last;                           /* those that leave keys go no further */
    long heads, width;
    long *of_row, *of_chunk; /* whose a row is, and a chunk */
} plan;

static long chunks_of(const text *t) { return (t->count + CHUNK - 1) / CHUNK; }

/* -1 if there is no memory. */
static int make(plan *all, text *texts, long count) {
    all->texts = texts;
    for (text *t = texts; t < texts + count; t++) {
        t->row = all->rows, t->kept = all->kept, t->up = all->up, t->chunk = all->chunks;
        t->cell = all->cells;
        const long up = t->rows - (all->last ? t->own : 0);
        all->rows += t->rows, all->kept += t->own, all->up += up, all->chunks += chunks_of(t);
        all->cells += up * all->heads * chunks_of(t);
    }
    all->of_row = malloc(sizeof(long) * (all->rows + all->chunks));
    if (!all->of_row) return -1;
    all->of_chunk = all->of_row + all->rows;
    for (long t = 0; t < count; t++) {
        for (long i = 0; i < texts[t].rows; i++) all->of_row[texts[t].row + i] = t;
        for (long i = 0; i < chunks_of(&texts[t]); i++) all->of_chunk[texts[t].chunk + i] = t;
    }
    return 0;
}

void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out) {
    vec squares = {0};
    for (long i = 0; i < width; i += 8) squares += *(vec *)(x + i) * *(vec *)(x + i);
    const float scale = 1 / sqrtf(sum(squares) / width + epsilon);
    for (long i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
}

/* Rows normed twice over, once for those that leave keys and once for those that go up, because a
 * product takes its rows side by side. What goes up is kept in `out`, for branches to be added. */
static void share_start(const plan *all, const layer *l, const float *rows, float *own, float *normed,
                        float *out) {
    const long d = l->query.depth;
#pragma omp for schedule(static)
    for (long i = 0; i < all->rows; i++) {
        const text *t = all->texts + all->of_row[i];
        const long j = i - t->row, to = t->up + j - (all->last ? t->own : 0);
        const float *row = rows + i * d;
        if (j < t->own) rms_norm(row, l->attention_norm, l->epsilon, d, own + (t->kept + j) * d);
        if (all->last && j < t->own) continue;
        rms_norm(row, l->attention_norm, l->epsilon, d, normed + to * d);
        memcpy(out + to * d, row, sizeof(float) * d);
    }
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

/* Keys and values go into the cache; queries are turned where they are. */
static void share_turns(const plan *all, const float *turn, const float *made, float *query) {
    const long heads = all->heads, width = all->width, d = heads * width;
#pragma omp for schedule(static)
    for (long i = 0; i < all->rows; i++) {
        const text *t = all->texts + all->of_row[i];
        const long j = i - t->row, skip = all->last ? t->own : 0;
        if (j < t->own) {
            const long to = t->slot ? t->slot[j] : t->start + j;
            const float *row = made + (t->kept + j) * 2 * d;
            turn_row(row, turn + i * width, heads, width, t->keys[all->index] + to * d);
            memcpy(t->values[all->index] + to * d, row + d, sizeof(float) * d);
        }
        if (j >= skip) {
            float *row = query + (t->up + j - skip) * d;
            turn_row(row, turn + i * width, heads, width, row);
        }
    }
}

static void share_attention(const plan *all, const float *query, float *scores, float *parts,
                            float *seen) {
    const long heads = all->heads, width = all->width, d = heads * width, part = 2 + width;
#pragma omp for schedule(static)
    for (long i = 0; i < all->chunks; i++) {
        const text *t = all->texts + all->of_chunk[i];
        const long c = i - t->chunk, skip = all->last ? t->own : 0, rows = t->rows - skip;
        const long *limit = t->limit ? t->limit + skip : NULL, cell = t->cell + c * rows * heads;
        const float *q = query + t->up * d;
        const float *keys = t->keys[all->index], *values = t->values[all->index];
        float *to = parts + cell * part, *space = scores + cell * CHUNK;
        if (width == 64) /* known to the compiler, it stays in registers */
            attend(q, keys, values, rows, heads, 64, c * CHUNK, t->count, limit, space, to);
        else if (width == 32)
            attend(q, keys, values, rows, heads, 32, c * CHUNK, t->count, limit, space, to);
        else
            attend(q, keys, values, rows, heads, width, c * CHUNK, t->count, limit, space, to);
    }
#pragma omp for schedule(static)
    for (long i = 0; i < all->rows * heads; i++) {
        const text *t = all->texts + all->of_row[i / heads];
        const long skip = all->last ? t->own : 0, j = i / heads - t->row - skip;
        if (j < 0) continue;
        const long cell = j * heads + i % heads;
        gather(parts + (t->cell + cell) * part, chunks_of(t), (t->rows - skip) * heads * part, width,
               seen + (t->up * heads + cell) * width);
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

/* Where the stages of a layer leave what they make; every layer uses it again. */
typedef struct {
    float *own, *made, *normed, *query, *seen, *gate_up, *hidden, *scores, *parts;
} space;

static void cut(space *s, float *at, const plan *all, long d, long ff) {
    s->own = at, s->made = s->own + all->kept * d, s->normed = s->made + all->kept * 2 * d;
    s->query = s->normed + all->up * d, s->seen = s->query + all->up * d;
    s->gate_up = s->seen + all->up * d, s->hidden = s->gate_up + all->up * 2 * ff;
    s->scores = s->hidden + all->up * ff, s->parts = s->scores + all->cells * CHUNK;
}

static long size_of(const plan *all, long d, long ff) {
    return all->kept * 3 * d + all->up * (3 * d + 3 * ff) + all->cells * (CHUNK + 2 + all->width);
}

static void share_layer(const plan *all, const layer *l, const space *s, const float *rows,
                        const float *turn, float *out) {
    const long d = l->query.depth, ff = l->down.depth;
    share_start(all, l, rows, s->own, s->normed, out);
    share_product(&l->key_value, s->own, s->made, all->kept, 0);
    share_product(&l->query, s->normed, s->query, all->up, 0);
#pragma omp barrier
    share_turns(all, turn, s->made, s->query);
    share_attention(all, s->query, s->scores, s->parts, s->seen);
    share_product(&l->out, s->seen, out, all->up, 1);
#pragma omp barrier
#pragma omp for schedule(static)
    for (long i = 0; i < all->up; i++)
        rms_norm(out + i * d, l->mlp_norm, l->epsilon, d, s->normed + i * d);
    share_product(&l->gate_up, s->normed, s->gate_up, all->up, 0);
#pragma omp barrier
    share_swiglu(s->gate_up, all->up, ff, s->hidden);
    share_product(&l->down, s->hidden, out, all->up, 1);
#pragma omp barrier
}

/* Rows of all texts, one after the other, (rows, d), through `depth` layers of one shape; their turns
 * are (rows, width of a head / 2, 2). Into `out` go those that go up: all, or with `last` those that
 * leave no keys. The widths of a head and of the feed-forward are multiples of 8. -1 if there is no
 * memory. */
int layers_pass(const layer *layers, long depth, const text *texts, long count, int last,
                const float *rows, const float *turn, float *out) {
    const long d = layers->query.depth, ff = layers->down.depth;
    plan all = {.heads = layers->heads, .width = d / layers->heads}, end = all;
    end.last = last;
    text *inner = malloc(sizeof(text) * 2 * count), *outer = inner + count;
    if (!inner) return -1;
    memcpy(inner, texts, sizeof(text) * count);
    memcpy(outer, texts, sizeof(text) * count);
    float *memory = NULL;
    if (!make(&all, inner, count) && !make(&end, outer, count)) {
        const long passed = depth > 1 ? 2 * all.rows * d : 0; /* rows between two layers */
        memory = malloc(sizeof(float) * (size_of(depth > 1 ? &all : &end, d, ff) + passed));
    }
    if (memory) {
#pragma omp parallel
        {
            const float *from = rows;
            for (long i = 0; i < depth; i++) {
                plan now = i == depth - 1 ? end : all;
                space own;
                now.index = i;
                cut(&own, memory + (depth > 1 ? 2 * all.rows * d : 0), &now, d, ff);
                float *to = i == depth - 1 ? out : memory + i % 2 * all.rows * d;
                share_layer(&now, layers + i, &own, from, turn, to);
                from = to;
            }
        }
    }
    const int result = memory ? 0 : -1;
    free(memory);
    free(all.of_row);
    free(end.of_row);
    free(inner);
    return result;
}
