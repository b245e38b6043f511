/* The plan and state of a sequence, and the forward pass of one_stream.c. */
#pragma once
#include "forward.h"
#include "sample.h"

/* One sequence of n tokens. "Generation order" is the order in which tokens are written. */
typedef struct {
    void *const *keys, *const *values; /* KV cache of each layer */
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
    long read, upto;   /* step 0: slots whose rows are in the cache before and after this pass. Where
                        * `upto` is less than all slots of the prefill, nothing is drawn. */
    long broken;       /* its logits were NaN or infinite; it cannot go on */
    long prefix_rows;  /* NEIGHBOR: how many context rows prefix_state sums over so far */
    long bf16_cache;   /* keys and values are bf16 numbers, not floats */
    long n_top;        /* how many of the most probable tokens to report with each one drawn */
    long *top_token;   /* (n, n_top), in generation order */
    double *top_logp;
    long steps, eos;   /* for decode_steps: how many steps it has, and the token it may end at, or -1 */
} sequence;

/* The slots of the context rows of this pass: from the first to the number of slots used. */
static inline long first_slot(const sequence *s) {
    return s->step ? 1 + s->step_ends[s->step - 1] : s->read;
}
static inline long slots_used(const sequence *s) {
    return s->step ? 1 + s->step_ends[s->step] : s->upto;
}

static inline long tokens_drawn(const sequence *s) {
    const long there = s->step_ends[s->step];
    return slots_used(s) <= there ? 0 : s->step_ends[s->step + 1] - there;
}

int one_stream_pass(const network *net, sequence *const *sequences, long count, const float *code,
                    const float *rope, float *out);
