/* A whole forward pass of a decode step: prefix aggregation, the two-stream layers, the layers above,
 * the final norm. One call, which needs neither Python nor its lock. */
#include "forward.h"
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64 }; /* of a prefix state, the unit of work of a thread */

/* Numbers first .. first + count of a token's embedding. */
void token_row(const network *net, long token, long first, long count, float *to) {
    if (net->embedding)
        memcpy(to, net->embedding + token * net->layers->query.depth + first, sizeof(float) * count);
    else
        weight_row(&net->tokens, token, first, count, to);
}

/* new state = state + code_j x_j for context rows from..to; then add the sums of query rows
 * first..last to `out`. Only the columns at..at + width. */
static void add_rows(const forward_input *s, const float *state, const float *code, long codes,
                     const long *context_at, const long *query_at, const float *x, long d, long from,
                     long to, long first, long last, long at, long width, float *out) {
    for (long c = 0; c < codes; c++) {
        float sums[COLUMNS];
        memcpy(sums, state + c * d + at, sizeof(float) * width);
        for (long j = from; j < to; j++) {
            if (s->low_slot && s->low_slot[j] == s->padding_slot) continue;
            const float weight = code[context_at[j] * codes + c], *row = x + j * d + at;
            for (long i = 0; i < width; i++) sums[i] += weight * row[i];
        }
        memcpy(s->new_prefix_state + c * d + at, sums, sizeof(float) * width);
        for (long k = first; k < last; k++) {
            const float weight = code[query_at[k] * codes + c];
            float *row = out + k * d + at;
            for (long i = 0; i < width; i++) row[i] += weight * sums[i];
        }
    }
}

/* Prefix sums of all query rows of a sequence. In its prefill they may sum over unlike numbers of
 * context rows, and those with equal numbers go together. Later all sum over all rows. */
static void aggregate(const forward_input *s, const float *code, long codes, const long *context_at,
                      const long *query_at, const float *x, long d, long at, float *out) {
    const long width = d - at < COLUMNS ? d - at : COLUMNS;
    const float *state = s->prefix_state;
    long row = 0, k = 0;
    while (k < s->n_query || row < s->n_context) {
        long last = k, to = s->n_context;
        if (k < s->n_query && s->strict) {
            to = s->strict[k] - s->low_start;
            while (last < s->n_query && s->strict[last] == s->strict[k]) last++;
        } else
            last = s->n_query;
        add_rows(s, state, code, codes, context_at, query_at, x, d, row, to, k, last, at, width, out);
        state = s->new_prefix_state, row = to, k = last;
    }
}

typedef struct {
    long *context, *query, *row; /* index of each sequence's first row: context, query, both */
    long *wanted;                /* (query rows): the query rows among the rows of a sequence */
    sequence_rows *low, *high;
} layout;

static int make_layout(layout *l, const forward_input *inputs, long count, long *context,
                       long *query) {
    *context = *query = 0;
    for (long i = 0; i < count; i++) *query += inputs[i].n_query;
    l->low = malloc(2 * count * sizeof(sequence_rows) + (3 * count + *query) * sizeof(long));
    if (!l->low) return -1;
    l->high = l->low + count, l->context = (long *)(l->high + count);
    l->query = l->context + count, l->row = l->query + count, l->wanted = l->row + count;
    *query = 0;
    for (long i = 0; i < count; i++) {
        const forward_input *s = inputs + i;
        l->context[i] = *context, l->query[i] = *query, l->row[i] = *context + *query;
        for (long k = 0; k < s->n_query; k++) l->wanted[*query + k] = s->n_context + k;
        l->low[i] = (sequence_rows){
            .keys = s->keys, .values = s->values, .slot_mapping = s->low_slot,
            .visible = s->low_limit, .n_rows = s->n_context + s->n_query, .n_kv = s->n_context,
            .start = s->low_start, .length = s->low_length,
            .wanted = l->wanted + *query, .n_wanted = s->n_query,
            .bf16 = s->bf16};
        l->high[i] = (sequence_rows){
            .keys = s->keys, .values = s->values, .slot_mapping = s->high_slot,
            .visible = s->high_limit, .n_rows = s->n_query, .n_kv = s->n_query,
            .start = s->high_start, .length = s->high_length, .bf16 = s->bf16};
        *context += s->n_context, *query += s->n_query;
    }
    return 0;
}

/* context (all context rows, d) and the positions of both kinds of rows, sequence by sequence; code
 * and rope are tables of all positions. `out`, (query rows, d), gets the final query rows. -1 if
 * there is no memory. */
int forward_pass(const network *net, const forward_input *inputs, long count, const float *code,
                 const float *rope, const float *context, const long *context_at,
                 const long *query_at, float *out) {
    const long d = net->layers->query.depth, width = net->layers->width;
    const long chunks = (d + COLUMNS - 1) / COLUMNS;
    long n_context, n_query;
    layout l;
    if (make_layout(&l, inputs, count, &n_context, &n_query)) return -1;
    const long rows = n_context + n_query, above = net->depth - net->two_stream;
    float *first = malloc(sizeof(float) * (rows + n_query) * (d + width)), *middle, *low, *high;
    if (!first) {
        free(l.low);
        return -1;
    }
    middle = first + rows * d, low = middle + n_query * d, high = low + rows * width;
    memset(middle, 0, sizeof(float) * n_query * d);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long i = 0; i < count * chunks; i++) {
            const long s = i / chunks;
            aggregate(inputs + s, code, net->codes, context_at + l.context[s], query_at + l.query[s],
                      context + l.context[s] * d, d, i % chunks * COLUMNS, middle + l.query[s] * d);
        }
#pragma omp for schedule(static)
        for (long i = 0; i < count; i++) {
            const forward_input *s = inputs + i;
            const long *at = context_at + l.context[i], *to = query_at + l.query[i];
            memcpy(first + l.row[i] * d, context + l.context[i] * d,
                   sizeof(float) * s->n_context * d);
            for (long j = 0; j < s->n_context; j++)
                memcpy(low + (l.row[i] + j) * width, rope + at[j] * width, sizeof(float) * width);
            for (long k = 0; k < s->n_query; k++) {
                float *sum = middle + (l.query[i] + k) * d;
                const long row = l.row[i] + s->n_context + k;
                if (net->query == MEAN)
                    for (long c = 0; c < d; c++) sum[c] /= s->strict ? s->strict[k] : s->low_length;
                rms_norm(sum, net->query_norm, net->epsilon, d, first + row * d);
                memcpy(low + row * width, rope + to[k] * width, sizeof(float) * width);
                memcpy(high + (l.query[i] + k) * width, rope + to[k] * width, sizeof(float) * width);
            }
        }
    }
    const float *last = middle;
    int failed = run_layers(net->layers, net->two_stream, l.low, count, first, low, middle);
    if (!failed && above) {
        for (long i = 0; i < count; i++)
            l.high[i].keys += net->two_stream, l.high[i].values += net->two_stream;
        last = first;
        failed = run_layers(net->layers + net->two_stream, above, l.high, count, middle, high, first);
    }
    for (long i = 0; i < n_query; i++)
        rms_norm(last + i * d, net->norm, net->epsilon, d, out + i * d);
    free(first);
    free(l.low);
    return failed;
}
