/* What this machine can do: multiply-adds a second in f32 and in 8 bits, bytes a second read. */
#include "limits.h"

#include "base/clock.h"
#include "base/topology.h"
#include "kernel/cpu.h"

#include <stdatomic.h>
#include <stdlib.h>

#define MAX_TRIES 64u

size_t sl_limits_beyond_caches(void) {
    const size_t least = (size_t)192 << 20, most = (size_t)1 << 30;
    return SL_MIN(SL_MAX(3 * sl_topology_largest_cache(), least), most);
}

#if defined(__x86_64__)
#include <immintrin.h>
#define ROUNDS 200000u
#define CHAINS 12
#define ITEMS  8u

static _Atomic uint64_t keep;

__attribute__((target("avx2,fma"))) static uint64_t fma_chains(void) {
    __m256 a[CHAINS], x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(1e-3f);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_ps((float)i);
    for (uint32_t r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) a[i] = _mm256_fmadd_ps(a[i], x, y);
    for (int i = 1; i < CHAINS; i++) a[0] = _mm256_add_ps(a[0], a[i]);
    return (uint64_t)_mm256_cvtss_f32(a[0]);
}

__attribute__((target("avx2"))) static uint64_t int8_chains(void) {
    __m256i a[CHAINS], x = _mm256_set1_epi8(3), y = _mm256_set1_epi8(-2);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm256_set1_epi32(i);
    for (uint32_t r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            __asm__ volatile("" : "+x"(x)); /* else the product is made once */
            __m256i p = _mm256_maddubs_epi16(x, y);
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(p, ones));
        }
    for (int i = 1; i < CHAINS; i++) a[0] = _mm256_xor_si256(a[0], a[i]);
    return (uint64_t)_mm256_extract_epi64(a[0], 0);
}

__attribute__((target("avx512f"))) static uint64_t wide_fma_chains(void) {
    __m512 a[CHAINS], x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(1e-3f);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_ps((float)i);
    for (uint32_t r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_fmadd_ps(a[i], x, y);
    for (int i = 1; i < CHAINS; i++) a[0] = _mm512_add_ps(a[0], a[i]);
    return (uint64_t)_mm512_cvtss_f32(a[0]);
}

__attribute__((target("avx512f,avx512vnni"))) static uint64_t vnni_chains(void) {
    __m512i a[CHAINS], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(-2);
    for (int i = 0; i < CHAINS; i++) a[i] = _mm512_set1_epi32(i);
    for (uint32_t r = 0; r < ROUNDS; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) a[i] = _mm512_dpbusd_epi32(a[i], x, y);
    for (int i = 1; i < CHAINS; i++) a[0] = _mm512_xor_si512(a[0], a[i]);
    return (uint64_t)_mm512_reduce_add_epi64(a[0]);
}

/* A 64th as many products of tiles, of 16 x 16 sums over 64 values each. */
__attribute__((target("amx-tile,amx-int8"))) static uint64_t tile_chains(void) {
    static const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (uint32_t r = 0; r < ROUNDS * CHAINS / 64 / 6; r++) {
        _tile_dpbssd(0, 6, 7);
        _tile_dpbssd(1, 6, 7);
        _tile_dpbssd(2, 6, 7);
        _tile_dpbssd(3, 6, 7);
        _tile_dpbssd(4, 6, 7);
        _tile_dpbssd(5, 6, 7);
    }
    _tile_release();
    return 0;
}

/* One load a line brings it; more of them, while it is on its way, make reading slower. */
__attribute__((target("avx2"))) static uint64_t read_all(const uint8_t *p, size_t n) {
    __m256i a = _mm256_setzero_si256(), b = a;
    for (size_t i = 0; i + 128 <= n; i += 128) {
        a = _mm256_xor_si256(a, _mm256_loadu_si256((const __m256i *)(p + i)));
        b = _mm256_xor_si256(b, _mm256_loadu_si256((const __m256i *)(p + i + 64)));
    }
    a = _mm256_xor_si256(a, b);
    return (uint64_t)_mm256_extract_epi64(a, 0) ^ (uint64_t)_mm256_extract_epi64(a, 2);
}

static void read_item(void *ctx, size_t begin, size_t end) {
    keep += read_all((const uint8_t *)ctx + begin, end - begin);
}

/* Chains of arithmetic and how many operations one step of a chain is. */
typedef struct peak {
    uint64_t (*chains)(void);
    double ops;
    bool there;
} peak;

static void peak_item(void *ctx, size_t begin, size_t end) {
    const peak *p = ctx;
    for (size_t i = begin; i < end; i++) keep += p->chains();
}

static uint64_t timed(sl_pool *pool, size_t n, size_t grain, sl_pool_fn fn, void *ctx, bool cpu) {
    uint64_t t = cpu ? sl_thread_cpu_ns() : sl_now_ns();
    sl_pool_run(pool, n, grain, fn, ctx);
    return (cpu ? sl_thread_cpu_ns() : sl_now_ns()) - t;
}

static int by_value(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Operations per ns of the faster kind of chains. */
static double best_of(sl_pool *pool, peak *p, size_t n, uint32_t tries, bool cpu_clock) {
    double best = 0;
    for (size_t i = 0; i < n * tries; i++) {
        peak *one = &p[i % n];
        if (!one->there) continue;
        double ns = (double)timed(pool, ITEMS, 1, peak_item, one, cpu_clock);
        best = SL_MAX(best, (double)ITEMS * ROUNDS * CHAINS * one->ops / ns);
    }
    return best;
}

sl_limits sl_limits_measure(sl_pool *pool, const uint8_t *data, size_t bytes, uint32_t tries,
                            bool cpu_clock) {
    const bool wide = __builtin_cpu_supports("avx512f");
    const bool vnni = wide && __builtin_cpu_supports("avx512vnni");
    peak fma[] = {{fma_chains, 16, true}, {wide_fma_chains, 32, wide}};
    peak int8[] = {
        {int8_chains, 64, true}, {vnni_chains, 128, vnni}, {tile_chains, 512, sl_cpu_has_amx()}};
    uint64_t rd[MAX_TRIES];
    SL_ASSERT(tries >= 3 && tries <= MAX_TRIES);
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return (sl_limits){0};
    for (uint32_t i = 0; i < tries; i++)
        rd[i] = timed(pool, bytes, 1 << 20, read_item, (void *)(uintptr_t)data, cpu_clock);
    qsort(rd, tries, sizeof *rd, by_value);
    return (sl_limits){.read_gbs = (double)bytes / (double)rd[0],
                       .read_median_gbs = (double)bytes / (double)rd[tries / 2],
                       .fma_gflops = best_of(pool, fma, SL_LEN(fma), tries, cpu_clock),
                       .int8_gops = best_of(pool, int8, SL_LEN(int8), tries, cpu_clock)};
}
#else
sl_limits sl_limits_measure(sl_pool *pool, const uint8_t *data, size_t bytes, uint32_t tries,
                            bool cpu_clock) {
    (void)pool, (void)data, (void)bytes, (void)tries, (void)cpu_clock;
    return (sl_limits){0};
}
#endif
