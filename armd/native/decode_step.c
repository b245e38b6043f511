/* Decode steps for many sequences, each at its own step: forward pass, head and sampling of one or of
 * some steps in one call. The plan of a sequence is known when it begins and is stored here, so that
 * nothing has to be prepared between two steps. */
#include "one_stream.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The two-stream pass (query = "prefix" or "mean"): number of rows of each kind that a sequence has. */
typedef struct {
    long context, query;
} counts;

/* The first token that has a query row: in the prefill the given tokens have one, too. */
static long first_query(const sequence *s) {
    return s->step ? s->step_ends[s->step] : s->read ? s->read - 1 : 0;
}

static counts counts_of(const sequence *s) {
    const long there = slots_used(s);
    return (counts){there - first_slot(s), there - 1 + tokens_drawn(s) - first_query(s)};
}

static void add(counts *sum, counts one) {
    sum->context += one.context, sum->query += one.query;
}

typedef struct {
    forward_input *inputs;
    long *context_at, *query_at, *visible;
    float *context, *rows;
} row_buffers;

static int alloc_rows(row_buffers *b, long count, counts all, long d) {
    b->inputs = malloc(sizeof(forward_input) * count + 2 * sizeof(long) * (all.context + all.query) +
                       sizeof(float) * (all.context + all.query) * d);
    if (!b->inputs) return -1;
    b->context_at = (long *)(b->inputs + count), b->query_at = b->context_at + all.context;
    b->visible = b->query_at + all.query;
    b->context = (float *)(b->visible + all.context + all.query);
    b->rows = b->context + all.context * d;
    return 0;
}

/* Context rows are the tokens of the step before; in the prefill BOS and known tokens. */
static void gather_inputs(const row_buffers *b, const network *net, const sequence *s, counts before,
                          counts own, long i) {
    const long d = net->layers->query.depth, low = first_slot(s), high = first_query(s);
    long *context_at = b->context_at + before.context, *query_at = b->query_at + before.query;
    float *context = b->context + before.context * d;
    for (long slot = low; slot < low + own.context; slot++, context += d) {
        const long at = slot ? s->position[slot - 1] : -1;
        if (slot)
            token_row(net, s->tokens[at], 0, d, context);
        else
            memcpy(context, net->bos, sizeof(float) * d);
        *context_at++ = at + 1;
    }
    for (long j = high; j < high + own.query; j++) *query_at++ = s->position[j] + 1;
    b->inputs[i] = (forward_input){
        .keys = s->keys, .values = s->values,
        .prefix_state = s->prefix_state, .new_prefix_state = s->prefix_state,
        .n_context = own.context, .n_query = own.query,
        .low_start = low, .low_length = low + own.context,
        .high_start = high, .high_length = high + own.query, .padding_slot = s->padding_slot,
        .bf16 = s->bf16_cache};
    if (s->step) return;
    long *visible = b->visible + before.context + before.query;
    memcpy(visible, s->low_limit + low, sizeof(long) * own.context);
    memcpy(visible + own.context, s->strict + high, sizeof(long) * own.query);
    b->inputs[i].strict = s->strict + high;
    b->inputs[i].low_limit = visible, b->inputs[i].high_limit = s->high_limit + high;
}

/* `out`, (tokens to draw, d), gets the final rows that are sampled from. -1 if there is no memory. */
static int two_stream_pass(const network *net, sequence *const *sequences, long count,
                           const float *code, const float *rope, float *out) {
    const long d = net->layers->query.depth;
    counts all = {0}, before = {0};
    for (long i = 0; i < count; i++) add(&all, counts_of(sequences[i]));
    row_buffers b;
    if (alloc_rows(&b, count, all, d)) return -1;
    for (long i = 0; i < count; i++) {
        const counts own = counts_of(sequences[i]);
        gather_inputs(&b, net, sequences[i], before, own, i);
        add(&before, own);
    }
    const int failed = forward_pass(net, b.inputs, count, code, rope, b.context, b.context_at,
                                    b.query_at, b.rows);
    const float *end = b.rows;
    for (long i = 0; i < count && !failed; i++) { /* without the query rows of known tokens */
        const long drawn = tokens_drawn(sequences[i]);
        end += counts_of(sequences[i]).query * d;
        memcpy(out, end - drawn * d, sizeof(float) * drawn * d);
        out += drawn * d;
    }
    free(b.inputs);
    return failed;
}

/* What sampling reads and writes, one entry a token. */
typedef struct {
    sampling *sampling;
    const unsigned char **seen;
    double *uniform, *logp;
    long *given, *token;
    float *rows;
} scratch;

static int alloc(scratch *k, long drawn, long d) {
    k->sampling = malloc(1 + drawn * (sizeof(sampling) + sizeof(char *) + 2 * sizeof(double) +
                                  2 * sizeof(long) + d * sizeof(float)));
    if (!k->sampling) return -1;
    k->seen = (const unsigned char **)(k->sampling + drawn);
    k->uniform = (double *)(k->seen + drawn), k->logp = k->uniform + drawn;
    k->given = (long *)(k->logp + drawn), k->token = k->given + drawn;
    k->rows = (float *)(k->token + drawn);
    return 0;
}

