/* What the processor has and the operating system lets it use. */
#include "kernel/cpu.h"

#include <stdatomic.h>

/* Bits of what there is. */
enum {
    HAS_ASKED = 1,
    HAS_AVX2 = 2,
    HAS_AVX512 = 4,
    HAS_BF16 = 8,
    HAS_AMX = 16,
    HAS_DOTPROD = 32,
    HAS_FLUSH = 64,
    HAS_I8MM = 128,
    HAS_VNNI = 256
};

#include <stdio.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ECX_FMA             (1u << 12)
#define ECX_OSXSAVE         (1u << 27)
#define ECX_AVX             (1u << 28)
#define ECX_F16C            (1u << 29)
#define EBX_AVX2            (1u << 5)
#define EBX_CLFLUSHOPT      (1u << 23)
#define EBX_AVX512          (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define ECX_VNNI            (1u << 11)
#define EDX_AMX             (1u << 22 | 1u << 24 | 1u << 25) /* BF16, tiles, int8 */
#define EAX_BF16            (1u << 5)                        /* of subleaf 1 */
#define XCR0_AMX            0x60000u
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18
#define XCR0_YMM            6u    /* SSE and AVX state */
#define XCR0_ZMM            0xe6u /* and masks, all of ZMM0..31 */

/* Linux gives a process the registers of tiles when it asks. */
static bool tiles_granted(void) {
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static int detect_tables(void) {
    const unsigned need = ECX_FMA | ECX_OSXSAVE | ECX_AVX | ECX_F16C;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need) != need) return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & XCR0_YMM) != XCR0_YMM) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & EBX_AVX2)) return 0;
    bool wide = (low & XCR0_ZMM) == XCR0_ZMM && (b & EBX_AVX512) == EBX_AVX512;
    if (!wide) return HAS_AVX2;
    if (!(c & ECX_VNNI)) return HAS_AVX2 | HAS_AVX512;
    bool tiles = (low & XCR0_AMX) == XCR0_AMX && (d & EDX_AMX) == EDX_AMX && tiles_granted();
    int has = HAS_AVX2 | HAS_AVX512 | HAS_VNNI | (tiles ? HAS_AMX : 0);
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & EAX_BF16)) has |= HAS_BF16;
    return has;
}

static int detect(void) {
    unsigned a, b, c, d;
    bool flush = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & EBX_CLFLUSHOPT);
    return detect_tables() | (flush ? HAS_FLUSH : 0);
}

/* "GenuineIntel 6/207/2 Intel(R) Xeon(R) Processor": maker, family/model/stepping, name. */
static void describe(char *out, size_t cap) {
    unsigned a = 0, r[13] = {0};
    __get_cpuid(0, &a, &r[0], &r[2], &r[1]);
    char maker[13], *name = (char *)r;
    memcpy(maker, r, 12);
    maker[12] = 0;
    unsigned sig = 0, b, c, d;
    __get_cpuid(1, &sig, &b, &c, &d);
    unsigned family = sig >> 8 & 15, model = sig >> 4 & 15;
    if (family == 6 || family == 15) model |= (sig >> 16 & 15) << 4;
    if (family == 15) family += sig >> 20 & 255;
    memset(r, 0, sizeof r);
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3]);
    while (*name == ' ') name++;
    snprintf(out, cap, "%s %u/%u/%u %s", maker, family, model, sig & 15, name);
}
#else
static int detect(void) {
#if defined(__aarch64__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? HAS_DOTPROD : 0) |
           (getauxval(AT_HWCAP2) & HWCAP2_I8MM ? HAS_I8MM : 0);
#else
    return 0;
#endif
}

static void describe(char *out, size_t cap) {
    char id[64] = "unknown";
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/regs/identification/midr_el1", "re");
    if (f && !fgets(id, sizeof id, f)) id[0] = 0;
    if (f) fclose(f);
    id[strcspn(id, "\n")] = 0;
    snprintf(out, cap, "midr %s", id);
}
#endif

/* Asked for every softmax, and under a hypervisor each CPUID leaves the guest. Threads that come
 * first at the same time find the same answer. */
static int cpu(void) {
    static atomic_int known;
    int k = atomic_load_explicit(&known, memory_order_relaxed);
    if (k == 0) {
        k = detect() | HAS_ASKED;
        atomic_store_explicit(&known, k, memory_order_relaxed);
    }
    return k;
}

void sl_cpu_describe(char *out, size_t cap) {
    describe(out, cap);
    for (; *out; out++)
        if (*out < ' ' || *out > '~') *out = '?';
}

bool sl_cpu_has_avx2(void) {
    return cpu() & HAS_AVX2;
}

bool sl_cpu_has_amx(void) {
    return cpu() & HAS_AMX;
}

bool sl_cpu_has_avx512(void) {
    return cpu() & HAS_AVX512;
}

bool sl_cpu_has_avx512_vnni(void) {
    return cpu() & HAS_VNNI;
}

bool sl_cpu_has_avx512_bf16(void) {
    return cpu() & HAS_BF16;
}

bool sl_cpu_has_clflushopt(void) {
    return cpu() & HAS_FLUSH;
}

bool sl_cpu_has_dotprod(void) {
    return cpu() & HAS_DOTPROD;
}

bool sl_cpu_has_i8mm(void) {
    return cpu() & HAS_I8MM;
}
