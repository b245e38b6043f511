/* Products with 8-bit and 4-bit weights. Each 32 inputs of an output share a scale (bf16), and so do
 * each 32 numbers of a row (float), which is quantised to int8 as it comes. Within such a group
 * integers are multiplied and added, exactly; the groups are then added in their order:
 *
 *   y = sum over groups of  integer * (weight scale * row scale)      one rounding each (fma)
 *
 * So every machine, every number of rows and of threads gives the same bits as the plain form.
 *
 * A panel of 16 outputs is [groups][16] scales, filled up to whole cache lines, then [groups] blocks
 * of 16 x 32 weights (see quantized_dot.h). Inputs are filled up to whole groups with zeros. */
#include "quantized_dot.h"

/* Bytes between what is read and what is prefetched: FAR into the second cache, because the first one
 * has fewer misses under way than memory needs, and NEAR from there into the first. One or two rows go
 * through 8-bit weights faster than memory brings them: there prefetches far ahead are in the way. */
enum { NEAR = 2048, FAR = 8192, NEAR_OF_FEW = 512, FAR_OF_FEW = 3072 };

INLINE int bits_of(const matrix *w) { return w->format == Q8 ? 8 : 4; }
INLINE long scale_bytes(long groups) { return (groups * WIDTH * 2 + 63) / 64 * 64; }

INLINE const uint8_t *panel_at(const matrix *w, long panel) {
    const long groups = groups_of(w);
    const long bytes = scale_bytes(groups) + groups * 64 * bits_of(w);
    return (const uint8_t *)w->panels + panel * bytes;
}

/* Numbers that are not finite make the scale NaN, and so every output of the row. */
void quantize_group(const float *x, long width, long format, row_group *to) {
    float all[GROUP] = {0};
    if (width < GROUP) x = memcpy(all, x, sizeof(float) * width);
    uint32_t most = 0;
    for (int i = 0; i < GROUP; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof(bits));
        bits &= 0x7fffffff; /* of positive floats the larger one has the larger bits */
        most = bits > most ? bits : most;
    }
    float largest;
    memcpy(&largest, &most, sizeof(float));
    memset(to, 0, sizeof(*to));
    if (most >= 0x7f800000) to->scale = NAN;
    if (most >= 0x7f800000 || largest < 1e-30f) return;
    to->scale = largest / 127;
    to->offset = -round_values(x, 127 / largest, to->value) * (format == Q8 ? 128 : 8);
}

/* What is prefetched while a group is used. Scales count, too: so much of the panel as a group takes
 * of it, evenly. With `whole` that is what lies FAR and NEAR bytes behind, otherwise lines from .. upto
 * of what lies `far` bytes behind. */
typedef struct {
    int whole;
    long far, from, upto;
} fetching;

INLINE void fetch_group(const uint8_t *panel, long g, const int bits, const int rows,
                        const fetching *f) {
    const int few = bits == 8 && rows <= 2;
    const uint8_t *at = panel + g * (2 * WIDTH + 64 * bits);
    for (long i = f->from; i < f->upto; i++) __builtin_prefetch(at + f->far + i * 64, 0, 2);
    if (!f->whole) return;
#pragma GCC unroll 9
    for (int i = 0; i <= bits; i++) {
        __builtin_prefetch(at + (few ? FAR_OF_FEW : FAR) + i * 64, 0, 2);
        __builtin_prefetch(at + (few ? NEAR_OF_FEW : NEAR) + i * 64);
    }
}

/* `rows` rows against LANES outputs of a panel; `x` has `groups` groups a row. */
INLINE void lanes(const uint16_t *scales, const uint8_t *weights, const row_group *x, long groups,
                  float *out, const int bits, const int rows, const fetching fetch) {
    floats sum[ROWS] = {0};
    for (long g = 0; g < groups; g++) {
        const uint8_t *block = weights + g * 64 * bits;
        fetch_group((const uint8_t *)scales, g, bits, rows, &fetch);
        const row_group *own = x + g;
        integers d[ROWS];
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) d[r] = begin_dot(own + r * groups, bits);
#pragma GCC unroll 8
        for (int i = 0; i < bits; i++) {
            const weights_part v = load_part(block + i * 64, bits);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
                d[r] = add_part(d[r], v, own[r * groups].value + 4 * i, bits);
        }
        const floats scale = load_scales(scales + g * WIDTH);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const row_group *of = own + r * groups;
            sum[r] = add_scaled(sum[r], end_dot(d[r], of, bits), scale, of->scale);
        }
    }
    for (int r = 0; r < rows; r++) memcpy(out + r * WIDTH, sum + r, sizeof(floats));
}

