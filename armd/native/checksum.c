/* Has a weight changed? A checksum that depends on every bit and on its place, at the speed of memory. */
#include <stdint.h>
#include <string.h>

enum { LANES = 32 }; /* words side by side, so that no product waits for the last */
static const uint64_t factor = 0x9e3779b97f4a7c15; /* odd: two words never become one */

uint64_t checksum(const unsigned char *data, long bytes) {
    uint64_t lanes[LANES] = {0}, word[LANES], found = (uint64_t)bytes;
    for (; bytes > 0; data += sizeof word, bytes -= sizeof word) {
        if (bytes < (long)sizeof word) memset(word, 0, sizeof word);
        memcpy(word, data, bytes < (long)sizeof word ? bytes : (long)sizeof word);
        for (int i = 0; i < LANES; i++) {
            const uint64_t x = lanes[i] ^ word[i];
            lanes[i] = (x << 23 | x >> 41) * factor; /* the highest bits act on all others, too */
        }
    }
    for (int i = 0; i < LANES; i++) {
        found = (found ^ lanes[i]) * factor;
        found ^= found >> 32;
    }
    return found;
}
