/* A stroke: one pass and its draws for many texts, each a step further from wherever it stands. What a
 * text will go through is known when it begins and lies here; between two strokes nothing is made
 * ready for it. */
#include "forward.h"
#include "sample.h"
#include <stdlib.h>
#include <string.h>

/* One text of n tokens. */
typedef struct {
    float *const *keys, *const *values;
    float *state;           /* (codes, d), which grows in place */
    const long *position;   /* (n): where its tokens stand, in the order in which they are written */
    const long *ends;       /* how many of them are there after the prefill and after each step */
    const double *uniform;  /* (n): a number in [0, 1) for each, in that order */
    const char *known;      /* (n): whether a token is given; this and what follows in natural order */
    long *tokens;           /* (n) */
    double *logp;           /* (n): of those drawn */
    const long *strict, *low_limit, *high_limit; /* as in `part`, when it begins */
    choice how;
    long spare; /* as in `part` */
    long step;  /* its next */
    long broken; /* its logits were no numbers; it goes no further */
} line;

/* How many rows of each kind a text has in this stroke, and tokens to be drawn. */
typedef struct {
    long own, asked, drawn;
} size;

static size size_of(const line *t) {
    const long there = t->ends[t->step], drawn = t->ends[t->step + 1] - there;
    if (t->step) return (size){there - t->ends[t->step - 1], drawn, drawn};
    return (size){1 + there, there + drawn, drawn};
}

typedef struct {
    part *parts;
    long *tokens, *context_at, *query_at, *given, *token;
    double *uniform, *logp;
    choice *choices;
    float *context, *rows;
} desk;

static int make(desk *k, long count, size all, long d) {
    const long longs = 2 * all.own + all.asked + 2 * all.drawn, doubles = 2 * all.drawn;
    k->parts = malloc(sizeof(part) * count + sizeof(long) * longs + sizeof(double) * doubles +
                      sizeof(choice) * all.drawn + sizeof(float) * (all.own + all.asked) * d);
    if (!k->parts) return -1;
    k->choices = (choice *)(k->parts + count), k->uniform = (double *)(k->choices + all.drawn);
    k->logp = k->uniform + all.drawn, k->tokens = (long *)(k->logp + all.drawn);
    k->context_at = k->tokens + all.own, k->query_at = k->context_at + all.own;
    k->given = k->query_at + all.asked, k->token = k->given + all.drawn;
    k->context = (float *)(k->token + all.drawn), k->rows = k->context + all.own * d;
    return 0;
}

/* What enters are the tokens of the step before; at first BOS, which is -1, and all that are given. */
static void lay(const desk *k, const line *t, size before, size own, long i) {
    const long there = t->ends[t->step], from = t->step ? t->ends[t->step - 1] : 0;
    long *tokens = k->tokens + before.own, *context_at = k->context_at + before.own;
    long *query_at = k->query_at + before.asked;
    if (!t->step) *tokens++ = -1, *context_at++ = 0;
    for (long j = from; j < there; j++)
        *tokens++ = t->tokens[t->position[j]], *context_at++ = t->position[j] + 1;
    for (long j = there + own.drawn - own.asked; j < there + own.drawn; j++)
        *query_at++ = t->position[j] + 1;
    for (long j = 0; j < own.drawn; j++) {
        const long place = t->position[there + j], to = before.drawn + j;
        k->uniform[to] = t->uniform[there + j], k->choices[to] = t->how;
        k->given[to] = t->known[place] ? t->tokens[place] : -1;
    }
    const long low = t->step ? 1 + from : 0, high = t->step ? there : 0;
    k->parts[i] = (part){.keys = t->keys, .values = t->values, .state = t->state, .grown = t->state,
                         .own = own.own, .asked = own.asked, .low_start = low,
                         .low_count = low + own.own, .high_start = high,
                         .high_count = high + own.asked, .spare = t->spare};
    if (t->step) return;
    k->parts[i].strict = t->strict;
    k->parts[i].low_limit = t->low_limit, k->parts[i].high_limit = t->high_limit;
}

static void take(const desk *k, line *t, long from, long drawn) {
    for (long j = 0; j < drawn; j++) {
        const long place = t->position[t->ends[t->step] + j];
        if (k->token[from + j] < 0)
            t->broken = 1;
        else
            t->tokens[place] = k->token[from + j], t->logp[place] = k->logp[from + j];
    }
    t->step++;
}

static void add(size *sum, size one) {
    sum->own += one.own, sum->asked += one.asked, sum->drawn += one.drawn;
}

/* The logits that tokens are drawn from stay in `logits`, (tokens drawn, outputs), line by line. -1 if
 * there is no memory; then nothing was drawn. */
int stroke(const network *net, line *const *lines, long count, const float *code, const float *turn,
           float *logits) {
    const long d = net->layers->query.depth;
    size all = {0}, before = {0};
    for (long i = 0; i < count; i++) add(&all, size_of(lines[i]));
    desk k;
    if (make(&k, count, all, d)) return -1;
    for (long i = 0; i < count; i++) {
        const size own = size_of(lines[i]);
        lay(&k, lines[i], before, own, i);
        add(&before, own);
    }
    for (long i = 0; i < all.own; i++)
        memcpy(k.context + i * d, k.tokens[i] < 0 ? net->bos : net->embedding + k.tokens[i] * d,
               sizeof(float) * d);
    int failed = decode_pass(net, k.parts, count, code, turn, k.context, k.context_at, k.query_at,
                             k.rows);
    if (!failed) {
        before = (size){0};
        for (long i = 0; i < count; i++) { /* what is wanted moves to the front */
            const size own = size_of(lines[i]);
            memmove(k.rows + before.drawn * d, k.rows + (before.asked + own.asked - own.drawn) * d,
                    sizeof(float) * own.drawn * d);
            add(&before, own);
        }
        skinny_product(&net->head, k.rows, logits, all.drawn);
        failed = draw_rows(logits, k.uniform, k.given, k.choices, all.drawn, net->head.outputs,
                           k.token, k.logp);
    }
    for (long i = 0, from = 0; i < count && !failed; i++) {
        const long drawn = size_of(lines[i]).drawn;
        take(&k, lines[i], from, drawn);
        from += drawn;
    }
    free(k.parts);
    return failed;
}
