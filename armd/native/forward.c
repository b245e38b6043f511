/* A whole decoding pass, from the rows of what was just drawn to the rows that predict what comes
 * next: prefix sums, the two-stream layers, those above, the last norm. Nothing in it needs Python,
 * so that other threads have it meanwhile. */
#include "forward.h"
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 64 }; /* of a prefix state, for one thread at a time */

/* state += code_j x_j for rows from..to, then what the query rows first..last sum up, for the columns
 * at..at + wide. */
static void sum_up(const part *t, const float *state, const float *code, long codes,
                   const long *context_at, const long *query_at, const float *x, long d, long from,
                   long to, long first, long last, long at, long wide, float *out) {
    for (long c = 0; c < codes; c++) {
        float sums[COLUMNS];
        memcpy(sums, state + c * d + at, sizeof(float) * wide);
        for (long j = from; j < to; j++) {
            if (t->low_slot && t->low_slot[j] == t->spare) continue;
            const float weight = code[context_at[j] * codes + c], *row = x + j * d + at;
            for (long i = 0; i < wide; i++) sums[i] += weight * row[i];
        }
        memcpy(t->grown + c * d + at, sums, sizeof(float) * wide);
        for (long k = first; k < last; k++) {
            const float weight = code[query_at[k] * codes + c];
            float *row = out + k * d + at;
            for (long i = 0; i < wide; i++) row[i] += weight * sums[i];
        }
    }
}

/* All query rows of a text. When it begins, they may sum up unlike numbers of its rows; those with
 * equal numbers go together. Later all of them sum up all rows. */
static void aggregate(const part *t, const float *code, long codes, const long *context_at,
                      const long *query_at, const float *x, long d, long at, float *out) {
    const long wide = d - at < COLUMNS ? d - at : COLUMNS;
    const float *state = t->state;
    long row = 0, k = 0;
    while (k < t->asked || row < t->own) {
        long last = k, upto = t->own;
        if (k < t->asked && t->strict && t->low_start == 0) {
            upto = t->strict[k];
            while (last < t->asked && t->strict[last] == upto) last++;
        } else
            last = t->asked;
        sum_up(t, state, code, codes, context_at, query_at, x, d, row, upto, k, last, at, wide, out);
        state = t->grown, row = upto, k = last;
    }
}

typedef struct {
    long *context, *query, *row; /* where the rows of a text start, of each kind and of both */
    text *low, *high;
} layout;

static int lay_out(layout *l, const part *parts, long count, long *context, long *query) {
    l->context = malloc(count * (3 * sizeof(long) + 2 * sizeof(text)));
    if (!l->context) return -1;
    l->query = l->context + count, l->row = l->query + count;
    l->low = (text *)(l->row + count), l->high = l->low + count;
    *context = *query = 0;
    for (long i = 0; i < count; i++) {
        const part *t = parts + i;
        l->context[i] = *context, l->query[i] = *query, l->row[i] = *context + *query;
        *context += t->own, *query += t->asked;
        l->low[i] = (text){t->keys, t->values, t->low_slot, t->low_limit, t->own + t->asked, t->own,
                           t->low_start, t->low_count};
        l->high[i] = (text){t->keys, t->values, t->high_slot, t->high_limit, t->asked, t->asked,
                            t->high_start, t->high_count};
    }
    return 0;
}

/* Context rows (all, d) and positions of both kinds, part by part; codes and turns of every position.
 * Into `out`, (query rows, d), go the final query rows. -1 if there is no memory. */
int decode_pass(const network *net, const part *parts, long count, const float *code,
                const float *turn, const float *context, const long *context_at,
                const long *query_at, float *out) {
    const long d = net->layers->query.depth, width = d / net->layers->heads;
    const long chunks = (d + COLUMNS - 1) / COLUMNS;
    long own, asked;
    layout l;
    if (lay_out(&l, parts, count, &own, &asked)) return -1;
    const long rows = own + asked, above = net->depth - net->two_stream;
    float *first = malloc(sizeof(float) * (rows + asked) * (d + width)), *middle, *turns, *high;
    if (!first) {
        free(l.context);
        return -1;
    }
    middle = first + rows * d, turns = middle + asked * d, high = turns + rows * width;
    memset(middle, 0, sizeof(float) * asked * d);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (long i = 0; i < count * chunks; i++) {
            const long t = i / chunks;
            aggregate(parts + t, code, net->codes, context_at + l.context[t], query_at + l.query[t],
                      context + l.context[t] * d, d, i % chunks * COLUMNS, middle + l.query[t] * d);
        }
#pragma omp for schedule(static)
        for (long i = 0; i < count; i++) {
            const part *t = parts + i;
            const long *at = context_at + l.context[i], *wanted = query_at + l.query[i];
            memcpy(first + l.row[i] * d, context + l.context[i] * d, sizeof(float) * t->own * d);
            for (long j = 0; j < t->own; j++)
                memcpy(turns + (l.row[i] + j) * width, turn + at[j] * width, sizeof(float) * width);
            for (long k = 0; k < t->asked; k++) {
                float *sum = middle + (l.query[i] + k) * d;
                const long row = l.row[i] + t->own + k;
                if (net->mean)
                    for (long c = 0; c < d; c++) sum[c] /= t->strict ? t->strict[k] : t->low_count;
                rms_norm(sum, net->query_norm, net->epsilon, d, first + row * d);
                memcpy(turns + row * width, turn + wanted[k] * width, sizeof(float) * width);
                memcpy(high + (l.query[i] + k) * width, turn + wanted[k] * width,
                       sizeof(float) * width);
            }
        }
    }
    const float *last = middle;
    int failed = layers_pass(net->layers, net->two_stream, l.low, count, 1, first, turns, middle);
    if (!failed && above) {
        for (long i = 0; i < count; i++)
            l.high[i].keys += net->two_stream, l.high[i].values += net->two_stream;
        last = first;
        failed = layers_pass(net->layers + net->two_stream, above, l.high, count, 0, middle, high,
                             first);
    }
    for (long i = 0; i < asked; i++) rms_norm(last + i * d, net->norm, net->epsilon, d, out + i * d);
    free(first);
    free(l.context);
    return failed;
}
