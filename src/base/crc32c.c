/* CRC-32C: eight bytes at a time by tables; or three parts of the data side by side by the
 * processor's instruction, whose latency is three cycles, put together by a table that moves a sum
 * over as many zeros as a part has bytes. */
#include "base/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#define POLYNOMIAL 0x82F63B78u /* bits in reverse: bit 31 is x^0 */
#define PART       1024u       /* bytes of each of three parts */

static uint32_t slice[8][256]; /* [k][b]: of byte b with k zeros behind it */
static uint32_t jump[4][256];  /* of byte k of a sum, with PART zeros behind it */
static pthread_once_t made = PTHREAD_ONCE_INIT;

static uint32_t times_x(uint32_t a) {
    return a & 1 ? a >> 1 ^ POLYNOMIAL : a >> 1;
}

static uint32_t product(uint32_t a, uint32_t b) {
    uint32_t sum = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1, b = times_x(b))
        if (a & bit) sum ^= b;
    return sum;
}

static void make_tables(void) {
    uint32_t zeros = 1u << 31; /* x^(8 PART) */
    for (uint32_t i = 0; i < 8 * PART; i++) zeros = times_x(zeros);
    for (uint32_t b = 0; b < 256; b++) {
        slice[0][b] = b;
        for (int i = 0; i < 8; i++) slice[0][b] = times_x(slice[0][b]);
        for (int k = 0; k < 4; k++) jump[k][b] = product(zeros, b << 8 * k);
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++)
            slice[k][b] = slice[k - 1][b] >> 8 ^ slice[0][slice[k - 1][b] & 255];
}

static uint32_t over_part(uint32_t crc) {
    return jump[0][crc & 255] ^ jump[1][crc >> 8 & 255] ^ jump[2][crc >> 16 & 255] ^
           jump[3][crc >> 24];
}

static uint64_t load(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static uint32_t by_tables(uint32_t crc, const uint8_t *p, size_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v = load(p) ^ crc;
        crc = 0;
        for (int k = 0; k < 8; k++) crc ^= slice[7 - k][v >> 8 * k & 255];
    }
    for (; n; n--) crc = crc >> 8 ^ slice[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p,
                                                                 size_t n) {
    uint64_t a = crc;
    for (; n >= 3 * PART; n -= 3 * PART, p += 2 * PART) {
        uint64_t b = 0, c = 0;
        for (const uint8_t *end = p + PART; p < end; p += 8) {
            a = _mm_crc32_u64(a, load(p));
            b = _mm_crc32_u64(b, load(p + PART));
            c = _mm_crc32_u64(c, load(p + 2 * PART));
        }
        a = over_part((uint32_t)a) ^ b;
        a = over_part((uint32_t)a) ^ c;
    }
    for (; n >= 8; n -= 8, p += 8) a = _mm_crc32_u64(a, load(p));
    for (; n; n--) a = _mm_crc32_u8((uint32_t)a, *p++);
    return (uint32_t)a;
}

static int has_instruction(void) {
    return __builtin_cpu_supports("sse4.2");
}
#else
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t n) {
    return by_tables(crc, p, n);
}

static int has_instruction(void) {
    return 0;
}
#endif

uint32_t sl_crc32c(uint32_t crc, const void *data, size_t len) {
    pthread_once(&made, make_tables);
    return ~(has_instruction() ? by_instruction(~crc, data, len) : by_tables(~crc, data, len));
}

uint32_t sl_crc32c_portable(uint32_t crc, const void *data, size_t len) {
    pthread_once(&made, make_tables);
    return ~by_tables(~crc, data, len);
}
