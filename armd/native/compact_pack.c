/* Packing float32 weights into the panels of compact.h, and back. */
#include "compact.h"
#include <string.h>

enum { UPPER = 128, COUNT = 8, NONE = 64 }; /* values of the upper seven bits of an exponent; codes */

typedef struct {
    uint8_t upper[COUNT];
    int8_t code[UPPER]; /* NONE: an exception */
} codes;

static uint32_t bits_at(const float *weight) {
    uint32_t bits;
    memcpy(&bits, weight, sizeof(bits));
    return bits;
}

static long lanes_of(long outputs, long panel) {
    const long left = outputs - panel * WIDTH;
    return left < WIDTH ? left : WIDTH;
}

/* The codes of a panel; the number of its exceptions. */
static long choose(const float *weight, long lanes, long depth, codes *c) {
    long apart[8][UPPER] = {{0}}, number[UPPER] = {0}, left = lanes * depth;
    for (long i = 0; i < lanes * depth; i++) /* a counter would wait for itself */
        apart[i % 8][bits_at(weight + i) >> 24 & (UPPER - 1)]++;
    for (int i = 0; i < 8 * UPPER; i++) number[i % UPPER] += apart[i / UPPER][i % UPPER];
    memset(c->code, NONE, sizeof(c->code));
    for (int i = 0; i < COUNT; i++) {
        int most = 0;
        for (int upper = 1; upper < UPPER; upper++) most = number[upper] > number[most] ? upper : most;
        c->upper[i] = (uint8_t)most, left -= number[most];
        if (number[most]) c->code[most] = (int8_t)i;
        number[most] = 0;
    }
    return left;
}

/* weight (outputs, depth); starts (panels + 1), as in compact.h. */
void compact_count(const float *weight, long outputs, long depth, uint32_t *starts) {
    const long panels = (outputs + WIDTH - 1) / WIDTH;
    starts[0] = 0;
#pragma omp parallel for schedule(static)
    for (long p = 0; p < panels; p++) {
        codes c;
        starts[p + 1] = (uint32_t)choose(weight + p * WIDTH * depth, lanes_of(outputs, p), depth, &c);
    }
    for (long p = 0; p < panels; p++) starts[p + 1] += starts[p];
}

/* Where an exception is and its upper byte are written down at `to`; what comes behind. */
static uint32_t *note(uint32_t *to, long k, long lane, uint32_t bits) {
    *to = (uint32_t)(k * WIDTH + lane) << 8 | bits >> 24;
    return to + 1;
}

static void store_low(uint8_t *to, uint32_t bits) {
    to[0] = (uint8_t)bits, to[1] = (uint8_t)(bits >> 8), to[2] = (uint8_t)(bits >> 16);
}

/* Inputs k and k + 1 of 16 outputs, `depth` numbers apart; `count` of them are there. */
static uint32_t *pack_pair(const float *weight, long lanes, long depth, long k, long count,
                           const codes *c, uint32_t *exceptions, uint8_t *pair) {
    int odd_ones = 0;
    for (long lane = 0; lane < lanes; lane++) {
        const float *at = weight + lane * depth + k;
        const uint32_t even = bits_at(at), odd = count > 1 ? bits_at(at + 1) : (uint32_t)c->upper[0] << 24;
        const int one = c->code[even >> 24 & (UPPER - 1)], two = c->code[odd >> 24 & (UPPER - 1)];
        store_low(pair + 3 * lane, even);
        store_low(pair + ODD + 3 * lane, odd);
        const uint32_t signs = even >> 31 << 6 | odd >> 31 << 7;
        pair[CODES + lane] = (uint8_t)((one & 7) | (two & 7) << 3 | signs);
        if (one == NONE) exceptions = note(exceptions, k, lane, even);
        odd_ones |= two;
    }
    for (long lane = 0; lane < lanes && odd_ones & NONE; lane++) {
        const uint32_t odd = bits_at(weight + lane * depth + k + 1);
        if (c->code[odd >> 24 & (UPPER - 1)] == NONE) exceptions = note(exceptions, k + 1, lane, odd);
    }
    return exceptions;
}

/* Outputs past the last one have code 0 and no other bits. */
static void pack_panel(const float *weight, long lanes, long depth, uint32_t *exceptions,
                       uint8_t *panel) {
    codes c;
    choose(weight, lanes, depth, &c);
    for (int i = 0; i < TABLES / 2; i++) {
        panel[i] = (uint8_t)(c.upper[i % COUNT] - 2 * i);
        panel[TABLES / 2 + i] = c.upper[i / COUNT];
    }
    for (long k = 0; k < depth; k += 2)
        exceptions = pack_pair(weight, lanes, depth, k, depth - k, &c, exceptions,
                               panel + TABLES + k / 2 * PAIR);
}

/* weight (outputs, depth); exceptions have their starts; panels are zero. */
void compact_pack(const float *weight, long outputs, long depth, uint32_t *exceptions,
                  uint8_t *panels) {
    const long count = (outputs + WIDTH - 1) / WIDTH;
#pragma omp parallel for schedule(static)
    for (long p = 0; p < count; p++)
        pack_panel(weight + p * WIDTH * depth, lanes_of(outputs, p), depth,
                   exceptions + count + 1 + exceptions[p], panels + p * compact_bytes(depth));
}

static void unpack_panel(const matrix *w, long p, float *weight) {
    const uint8_t *panel = (const uint8_t *)w->panels + p * compact_bytes(w->depth);
    const long lanes = lanes_of(w->outputs, p);
    const uint32_t *next = first_exception(w, p), *end = first_exception(w, p + 1);
    for (long k = 0; k < w->depth; k++) {
        const uint8_t *pair = panel + TABLES + k / 2 * PAIR;
        for (long lane = 0; lane < lanes; lane++) {
            const uint8_t *low = pair + k % 2 * ODD + 3 * lane, byte = pair[CODES + lane];
            const int even = panel[byte % 64] + 2 * byte, odd = panel[64 + byte % 64] | (byte & 128);
            uint32_t upper = (uint8_t)(k % 2 ? odd : even);
            if (next < end && *next >> 8 == k * WIDTH + lane) upper = *next++ & 255;
            const uint32_t bits = low[0] | low[1] << 8 | low[2] << 16 | upper << 24;
            memcpy(weight + lane * w->depth + k, &bits, sizeof(bits));
        }
    }
}

/* weight (outputs, depth) of a matrix. */
void compact_unpack(const matrix *w, float *weight) {
#pragma omp parallel for schedule(static)
    for (long p = 0; p < (w->outputs + WIDTH - 1) / WIDTH; p++)
        unpack_panel(w, p, weight + p * WIDTH * w->depth);
}
