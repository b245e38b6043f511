/* The forward pass of a decode step for query = "shift" and "neighbor".
 *
 * The query row of position p starts from the token at p - 1 (BOS for p = 0) and has its RoPE position.
 * If that token was drawn in the step before, its context row sees the same cache slots, so both are
 * one row. Only the other query rows are extra rows: those whose left neighbor is older, and those
 * whose left neighbor is not known, which start from prefix aggregation. Left to right there are none. */
#include "one_stream.h"
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64 }; /* of a prefix state, the unit of work of a thread */

/* The rows of the pass, one sequence after the other. */
typedef struct {
    sequence_rows *sequences;
    float *rows, *rope;       /* (rows, d) and (rows, head width) */
    long *row_at, *visible;   /* (rows): RoPE position, and number of visible slots */
    long *adapted;            /* (rows): whether it is out of order and takes adapters */
    long *wanted;             /* (drawn): row of each token to draw, counted in its sequence */
    long *unknown, *unknowns; /* rows that start from prefix aggregation; (count): how many of each */
    long n_rows, n_wanted, n_unknown;
} row_buffers;

static int alloc(row_buffers *b, sequence *const *sequences, long count, long d, long width) {
    long context = 0, drawn = 0;
    for (long i = 0; i < count; i++) {
        context += slots_used(sequences[i]) - first_slot(sequences[i]);
        drawn += tokens_drawn(sequences[i]);
    }
    const long rows = context + drawn; /* at most: all query rows are extra */
    *b = (row_buffers){0};
    b->sequences = malloc(sizeof(sequence_rows) * count +
                          sizeof(long) * (3 * rows + 2 * drawn + count) +
                          sizeof(float) * rows * (d + width));
    if (!b->sequences) return -1;
    b->row_at = (long *)(b->sequences + count), b->visible = b->row_at + rows;
    b->adapted = b->visible + rows;
    b->wanted = b->adapted + rows, b->unknown = b->wanted + drawn;
    b->unknowns = b->unknown + drawn;
    b->rows = (float *)(b->unknowns + count), b->rope = b->rows + rows * d;
    return 0;
}

/* Columns first .. first + count of the input row of cache slot `slot`: BOS, or the embedding of the
 * token that it holds. */
static void slot_row(const network *net, const sequence *s, long slot, long first, long count,
                     float *to) {
    if (slot)
        token_row(net, s->tokens[s->position[slot - 1]], first, count, to);
    else
        memcpy(to, net->bos + first, sizeof(float) * count);
}

static long slot_position(const sequence *s, long slot) { return slot ? s->position[slot - 1] + 1 : 0; }

/* Whether a row sees exactly the positions up to its own, as left to right. */
static int in_order(const sequence *s, long at, long visible) {
    if (visible != at + 1) return 0;
    for (long slot = 0; slot < visible; slot++)
        if (slot_position(s, slot) > at) return 0;
    return 1;
}

/* Append the row of a slot; slot -1 is filled in later. */
static void append_row(row_buffers *b, const network *net, const sequence *s, long slot, long at,
                       long visible) {
    const long d = net->layers->query.depth;
    if (slot >= 0)
        slot_row(net, s, slot, 0, d, b->rows + b->n_rows * d);
    else
        memset(b->rows + b->n_rows * d, 0, sizeof(float) * d);
    b->adapted[b->n_rows] = net->layers->query.rank && !in_order(s, at, visible);
    b->row_at[b->n_rows] = at, b->visible[b->n_rows++] = visible;
}

