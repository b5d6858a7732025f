#include "kernel/cpu.h"

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

bool sl_cpu_has_avx2(void) {
    return has_avx2();
}
