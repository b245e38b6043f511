/* The transformer layers of a forward pass over few rows. In torch a layer takes about thirty
 * operations, each with its own overhead; here all layers are one parallel region. The result of a
 * row depends neither on the rows beside it nor on the number of threads. */
#include "layer.h"
#include "adapter.h"
#include "attention.h"
#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
static int omp_get_thread_num(void) { return 0; }
#endif

enum { BLOCK = MAX_ROWS }; /* rows that attend together where there are many */
enum { PIECE = 128 }; /* columns of a row that a thread takes at once */

/* Which rows go through a layer. Rows that write keys ("kv") and rows that leave the layer ("out") are
 * two lists; a row may be in both. */
typedef struct {
    const sequence_rows *sequences;
    long rows, kv_rows, out_rows, chunks;
    long blocks;        /* of rows; 0 if no sequence has more rows than a block */
    long adapted;       /* whether any row is out of order */
    long scored, cells; /* (row, head) of a thread's scores; (row, head, chunk) of all sums */
    long *kv_row, *kv_sequence;                        /* (kv_rows) */
    long *out_row, *out_sequence, *out_at, *visible;   /* (out_rows); out_at: RoPE position */
    long *kv_adapted, *out_adapted;                    /* (kv_rows), (out_rows): out of order */
    long *chunk_sequence, *block_row;                  /* (chunks); (blocks): first output row */
} plan;

static long chunks_of(const sequence_rows *s) { return (s->length + CHUNK - 1) / CHUNK; }

static long blocks_of(const sequence_rows *s) { return (s->n_out + BLOCK - 1) / BLOCK; }

/* Few rows: threads share the chunks of the cache, and every chunk keeps its sums until all are there.
 * Many rows: they share blocks of rows, and each thread keeps the sums of one block. */
static void plan_room(plan *p, long most_rows, long heads, long most_chunks) {
    p->scored = (most_rows < BLOCK ? most_rows : BLOCK) * heads;
    if (most_rows > BLOCK)
        p->cells = omp_get_max_threads() * p->scored * most_chunks;
    else
        p->blocks = 0;
}

/* `last`: only the wanted rows leave the layer. -1 if there is no memory. */
static int make_plan(plan *p, sequence_rows *sequences, long count, long heads, int last) {
    *p = (plan){.sequences = sequences};
    long most = 0, most_rows = 0;
    for (sequence_rows *s = sequences; s < sequences + count; s++) {
        s->first_row = p->rows, s->first_out = p->out_rows;
        s->first_chunk = p->chunks, s->first_cell = p->cells;
        s->n_out = last && s->wanted ? s->n_wanted : s->n_rows;
        p->rows += s->n_rows, p->kv_rows += s->n_kv, p->out_rows += s->n_out;
        p->chunks += chunks_of(s), p->cells += s->n_out * heads * chunks_of(s);
        p->blocks += blocks_of(s);
        most_rows = s->n_out > most_rows ? s->n_out : most_rows;
        for (long j = 0; j < s->n_rows && s->adapted; j++) p->adapted |= s->adapted[j];
        most = chunks_of(s) > most ? chunks_of(s) : most;
    }
    plan_room(p, most_rows, heads, most);
    p->kv_row = malloc(sizeof(long) * (3 * p->kv_rows + 5 * p->out_rows + p->chunks + p->blocks));
    if (!p->kv_row) return -1;
    p->kv_sequence = p->kv_row + p->kv_rows, p->out_row = p->kv_sequence + p->kv_rows;
    p->out_sequence = p->out_row + p->out_rows, p->out_at = p->out_sequence + p->out_rows;
    p->visible = p->out_at + p->out_rows, p->chunk_sequence = p->visible + p->out_rows;
    p->block_row = p->chunk_sequence + p->chunks, p->kv_adapted = p->block_row + p->blocks;
    p->out_adapted = p->kv_adapted + p->kv_rows;
    long kv = 0, out = 0, chunk = 0, block = 0;
    for (long i = 0; i < count; i++) {
        const sequence_rows *s = sequences + i;
        for (long j = 0; j < s->n_kv; j++, kv++)
            p->kv_row[kv] = s->first_row + j, p->kv_sequence[kv] = i,
            p->kv_adapted[kv] = s->adapted && s->adapted[j];
        for (long j = 0; j < blocks_of(s) && p->blocks; j++)
            p->block_row[block++] = s->first_out + j * BLOCK;
        for (long j = 0; j < s->n_out; j++, out++) {
            const long row = last && s->wanted ? s->wanted[j] : j;
            p->out_row[out] = s->first_row + row, p->out_sequence[out] = i;
            p->out_at[out] = s->row_at ? s->row_at[row] : 0;
            p->out_adapted[out] = s->adapted && s->adapted[row];
            p->visible[out] = s->visible ? s->visible[row] : s->length;
        }
        for (long j = 0; j < chunks_of(s); j++, chunk++) p->chunk_sequence[chunk] = i;
    }
    return 0;
}

