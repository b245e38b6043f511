/* What sample.c is asked. */
#pragma once

/* How a row's token is chosen. Temperature 0 takes the largest; a filter of 0 is off. */
typedef struct {
    double temperature, top_p, min_p;
    long top_k;
} choice;

int draw_rows(const float *logits, const double *uniform, const long *given, const choice *choices,
              long rows, long count, long *token, double *logp);
