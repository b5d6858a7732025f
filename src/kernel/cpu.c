#include "kernel/cpu.h"

#include <stdatomic.h>

typedef enum level { LEVEL_UNKNOWN, LEVEL_NONE, LEVEL_AVX2, LEVEL_AVX512, LEVEL_AMX } level;

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ECX_FMA             (1u << 12)
#define ECX_OSXSAVE         (1u << 27)
#define ECX_AVX             (1u << 28)
#define ECX_F16C            (1u << 29)
#define EBX_AVX2            (1u << 5)
#define EBX_AVX512          (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define ECX_VNNI            (1u << 11)
#define EDX_AMX             (1u << 24 | 1u << 25) /* tiles, int8 */
#define XCR0_AMX            0x60000u
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18
#define XCR0_YMM            6u    /* SSE and AVX state */
#define XCR0_ZMM            0xe6u /* and masks, all of ZMM0..31 */

/* Linux gives a process the registers of tiles when it asks. */
static bool tiles_granted(void) {
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static level detect(void) {
    const unsigned need = ECX_FMA | ECX_OSXSAVE | ECX_AVX | ECX_F16C;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need) return LEVEL_NONE;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & XCR0_YMM) != XCR0_YMM) return LEVEL_NONE;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & EBX_AVX2)) return LEVEL_NONE;
    bool wide = (low & XCR0_ZMM) == XCR0_ZMM && (b & EBX_AVX512) == EBX_AVX512;
    if (!wide || !(c & ECX_VNNI)) return LEVEL_AVX2;
    bool tiles = (low & XCR0_AMX) == XCR0_AMX && (d & EDX_AMX) == EDX_AMX && tiles_granted();
    return tiles ? LEVEL_AMX : LEVEL_AVX512;
}
#else
static level detect(void) {
    return LEVEL_NONE;
}
#endif

/* Asked for every softmax, and under a hypervisor each CPUID leaves the guest. Threads that come
 * first at the same time find the same answer. */
static level cpu(void) {
    static atomic_int known;
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == LEVEL_UNKNOWN) {
        k = (int)detect();
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return (level)k;
}

bool sl_cpu_has_avx2(void) {
    return cpu() >= LEVEL_AVX2;
}

bool sl_cpu_has_amx(void) {
    return cpu() >= LEVEL_AMX;
}

bool sl_cpu_has_avx512(void) {
    return cpu() >= LEVEL_AVX512;
}