INLINE void some_rows(const uint8_t *panel, const row_group *x, long groups, float *out,
                      const int bits, const int rows, fetching fetch) {
    const uint8_t *weights = panel + scale_bytes(groups);
    for (int i = 0; i < WIDTH; i += LANES) {
        lanes((const uint16_t *)panel + i, weights + i * 4, x, groups, out + i, bits, rows, fetch);
        fetch = (fetching){0}; /* the other lanes of a line came with the first ones */
    }
}

#define CASE(n)                                                                                    \
    case n:                                                                                        \
        some_rows(panel, x, groups, out, bits, n < ROWS ? n : ROWS, fetch);                        \
        break;

INLINE void any_rows(const uint8_t *panel, const row_group *x, long groups, float *out,
                     const int bits, long rows, fetching fetch) {
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
    }
}

/* A whole panel is one vector or two. */
INLINE void store_outputs(const float *made, float *to, long width, int add) {
    if (width == WIDTH && add)
        for (int j = 0; j < WIDTH; j++) to[j] += made[j];
    else if (width == WIDTH)
        memcpy(to, made, sizeof(float) * WIDTH);
    else
        for (long j = 0; j < width; j++) to[j] = add ? to[j] + made[j] : made[j];
}

/* One panel against quantised rows: y (rows, outputs). */
void quantized_panel(const matrix *w, const row_group *x, float *y, long rows, int add, long panel) {
    const long groups = groups_of(w), first = panel * WIDTH, left = w->outputs - first;
    const long width = left < WIDTH ? left : WIDTH, parts = (rows + ROWS - 1) / ROWS;
    const uint8_t *at = panel_at(w, panel);
    const long lines = parts > 1 ? bits_of(w) + 1 : 0, next = panel_at(w, panel + 1) - at;
    for (long i = 0; i < parts; i++) {
        const long from = i * rows / parts, upto = (i + 1) * rows / parts;
        const fetching fetch = {parts == 1, next, i * lines / parts, (i + 1) * lines / parts};
        float out[ROWS * WIDTH];
        if (w->format == Q8)
            any_rows(at, x + from * groups, groups, out, 8, upto - from, fetch);
        else
            any_rows(at, x + from * groups, groups, out, 4, upto - from, fetch);
        for (long r = from; r < upto; r++) {
            float *made = out + (r - from) * WIDTH, *to = y + r * w->outputs + first;
            store_outputs(made, to, width, add);
        }
    }
}

/* The weight of output `lane` of a panel and input k. */
INLINE float weight_at(const uint8_t *panel, long groups, const int bits, long lane, long k) {
    const long g = k / GROUP, i = k % GROUP;
    const uint8_t *block = panel + scale_bytes(groups) + g * 64 * bits + lane * 4 + i % 4;
    const int value = bits == 8 ? block[i / 4 * 64] - 128
                                : (block[i / 4 % 4 * 64] >> (i < 16 ? 0 : 4) & 15) - 8;
    uint32_t scale = (uint32_t)((const uint16_t *)panel)[g * WIDTH + lane] << 16;
    float of;
    memcpy(&of, &scale, sizeof(of));
    return of * value;
}

/* Inputs first .. first + deep of a panel as floats, [deep][16]. */
void widen_block(const matrix *w, long panel, long first, long deep, float *to) {
    const uint8_t *at = panel_at(w, panel);
    for (long k = 0; k < deep; k++)
        for (long lane = 0; lane < WIDTH; lane++)
            to[k * WIDTH + lane] = bits_of(w) == 8
                                       ? weight_at(at, groups_of(w), 8, lane, first + k)
                                       : weight_at(at, groups_of(w), 4, lane, first + k);
}

/* Weights first .. first + count of one output. */
void weight_row(const matrix *w, long output, long first, long count, float *to) {
    const uint8_t *at = panel_at(w, output / WIDTH);
    for (long k = 0; k < count; k++)
        to[k] = weight_at(at, groups_of(w), bits_of(w), output % WIDTH, first + k);
}
