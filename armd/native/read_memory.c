/* How fast does memory read? A loop that only adds what it reads, in all threads: the ceiling that the
 * speed of decoding is compared with. */
#include "gemm.h"

double read_memory(const float *data, long count) {
    double total = 0;
#pragma omp parallel for reduction(+ : total) schedule(static)
    for (long block = 0; block < count / 4096; block++) {
        vec sum[8] = {{0}};
        for (const float *at = data + block * 4096, *end = at + 4096; at < end; at += 64)
            for (int i = 0; i < 8; i++) sum[i] += *(const vec *)(at + 8 * i);
        for (int i = 0; i < 8; i++)
            for (int lane = 0; lane < 8; lane++) total += sum[i][lane];
    }
    return total;
}
