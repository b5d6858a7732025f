#include "kernel/cpu.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>

#define ECX_FMA     (1u << 12)
#define ECX_OSXSAVE (1u << 27)
#define ECX_AVX     (1u << 28)
#define ECX_F16C    (1u << 29)
#define EBX_AVX2    (1u << 5)
#define XCR0_YMM    6u /* SSE and AVX state */

static bool has_avx2(void) {
    const unsigned need = ECX_FMA | ECX_OSXSAVE | ECX_AVX | ECX_F16C;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need) return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & XCR0_YMM) != XCR0_YMM) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & EBX_AVX2);
}
#else
static bool has_avx2(void) {
    return false;
}
#endif

/* Asked for every softmax, and under a hypervisor each CPUID leaves the guest. Threads that come
 * first at the same time find the same answer. */
bool sl_cpu_has_avx2(void) {
    static atomic_int known; /* 0: not asked yet; 1: no; 2: yes */
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == 0) {
        k = has_avx2() ? 2 : 1;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k == 2;
}
