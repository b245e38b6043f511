/* The transformer layers of a forward pass over few rows. In torch a layer takes about thirty
 * operations, each with its own overhead; here all layers are one parallel region. The result of a
 * row depends neither on the rows beside it nor on the number of threads. */
#include "layer.h"
#include "attention.h"
#include <stdlib.h>

typedef struct {
    const sequence_rows *sequences;
    long rows, kv_rows, out_rows, chunks, cells; /* totals over all sequences */
    long index;                                  /* of the layer */
    int queries_only;                            /* rows that write keys leave no output */
    long heads, width;
    long *sequence_of_row, *sequence_of_chunk;
} plan;

static long chunks_of(const sequence_rows *s) { return (s->length + CHUNK - 1) / CHUNK; }

static long skipped(const plan *p, const sequence_rows *s) { return p->queries_only ? s->n_kv : 0; }

/* Set the offsets of all sequences. -1 if there is no memory. */
static int make_plan(plan *p, sequence_rows *sequences, long count) {
    p->sequences = sequences;
    for (sequence_rows *s = sequences; s < sequences + count; s++) {
        s->first_row = p->rows, s->first_kv = p->kv_rows, s->first_out = p->out_rows;
        s->first_chunk = p->chunks, s->first_cell = p->cells;
        const long out_rows = s->n_rows - skipped(p, s);
        p->rows += s->n_rows, p->kv_rows += s->n_kv, p->out_rows += out_rows;
        p->chunks += chunks_of(s), p->cells += out_rows * p->heads * chunks_of(s);
    }
    p->sequence_of_row = malloc(sizeof(long) * (p->rows + p->chunks));
    if (!p->sequence_of_row) return -1;
    p->sequence_of_chunk = p->sequence_of_row + p->rows;
    for (long i = 0; i < count; i++) {
        const sequence_rows *s = sequences + i;
        for (long j = 0; j < s->n_rows; j++) p->sequence_of_row[s->first_row + j] = i;
        for (long j = 0; j < chunks_of(s); j++) p->sequence_of_chunk[s->first_chunk + j] = i;
    }
    return 0;
}

