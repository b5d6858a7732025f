/* How a file that is compiled for several tables asks for weights that it will read: SL_ASK, the
 * cache that they are to come to; SL_ASK_AHEAD, so many bytes further than what comes next; and
 * SL_ASK_FEW_K, values of k, for each byte of one, that a few rows are multiplied with at a time,
 * so that what was asked for stays in that cache beside them; and SL_ASK_PAGES, bytes of weights
 * whose pages are looked for at a time. Integer products ask the second cache in any case, for the
 * strip that comes next or, where that would be over before memory answers, SL_ASK_STRIPS bytes
 * ahead.
 *
 * Most processors are best asked for what comes next, to the first cache. Zen 4 waits for few lines
 * of that at a time, but for many of the second, which holds more, and wants to be asked earlier.
 */
#ifndef SL_KERNEL_AVX512_ASK_H
#define SL_KERNEL_AVX512_ASK_H

#include "kernel/kernel_int.h"

#include <immintrin.h>

#ifndef SL_ASK
#define SL_ASK        _MM_HINT_T0
#define SL_ASK_AHEAD  0u
#define SL_ASK_FEW_K  256u
#define SL_ASK_PAGES  57344u
#define SL_ASK_STRIPS 0u
#endif

/* Any address may be asked for. */
SL_INLINE void sl_ask_line(const void *p) {
    _mm_prefetch((const char *)p, SL_ASK);
}

#endif
