/* float32 weights in 28 bits, without loss: what compact.c multiplies and compact_pack.c makes.
 *
 * The low 24 bits of a weight (all but its sign and the upper seven bits of its exponent) are stored as
 * they are. Those seven bits have few values in a panel of 16 outputs: the eight most frequent ones
 * get codes of three bits. A weight with another value, one of about ten thousand, is an exception: its
 * code is 0, and its place and its true upper byte are listed beside the panels.
 *
 * A panel is two tables of 64 bytes, then pairs of inputs, filled up to whole cache lines. A pair is 16 x 24
 * bits of the even input, 16 bytes of codes and signs, 16 x 24 bits of the odd input, so that each of
 * two loads of 64 bytes has one input and the codes. A byte of codes has the even code in bits 0 - 2, the
 * odd one in bits 3 - 5, the even sign in bit 6 and the odd one in bit 7. Its lowest six bits are
 * the index into both tables:
 *
 *   even: upper byte = table + 2 * byte, modulo 256     odd: upper byte = table | (byte & 128) */
#pragma once
#include "gemm.h"

enum { TABLES = 128, PAIR = 112, CODES = 48, ODD = 64 }; /* bytes */

INLINE long compact_bytes(long depth) { return (TABLES + (depth + 1) / 2 * PAIR + 63) / 64 * 64; }

/* Exceptions of a matrix: for each panel where its own begin, and where the last ones end; then all of
 * them, place << 8 | upper byte, where place = input * 16 + output in the panel, in ascending order. */
INLINE const uint32_t *first_exception(const matrix *w, long panel) {
    return w->exceptions + (w->outputs + WIDTH - 1) / WIDTH + 1 + w->exceptions[panel];
}

int has_compact(void);
void compact_count(const float *weight, long outputs, long depth, uint32_t *starts);
void compact_pack(const float *weight, long outputs, long depth, uint32_t *exceptions, uint8_t *panels);
void compact_unpack(const matrix *w, float *weight);
void compact_panels(const matrix *w, const float *x, float *y, long rows, int add, long p, long span);