static void gather_rows(row_buffers *b, const network *net, const sequence *s, const float *rope,
                        long i) {
    const long start = first_slot(s), length = slots_used(s);
    const long there = s->step_ends[s->step], drawn = tokens_drawn(s), first = b->n_rows;
    for (long slot = start; slot < length; slot++)
        append_row(b, net, s, slot, slot_position(s, slot), s->step ? length : s->low_limit[slot]);
    b->unknowns[i] = 0;
    for (long k = 0; k < drawn; k++) {
        const long p = s->position[there + k]; /* its left neighbor is at RoPE position p */
        const long slot = !p ? 0 : net->query == SHIFT ? p : 1 + s->rank[p - 1];
        long row = first + slot - start;
        if (slot < start || slot >= length || b->visible[row] != length) { /* not shared */
            row = b->n_rows;
            append_row(b, net, s, slot < length ? slot : -1, p, length);
            if (slot >= length) b->unknown[b->n_unknown++] = row, b->unknowns[i]++;
        }
        b->wanted[b->n_wanted++] = row - first;
    }
    b->sequences[i] = (sequence_rows){
        .keys = s->keys, .values = s->values, .visible = b->visible + first,
        .n_rows = b->n_rows - first, .n_kv = length - start, .start = start, .length = length,
        .wanted = b->wanted + b->n_wanted - drawn, .n_wanted = drawn,
        .row_at = b->row_at + first, .adapted = b->adapted + first, .position = s->position, .bos_slots = 1,
        .right_offset = net->right_offset, .rope = rope, .bf16 = s->bf16_cache};
}

/* Bring the prefix state of a sequence up to date, and add the prefix sums of its `count` rows without
 * a known neighbor to them; the columns at..at + width. Left to right the state is never needed, and
 * is not kept. */
static void aggregate(const row_buffers *b, const network *net, const sequence *s, const float *code,
                      const long *unknown, long count, long at) {
    const long d = net->layers->query.depth, codes = net->codes;
    const long width = d - at < COLUMNS ? d - at : COLUMNS;
    for (long slot = s->prefix_rows; slot < slots_used(s); slot++) {
        const float *weight = code + slot_position(s, slot) * codes;
        float row[COLUMNS];
        slot_row(net, s, slot, at, width, row);
        for (long c = 0; c < codes; c++) {
            float *state = s->prefix_state + c * d + at;
            for (long i = 0; i < width; i++) state[i] += weight[c] * row[i];
        }
    }
    for (long c = 0; c < codes; c++) {
        const float *state = s->prefix_state + c * d + at;
        for (long k = 0; k < count; k++) {
            /* the row predicts the position after that of its neighbor */
            const float weight = code[(b->row_at[unknown[k]] + 1) * codes + c];
            float *row = b->rows + unknown[k] * d + at;
            for (long i = 0; i < width; i++) row[i] += weight * state[i];
        }
    }
}

/* Rows without a known neighbor: unknown + init_std * gate * norm(prefix sums). */
static void fill_unknown(const row_buffers *b, const network *net, sequence *const *sequences,
                         long count, const float *code) {
    const long d = net->layers->query.depth, chunks = (d + COLUMNS - 1) / COLUMNS;
    const float scale = net->init_std * *net->gate;
    const long *unknown = b->unknown;
    for (long i = 0; i < count; unknown += b->unknowns[i++]) {
        if (!b->unknowns[i]) continue;
#pragma omp parallel for schedule(static)
        for (long c = 0; c < chunks; c++)
            aggregate(b, net, sequences[i], code, unknown, b->unknowns[i], c * COLUMNS);
        sequences[i]->prefix_rows = slots_used(sequences[i]);
    }
    for (long k = 0; k < b->n_unknown; k++) {
        float *row = b->rows + b->unknown[k] * d;
        rms_norm(row, net->query_norm, net->epsilon, d, row);
        for (long i = 0; i < d; i++) row[i] = net->unknown[i] + scale * row[i];
    }
}

/* `out`, (tokens to draw, d), gets the final rows that are sampled from, sequence by sequence. -1 if
 * there is no memory. */
int one_stream_pass(const network *net, sequence *const *sequences, long count, const float *code,
                    const float *rope, float *out) {
    const long d = net->layers->query.depth, width = net->layers->width;
    row_buffers b;
    if (alloc(&b, sequences, count, d, width)) return -1;
    for (long i = 0; i < count; i++) gather_rows(&b, net, sequences[i], rope, i);
    if (b.n_unknown) fill_unknown(&b, net, sequences, count, code);
    for (long i = 0; i < b.n_rows; i++)
        memcpy(b.rope + i * width, rope + b.row_at[i] * width, sizeof(float) * width);
    const int failed = run_layers(net->layers, net->depth, b.sequences, count, b.rows, b.rope, out);
    for (long i = 0; i < b.n_wanted && !failed; i++)
        rms_norm(out + i * d, net->norm, net->epsilon, d, out + i * d);
    free(b.sequences);
    return failed;
}