void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out) {
    vec squares = {0};
    for (long i = 0; i < width; i += 8) squares += *(vec *)(x + i) * *(vec *)(x + i);
    const float scale = 1 / sqrtf(sum(squares) / width + epsilon);
    for (long i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
}

/* Normed rows are stored twice, once for keys and values and once for queries, because a product
 * takes contiguous rows. Output rows also go to `out` unnormed, as the residual. */
static void share_norm(const plan *p, const layer *l, const float *rows, float *kv_in, float *normed,
                       float *out) {
    const long d = l->query.depth;
#pragma omp for schedule(static)
    for (long i = 0; i < p->rows; i++) {
        const sequence_rows *s = p->sequences + p->sequence_of_row[i];
        const long j = i - s->first_row, to = s->first_out + j - skipped(p, s);
        const float *row = rows + i * d;
        if (j < s->n_kv)
            rms_norm(row, l->attention_norm, l->epsilon, d, kv_in + (s->first_kv + j) * d);
        if (j < skipped(p, s)) continue;
        rms_norm(row, l->attention_norm, l->epsilon, d, normed + to * d);
        memcpy(out + to * d, row, sizeof(float) * d);
    }
}

/* Rotate each pair of channels of one row. */
static void apply_rope(const float *x, const float *rope, long heads, long width, float *out) {
    for (long h = 0; h < heads; h++, x += width, out += width)
        for (long i = 0; i < width; i += 2) {
            const float a = x[i], b = x[i + 1], cosine = rope[i], sine = rope[i + 1];
            out[i] = a * cosine - b * sine;
            out[i + 1] = a * sine + b * cosine;
        }
}

/* RoPE: keys and values go to the cache; queries are rotated in place. */
static void share_rope(const plan *p, const float *rope, const float *kv, float *query) {
    const long heads = p->heads, width = p->width, d = heads * width;
#pragma omp for schedule(static)
    for (long i = 0; i < p->rows; i++) {
        const sequence_rows *s = p->sequences + p->sequence_of_row[i];
        const long j = i - s->first_row, skip = skipped(p, s);
        if (j < s->n_kv) {
            const long slot = s->slot_mapping ? s->slot_mapping[j] : s->start + j;
            const float *row = kv + (s->first_kv + j) * 2 * d;
            apply_rope(row, rope + i * width, heads, width, s->keys[p->index] + slot * d);
            memcpy(s->values[p->index] + slot * d, row + d, sizeof(float) * d);
        }
        if (j >= skip) {
            float *row = query + (s->first_out + j - skip) * d;
            apply_rope(row, rope + i * width, heads, width, row);
        }
    }
}

static void share_attention(const plan *p, const float *query, float *scores, float *parts,
                            float *attended) {
    const long heads = p->heads, width = p->width, d = heads * width, part = 2 + width;
#pragma omp for schedule(static)
    for (long i = 0; i < p->chunks; i++) {
        const sequence_rows *s = p->sequences + p->sequence_of_chunk[i];
        const long c = i - s->first_chunk, skip = skipped(p, s), rows = s->n_rows - skip;
        const long *visible = s->visible ? s->visible + skip : NULL;
        const long cell = s->first_cell + c * rows * heads;
        const float *q = query + s->first_out * d;
        const float *keys = s->keys[p->index], *values = s->values[p->index];
        float *to = parts + cell * part, *space = scores + cell * CHUNK;
        if (width == 64) /* a constant, so that the compiler keeps sums in registers */
            attend(q, keys, values, rows, heads, 64, c * CHUNK, s->length, visible, space, to);
        else if (width == 32)
            attend(q, keys, values, rows, heads, 32, c * CHUNK, s->length, visible, space, to);
        else
            attend(q, keys, values, rows, heads, width, c * CHUNK, s->length, visible, space, to);
    }
#pragma omp for schedule(static)
    for (long i = 0; i < p->rows * heads; i++) {
        const sequence_rows *s = p->sequences + p->sequence_of_row[i / heads];
        const long skip = skipped(p, s), j = i / heads - s->first_row - skip;
        if (j < 0) continue;
        const long cell = j * heads + i % heads;
        combine(parts + (s->first_cell + cell) * part, chunks_of(s),
                (s->n_rows - skip) * heads * part, width,
                attended + (s->first_out * heads + cell) * width);
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

/* Buffers between the stages of a layer; every layer uses them again. */
typedef struct {
    float *kv_in, *kv, *normed, *query, *attended, *gate_up, *hidden, *scores, *parts;
} scratch;

static void partition(scratch *s, float *memory, const plan *p, long d, long ff) {
    s->kv_in = memory, s->kv = s->kv_in + p->kv_rows * d, s->normed = s->kv + p->kv_rows * 2 * d;
    s->query = s->normed + p->out_rows * d, s->attended = s->query + p->out_rows * d;
    s->gate_up = s->attended + p->out_rows * d, s->hidden = s->gate_up + p->out_rows * 2 * ff;
    s->scores = s->hidden + p->out_rows * ff, s->parts = s->scores + p->cells * CHUNK;
}

static long scratch_size(const plan *p, long d, long ff) {
    return p->kv_rows * 3 * d + p->out_rows * (3 * d + 3 * ff) + p->cells * (CHUNK + 2 + p->width);
}

static void share_layer(const plan *p, const layer *l, const scratch *s, const float *rows,
                        const float *rope, float *out) {
    const long d = l->query.depth, ff = l->down.depth;
    share_norm(p, l, rows, s->kv_in, s->normed, out);
    share_product(&l->key_value, s->kv_in, s->kv, p->kv_rows, 0);
    share_product(&l->query, s->normed, s->query, p->out_rows, 0);
#pragma omp barrier
    share_rope(p, rope, s->kv, s->query);
    share_attention(p, s->query, s->scores, s->parts, s->attended);
    share_product(&l->out, s->attended, out, p->out_rows, 1);
#pragma omp barrier
#pragma omp for schedule(static)
    for (long i = 0; i < p->out_rows; i++)
        rms_norm(out + i * d, l->mlp_norm, l->epsilon, d, s->normed + i * d);
    share_product(&l->gate_up, s->normed, s->gate_up, p->out_rows, 0);
#pragma omp barrier
    share_swiglu(s->gate_up, p->out_rows, ff, s->hidden);
    share_product(&l->down, s->hidden, out, p->out_rows, 1);
#pragma omp barrier
}

/* The rows of all sequences, one sequence after the other, (rows, d), through `depth` layers of one
 * shape. rope is (rows, head width / 2, 2). `out` gets the rows of the last layer: all, or with
 * `queries_only` those that write no keys. The widths of a head and of the feed-forward must be
 * multiples of 8. -1 if there is no memory. */
int run_layers(const layer *layers, long depth, const sequence_rows *sequences, long count,
               int queries_only, const float *rows, const float *rope, float *out) {
    const long d = layers->query.depth, ff = layers->down.depth;
    plan all = {.heads = layers->heads, .width = d / layers->heads}, last = all;
    last.queries_only = queries_only;
    sequence_rows *inner = malloc(sizeof(sequence_rows) * 2 * count), *outer = inner + count;
    if (!inner) return -1;
    memcpy(inner, sequences, sizeof(sequence_rows) * count);
    memcpy(outer, sequences, sizeof(sequence_rows) * count);
    float *memory = NULL;
    if (!make_plan(&all, inner, count) && !make_plan(&last, outer, count)) {
        const long between = depth > 1 ? 2 * all.rows * d : 0; /* rows between two layers */
        memory = malloc(sizeof(float) * (scratch_size(depth > 1 ? &all : &last, d, ff) + between));
    }
    if (memory) {
#pragma omp parallel
        {
            const float *from = rows;
            for (long i = 0; i < depth; i++) {
                plan now = i == depth - 1 ? last : all;
                scratch own;
                now.index = i;
                partition(&own, memory + (depth > 1 ? 2 * all.rows * d : 0), &now, d, ff);
                float *to = i == depth - 1 ? out : memory + i % 2 * all.rows * d;
                share_layer(&now, layers + i, &own, from, rope, to);
                from = to;
            }
        }
    }
    const int result = memory ? 0 : -1;
    free(memory);
    free(all.sequence_of_row);
    free(last.sequence_of_row);
    free(inner);
    return result;
}