void rms_norm(const float *x, const float *weight, float epsilon, long width, float *out) {
    vec squares = {0};
    for (long i = 0; i < width; i += 8) squares += *(vec *)(x + i) * *(vec *)(x + i);
    const float scale = 1 / sqrtf(sum(squares) / width + epsilon);
    for (long i = 0; i < width; i++) out[i] = x[i] * scale * weight[i];
}

/* Normed rows, once for keys and values and once for queries, because a product takes contiguous
 * rows. Output rows also go to `out` unnormed, as the residual. */
static void share_norm(const plan *p, const layer *l, const float *rows, float *kv_in, float *normed,
                       float *out) {
    const long d = l->query.depth;
#pragma omp for schedule(static)
    for (long i = 0; i < p->kv_rows + p->out_rows; i++) {
        const long j = i - p->kv_rows;
        const float *row = rows + (j < 0 ? p->kv_row[i] : p->out_row[j]) * d;
        rms_norm(row, l->attention_norm, l->epsilon, d, j < 0 ? kv_in + i * d : normed + j * d);
        if (j >= 0) memcpy(out + j * d, row, sizeof(float) * d);
    }
}

/* Rows out of order take the adapter of a product, too. */
static void share_adapter(const plan *p, const long *adapted, const matrix *w, const float *x,
                          float *y, long rows) {
    if (!p->adapted || !w->rank) return;
#pragma omp for schedule(static)
    for (long i = 0; i < rows; i++)
        if (adapted[i]) add_adapter(w, x + i * w->depth, y + i * w->outputs);
}

static void add_bias(float *row, const float *bias, long width) {
    for (long i = 0; i < width && bias; i++) row[i] += bias[i];
}

static void store_row(void *cache, long slot, const float *row, long width, long bf16) {
    if (bf16)
        narrow_bf16(row, width, (uint16_t *)cache + slot * width);
    else
        memcpy((float *)cache + slot * width, row, sizeof(float) * width);
}

/* Biases and RoPE: keys and values go to the cache of layer `index`; queries stay where they are, and are
 * turned for keys to the right. */
static void share_rope(const plan *p, const layer *l, long index, const float *rope, float *kv,
                       float *query, float *turned) {
    const long width = l->width, kv_width = l->kv_heads * width, q_width = l->heads * width;
#pragma omp for schedule(static)
    for (long i = 0; i < p->kv_rows + p->out_rows; i++) {
        const long j = i - p->kv_rows;
        if (j >= 0) {
            float *row = query + j * q_width;
            add_bias(row, l->query_bias, q_width);
            apply_rope(row, rope + p->out_row[j] * width, l->heads, width, row);
            const sequence_rows *own = p->sequences + p->out_sequence[j];
            if (own->right_offset)
                apply_rope(row, own->rope + own->right_offset * width, l->heads, width,
                           turned + j * q_width);
            continue;
        }
        const sequence_rows *s = p->sequences + p->kv_sequence[i];
        const long k = p->kv_row[i] - s->first_row;
        const long slot = s->slot_mapping ? s->slot_mapping[k] : s->start + k;
        float *row = kv + i * 2 * kv_width;
        add_bias(row, l->key_value_bias, 2 * kv_width);
        apply_rope(row, rope + p->kv_row[i] * width, l->kv_heads, width, row);
        store_row(s->keys[index], slot, row, kv_width, s->bf16);
        store_row(s->values[index], slot, row + kv_width, kv_width, s->bf16);
    }
}

/* Buffers between the stages of a layer; every layer uses them again. */
typedef struct {
    float *kv_in, *kv, *normed, *query, *turned, *attended, *gate_up, *hidden, *scores, *parts;
    row_group *kv_groups, *groups; /* quantised rows: of keys and values, and of the other products */
} scratch;

/* The rows from output row `first` on, all of one sequence. */
static attention_input rows_from(const plan *p, const layer *l, long index, const scratch *k,
                                 long first, long rows) {
    const sequence_rows *s = p->sequences + p->out_sequence[first];
    const long at = first * l->heads * l->width;
    return (attention_input){
        k->query + at, s->right_offset ? k->turned + at : NULL, s->keys[index], s->values[index],
        rows, l->heads, l->kv_heads, s->length, p->visible + first,
        l->right_bias, s->right_offset, s->rope, p->out_at + first, s->position, s->bos_slots};
}