static void gather_sampling(const scratch *k, const sequence *s, long from) {
    const long there = s->step_ends[s->step];
    for (long j = 0; j < tokens_drawn(s); j++) {
        const long at = s->position[there + j], to = from + j;
        k->uniform[to] = s->uniform[there + j], k->sampling[to] = s->sampling;
        k->seen[to] = s->seen, k->given[to] = s->known[at] ? s->tokens[at] : -1;
    }
}

static void store_outputs(const scratch *k, sequence *s, long from, long drawn) {
    for (long j = 0; j < drawn; j++) {
        const long at = s->position[s->step_ends[s->step] + j];
        if (k->token[from + j] < 0) {
            s->broken = 1;
            continue;
        }
        s->tokens[at] = k->token[from + j], s->logp[at] = k->logp[from + j];
        if (s->seen) s->seen[k->token[from + j]] = 1;
    }
    if (slots_used(s) > s->step_ends[s->step]) s->step++;
}

/* The n_top largest of each row of logits, the largest first, as log-probabilities. */
static void store_top(const scratch *k, sequence *s, long from, const float *logits, long outputs) {
    for (long j = 0; j < tokens_drawn(s); j++) {
        const float *row = logits + (from + j) * outputs;
        const long at = (s->step_ends[s->step] + j) * s->n_top;
        long *best = s->top_token + at, count = 0;
        if (k->token[from + j] < 0) return; /* the sequence ends here */
        for (long v = 0; v < outputs; v++) {
            if (count == s->n_top && row[v] <= row[best[count - 1]]) continue;
            long i = count < s->n_top ? count++ : count - 1;
            for (; i > 0 && row[best[i - 1]] < row[v]; i--) best[i] = best[i - 1];
            best[i] = v;
        }
        const double log_sum = row[k->token[from + j]] - k->logp[from + j];
        for (long i = 0; i < count; i++) s->top_logp[at + i] = row[best[i]] - log_sum;
    }
}

/* `logits`, (tokens drawn, outputs), gets the logits that were sampled from, sequence by sequence.
 * code and rope are tables of all positions. -1 if there is no memory; then nothing was drawn, but
 * sums over the context may have gone on: the sequences are lost. */
int decode_step(const network *net, sequence *const *sequences, long count, const float *code,
                const float *rope, float *logits) {
    const int one_stream = net->query == SHIFT || net->query == NEIGHBOR;
    long all = 0;
    for (long i = 0; i < count; i++) all += tokens_drawn(sequences[i]);
    scratch k;
    if (alloc(&k, all, net->layers->query.depth)) return -1;
    for (long i = 0, from = 0; i < count; from += tokens_drawn(sequences[i++]))
        gather_sampling(&k, sequences[i], from);
    int failed = one_stream ? one_stream_pass(net, sequences, count, code, rope, k.rows)
                            : two_stream_pass(net, sequences, count, code, rope, k.rows);
    if (!failed) {
        failed = skinny_product(&net->head, k.rows, logits, all) ||
                 sample_rows(logits, k.uniform, k.given, k.sampling, k.seen, all, net->head.outputs,
                             k.token, k.logp)
                     ? -1
                     : 0;
    }
    for (long i = 0, from = 0; i < count && !failed; i++) {
        const long drawn = tokens_drawn(sequences[i]);
        if (sequences[i]->n_top) store_top(&k, sequences[i], from, logits, net->head.outputs);
        store_outputs(&k, sequences[i], from, drawn);
        from += drawn;
    }
    free(k.sampling);
    return failed;
}

/* Whether nobody has to look at the sequence before its next step: it is not at its end or at an EOS,
 * and what it drew was not its first token, which is sent at once. */
static int goes_on(const sequence *s) {
    if (s->broken || s->step < 2 || s->step == s->steps) return 0;
    for (long i = s->step_ends[s->step - 1]; i < s->step_ends[s->step]; i++)
        if (s->tokens[s->position[i]] == s->eos) return 0;
    return 1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* One step, and more while all sequences go on, `seconds` have not passed, `stop` (which another thread
 * may set) is 0 and `logits` has room for the tokens of the step, `room` of them. Returns the number of
 * steps; -1 if there is no memory for one of them. */
long decode_steps(const network *net, sequence *const *sequences, long count, const float *code,
                  const float *rope, float *logits, long room, double seconds, const int *stop) {
    const double end = now() + seconds;
    for (long steps = 0;;) {
        if (decode_step(net, sequences, count, code, rope, logits)) return -1;
        steps++;
        long drawn = 0;
        for (long i = 0; i < count; i++) {
            if (!goes_on(sequences[i])) return steps;
            drawn += tokens_drawn(sequences[i]);
        }
        if (drawn > room || now() >= end || __atomic_load_n(stop, __ATOMIC_RELAXED)) return steps;
    }
}
