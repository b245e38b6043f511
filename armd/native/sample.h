/* Types of sample.c. */
#pragma once

/* Sampling parameters. Temperature 0 takes the largest logit; a filter of 0 is off. */
typedef struct {
    double temperature, top_p, min_p;
    long top_k;
    double repetition_penalty; /* applied to tokens that the sequence has; 1 is off */
} sampling;

int sample_rows(const float *logits, const double *uniform, const long *given,
                const sampling *samplings, const unsigned char *const *seen, long rows, long count,
                long *token, double *logp);