/* Each thread takes some chunks of the caches, then combines some rows. */
static void share_chunks(const plan *p, const layer *l, long index, const scratch *k) {
    const long heads = l->heads, width = l->width, part = 2 + width;
    float *scores = k->scores + omp_get_thread_num() * p->scored * CHUNK;
#pragma omp for schedule(static)
    for (long i = 0; i < p->chunks; i++) {
        const sequence_rows *s = p->sequences + p->chunk_sequence[i];
        const long c = i - s->first_chunk, cell = s->first_cell + c * s->n_out * heads;
        if (!s->n_out) continue;
        const attention_input a = rows_from(p, l, index, k, s->first_out, s->n_out);
        attend_chunk(&a, width, s->bf16, c * CHUNK, scores, k->parts + cell * part);
    }
#pragma omp for schedule(static)
    for (long i = 0; i < p->out_rows * heads; i++) {
        const sequence_rows *s = p->sequences + p->out_sequence[i / heads];
        combine(k->parts + (s->first_cell + i - s->first_out * heads) * part, chunks_of(s),
                s->n_out * heads * part, width, k->attended + i * width);
    }
}

/* Each thread takes some blocks of rows. A block goes through the chunks that one of its rows sees. The
 * last blocks see the most and come first. The bits are those of share_chunks. */
static void share_blocks(const plan *p, const layer *l, long index, const scratch *k) {
    const long heads = l->heads, width = l->width, part = 2 + width, own = omp_get_thread_num();
    float *scores = k->scores + own * p->scored * CHUNK;
    float *parts = k->parts + own * (p->cells / omp_get_max_threads()) * part;
#pragma omp for schedule(dynamic)
    for (long i = p->blocks - 1; i >= 0; i--) {
        const long first = p->block_row[i];
        const sequence_rows *s = p->sequences + p->out_sequence[first];
        const long left = s->first_out + s->n_out - first, rows = left < BLOCK ? left : BLOCK;
        const attention_input a = rows_from(p, l, index, k, first, rows);
        long seen = 0, chunks = 0;
        for (long r = 0; r < rows; r++) seen = a.visible[r] > seen ? a.visible[r] : seen;
        for (; chunks < chunks_of(s) && chunks * CHUNK < seen; chunks++)
            attend_chunk(&a, width, s->bf16, chunks * CHUNK, scores,
                         parts + chunks * rows * heads * part);
        for (long n = 0; n < rows * heads; n++)
            combine(parts + n * part, chunks, rows * heads * part, width,
                    k->attended + (first * heads + n) * width);
    }
}

/* In pieces of rows, so that a division of places comes once a piece. */
static void share_swiglu(const float *gate_up, long rows, long width, float *out) {
    const long pieces = (width + PIECE - 1) / PIECE;
#pragma omp for schedule(static)
    for (long i = 0; i < rows * pieces; i++) {
        const long row = i / pieces, from = i % pieces * PIECE;
        const long upto = from + PIECE < width ? from + PIECE : width;
        const float *gate = gate_up + row * 2 * width;
        for (long c = from; c < upto; c += 8) {
            const vec g = *(vec *)(gate + c), u = *(vec *)(gate + width + c);
            *(vec *)(out + row * width + c) = g * u / (1 + exponential(-g));
        }
    }
}

/* Groups of a row of the widest product. */
static long most_groups(const layer *l) {
    const long inner = l->heads * l->width, wide = inner > l->down.depth ? inner : l->down.depth;
    return ((wide > l->query.depth ? wide : l->query.depth) + GROUP - 1) / GROUP;
}

static void partition(scratch *s, float *memory, const plan *p, const layer *l) {
    const long d = l->query.depth, ff = l->down.depth, inner = l->heads * l->width;
    s->kv_in = memory, s->kv = s->kv_in + p->kv_rows * d;
    s->normed = s->kv + p->kv_rows * 2 * l->kv_heads * l->width;
    s->query = s->normed + p->out_rows * d, s->turned = s->query + p->out_rows * inner;
    s->attended = s->turned + p->out_rows * inner;
    s->gate_up = s->attended + p->out_rows * inner, s->hidden = s->gate_up + p->out_rows * 2 * ff;
    s->scores = s->hidden + p->out_rows * ff, s->parts = s->scores + omp_get_max_threads() * p->scored * CHUNK;
    s->kv_groups = (row_group *)(s->parts + p->cells * (2 + l->width));
    s->groups = s->kv_groups + p->kv_rows * groups_of(&l->key_value);
}

