/* One decode step for many sequences, each at its own step: forward pass, head and sampling in one
 * call. The plan of a sequence is known when it begins and is stored here, so that nothing has to be
 * prepared between two steps. */
#include "forward.h"
#include "sample.h"
#include <stdlib.h>
#include <string.h>

/* One sequence of n tokens. "Generation order" is the order in which tokens are written. */
typedef struct {
    float *const *keys, *const *values; /* KV cache of each layer */
    float *prefix_state;                /* (codes, d), updated in place */
    const long *position;  /* (n): natural position of each token, in generation order */
    const long *rank;      /* (n): generation index of each natural position */
    const long *step_ends; /* number of tokens there are after the prefill and after each step */
    const double *uniform; /* (n): a number in [0, 1) for each token, in generation order */
    const char *known;     /* (n): whether a token is given; this and the next two in natural order */
    long *tokens;          /* (n) */
    double *logp;          /* (n): of the tokens drawn */
    const long *strict, *low_limit, *high_limit; /* as in `forward_input`, for the first pass */
    unsigned char *seen; /* (vocabulary): whether the sequence has this token, or NULL */
    sampling sampling;
    long padding_slot; /* as in `forward_input` */
    long step;         /* index of its next step */
    long broken;       /* its logits were NaN or infinite; it cannot go on */
} sequence;

/* Number of rows of each kind that a sequence has in this step, and of tokens to draw. */
typedef struct {
    long context, query, drawn;
} counts;

static counts counts_of(const sequence *s) {
    const long there = s->step_ends[s->step], drawn = s->step_ends[s->step + 1] - there;
    if (s->step) return (counts){there - s->step_ends[s->step - 1], drawn, drawn};
    return (counts){1 + there, there + drawn, drawn};
}

static void add(counts *sum, counts one) {
    sum->context += one.context, sum->query += one.query, sum->drawn += one.drawn;
}

typedef struct {
    forward_input *inputs;
    long *tokens, *context_at, *query_at, *given, *token;
    double *uniform, *logp;
    sampling *sampling;
    float *context, *rows;
} scratch;

static int alloc(scratch *k, long count, counts all, long d) {
    const long longs = 2 * all.context + all.query + 2 * all.drawn, doubles = 2 * all.drawn;
    k->inputs = malloc(sizeof(forward_input) * count + sizeof(long) * longs +
                       sizeof(double) * doubles + sizeof(sampling) * all.drawn +
                       sizeof(float) * (all.context + all.query) * d);
    if (!k->inputs) return -1;
    k->sampling = (sampling *)(k->inputs + count), k->uniform = (double *)(k->sampling + all.drawn);
    k->logp = k->uniform + all.drawn, k->tokens = (long *)(k->logp + all.drawn);
    k->context_at = k->tokens + all.context, k->query_at = k->context_at + all.context;
    k->given = k->query_at + all.query, k->token = k->given + all.drawn;
    k->context = (float *)(k->token + all.drawn), k->rows = k->context + all.context * d;
    return 0;
}

/* Context rows are the tokens of the step before; in the first pass BOS, as token -1, and all known
 * tokens of the prefill. */
static void gather_inputs(const scratch *k, const sequence *s, counts before, counts own, long i) {
    const long there = s->step_ends[s->step], from = s->step ? s->step_ends[s->step - 1] : 0;
    long *tokens = k->tokens + before.context, *context_at = k->context_at + before.context;
    long *query_at = k->query_at + before.query;
    if (!s->step) *tokens++ = -1, *context_at++ = 0;
    for (long j = from; j < there; j++)
        *tokens++ = s->tokens[s->position[j]], *context_at++ = s->position[j] + 1;
    for (long j = there + own.drawn - own.query; j < there + own.drawn; j++)
        *query_at++ = s->position[j] + 1;
    for (long j = 0; j < own.drawn; j++) {
        const long at = s->position[there + j], to = before.drawn + j;
        k->uniform[to] = s->uniform[there + j], k->sampling[to] = s->sampling;
        k->given[to] = s->known[at] ? s->tokens[at] : -1;
    }
    const long low = s->step ? 1 + from : 0, high = s->step ? there : 0;
    k->inputs[i] = (forward_input){
        .keys = s->keys, .values = s->values,
        .prefix_state = s->prefix_state, .new_prefix_state = s->prefix_state,
        .n_context = own.context, .n_query = own.query,
        .low_start = low, .low_length = low + own.context,
        .high_start = high, .high_length = high + own.query, .padding_slot = s->padding_slot};
    if (s->step) return;
    k->inputs[i].strict = s->strict;
    k->inputs[i].low_limit = s->low_limit, k->inputs[i].high_limit = s->high_limit;
}

static void store_outputs(const scratch *k, sequence *s, long from, long drawn) {
    for (long j = 0; j < drawn; j++) {
        const long at = s->position[s->step_ends[s->step] + j];
        if (k->token[from + j] < 0)
            s->broken = 1;
        else
            s->tokens[at] = k->token[from + j], s->logp[at] = k->logp[from + j];
    }
    s->step++;
}

/* `logits`, (tokens drawn, outputs), gets the logits that were sampled from, sequence by sequence.
 * code and rope are tables of all positions. -1 if there is no memory; then nothing was drawn. */
int decode_step(const network *net, sequence *const *sequences, long count, const float *code,
                const float *rope, float *logits) {
    const long d = net->layers->query.depth;
    counts all = {0}, before = {0};
    for (long i = 0; i < count; i++) add(&all, counts_of(sequences[i]));
    scratch k;
    if (alloc(&k, count, all, d)) return -1;
    for (long i = 0; i < count; i++) {
        const counts own = counts_of(sequences[i]);
        gather_inputs(&k, sequences[i], before, own, i);
        add(&before, own);
    }
    for (long i = 0; i < all.context; i++)
        memcpy(k.context + i * d, k.tokens[i] < 0 ? net->bos : net->embedding + k.tokens[i] * d,
               sizeof(float) * d);
    int failed = forward_pass(net, k.inputs, count, code, rope, k.context, k.context_at, k.query_at,
                              k.rows);
    if (!failed) {
        before = (counts){0};
        for (long i = 0; i < count; i++) { /* move the rows that are sampled from to the front */
            const counts own = counts_of(sequences[i]);
            memmove(k.rows + before.drawn * d, k.rows + (before.query + own.query - own.drawn) * d,
                    sizeof(float) * own.drawn * d);
            add(&before, own);
        }
        skinny_product(&net->head, k.rows, logits, all.drawn);
        failed = sample_rows(logits, k.uniform, k.given, k.sampling, all.drawn, net->head.outputs,
                             k.token, k.logp);
    }
    for (long i = 0, from = 0; i < count && !failed; i++) {
        const long drawn = counts_of(sequences[i]).drawn;
        store_outputs(&k, sequences[i], from, drawn);
        from += drawn;
    }
    free(k.inputs);
    return failed;
}