static long scratch_size(const plan *p, const layer *l) {
    const long d = l->query.depth, ff = l->down.depth, inner = l->heads * l->width;
    return p->kv_rows * (d + 2 * l->kv_heads * l->width) + p->out_rows * (d + 3 * inner + 3 * ff) +
           omp_get_max_threads() * p->scored * CHUNK + p->cells * (2 + l->width) +
           (p->kv_rows * groups_of(&l->key_value) + p->out_rows * most_groups(l)) *
               (long)(sizeof(row_group) / sizeof(float));
}

static void share_layer(const plan *p, const layer *l, long index, const scratch *s,
                        const float *rows, const float *rope, float *out) {
    const long d = l->query.depth, ff = l->down.depth;
    share_norm(p, l, rows, s->kv_in, s->normed, out);
    share_product(&l->key_value, s->kv_in, s->kv_groups, s->kv, p->kv_rows, 0);
    share_product(&l->query, s->normed, s->groups, s->query, p->out_rows, 0);
#pragma omp barrier
    share_adapter(p, p->kv_adapted, &l->key_value, s->kv_in, s->kv, p->kv_rows);
    share_adapter(p, p->out_adapted, &l->query, s->normed, s->query, p->out_rows);
    share_rope(p, l, index, rope, s->kv, s->query, s->turned);
    (p->blocks ? share_blocks : share_chunks)(p, l, index, s);
    share_product(&l->out, s->attended, s->groups, out, p->out_rows, 1);
#pragma omp barrier
    share_adapter(p, p->out_adapted, &l->out, s->attended, out, p->out_rows);
#pragma omp for schedule(static)
    for (long i = 0; i < p->out_rows; i++)
        rms_norm(out + i * d, l->mlp_norm, l->epsilon, d, s->normed + i * d);
    share_product(&l->gate_up, s->normed, s->groups, s->gate_up, p->out_rows, 0);
#pragma omp barrier
    share_adapter(p, p->out_adapted, &l->gate_up, s->normed, s->gate_up, p->out_rows);
    share_swiglu(s->gate_up, p->out_rows, ff, s->hidden);
    share_product(&l->down, s->hidden, s->groups, out, p->out_rows, 1);
#pragma omp barrier
    share_adapter(p, p->out_adapted, &l->down, s->hidden, out, p->out_rows);
}

/* The rows of all sequences, one sequence after the other, (rows, d), through `depth` layers of one
 * shape. rope is (rows, head width / 2, 2). `out` gets the wanted rows of the last layer. The widths
 * of a row, of a head and of the feed-forward must be multiples of 8. -1 if there is no memory. */
int run_layers(const layer *layers, long depth, const sequence_rows *sequences, long count,
               const float *rows, const float *rope, float *out) {
    const long d = layers->query.depth;
    plan all = {0}, last = {0};
    sequence_rows *inner = malloc(sizeof(sequence_rows) * 2 * count), *outer = inner + count;
    if (!inner) return -1;
    memcpy(inner, sequences, sizeof(sequence_rows) * count);
    memcpy(outer, sequences, sizeof(sequence_rows) * count);
    float *memory = NULL;
    if (!make_plan(&all, inner, count, layers->heads, 0) &&
        !make_plan(&last, outer, count, layers->heads, 1)) {
        const long between = depth > 1 ? 2 * all.rows * d : 0; /* rows between two layers */
        const long most = scratch_size(&all, layers), least = scratch_size(&last, layers);
        const long size = depth > 1 && most > least ? most : least;
        /* in whole cache lines: vectors that lie across two cost twice as much */
        memory = aligned_alloc(64, (sizeof(float) * (size + between) + 63) / 64 * 64);
    }
    if (memory) {
#pragma omp parallel
        {
            const float *from = rows;
            for (long i = 0; i < depth; i++) {
                const plan *now = i == depth - 1 ? &last : &all;
                scratch own;
                partition(&own, memory + (depth > 1 ? 2 * all.rows * d : 0), now, layers);
                float *to = i == depth - 1 ? out : memory + i % 2 * all.rows * d;
                share_layer(now, layers + i, i, &own, from, rope, to);
                from = to;
            }
        }
    }
    const int result = memory ? 0 : -1;
    free(memory);
    free(all.kv_row);
    free(last.kv_row);
    free(inner);
    return result;
}
