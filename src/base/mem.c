/* Memory from the heap and reserved address space; counts calls, so that tests can fail the
 * n-th. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SL_ALIGN      64
#define SL_LAZY_BYTES ((size_t)1 << 18)
#define SL_HUGE_BYTES ((size_t)1 << 21)
#define SL_GAP_BYTES  ((size_t)4 * SL_ALIGN)

/* Relaxed everywhere: counters for tests, they order nothing. */
static _Atomic uint64_t alloc_count, fail_at;

static void *take(size_t n, size_t size) {
    uint64_t nth = atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed) + 1;
    if (nth == atomic_load_explicit(&fail_at, memory_order_relaxed)) return NULL;
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - SL_ALIGN) return NULL;
    bytes = bytes == 0 ? SL_ALIGN : (bytes + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    return aligned_alloc(SL_ALIGN, bytes);
}

/* Whole pages of a large block are given back to the system, which has zeros for them once they are
 * touched: what is never used costs nothing. */
static void zero(uint8_t *p, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
                    from = ((uintptr_t)p + page - 1) & ~(page - 1);
    const uintptr_t end = (uintptr_t)p + bytes, to = end & ~(page - 1);
    if (bytes < SL_LAZY_BYTES || madvise((void *)from, to - from, MADV_DONTNEED) != 0) {
        memset(p, 0, bytes);
        return;
    }
    memset(p, 0, from - (uintptr_t)p);
    memset((void *)to, 0, end - to);
}

void *sl_alloc(size_t n, size_t size) {
    void *p = take(n, size);
    if (p) zero(p, n * size);
    return p;
}

/* AddressSanitizer's: there in its builds alone. */
void __asan_poison_memory_region(const volatile void *p, size_t bytes) __attribute__((weak));

/* From where an array begins to where the next one does; *end: how far it reaches itself. */
static bool pass_array(const sl_array *a, size_t *at, size_t *end) {
    const size_t gap = __asan_poison_memory_region ? SL_GAP_BYTES : 0;
    size_t bytes;
    if (__builtin_mul_overflow(a->n, a->each, &bytes) ||
        __builtin_mul_overflow(bytes, a->size, &bytes) || __builtin_add_overflow(*at, bytes, end) ||
        __builtin_add_overflow(*end, gap + SL_ALIGN - 1, at))
        return false;
    *at -= *at % SL_ALIGN;
    return true;
}

void *sl_alloc_list(const sl_array *arrays) {
    size_t bytes = 0, at = 0, end;
    bool fits = true;
    for (const sl_array *a = arrays; a->at; a++) {
        memcpy(a->at, &(void *){NULL}, sizeof(void *));
        fits = fits && pass_array(a, &bytes, &end);
    }
    uint8_t *block = fits ? sl_alloc(bytes, 1) : NULL;
    for (const sl_array *a = arrays; block && a->at; a++) {
        memcpy(a->at, &(void *){block + at}, sizeof(void *));
        if (pass_array(a, &at, &end) && __asan_poison_memory_region)
            __asan_poison_memory_region(block + end, at - end);
    }
    return block;
}

void *sl_grow(void *p, size_t old_n, size_t new_n, size_t size) {
    void *q = take(new_n, size);
    if (!q) return NULL;
    size_t keep = SL_MIN(old_n, new_n) * size;
    if (keep) memcpy(q, p, keep);
    memset((uint8_t *)q + keep, 0, new_n * size - keep);
    sl_free(p);
    return q;
}

void sl_free(void *p) {
    free(p);
}

static size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return SL_MAX(page, (bytes + page - 1) & ~(page - 1));
}

void *sl_reserve(size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX - 2 * SL_HUGE_BYTES)
        return NULL;
    /* So much more that it can begin where a large page does. */
    uint8_t *p = mmap(NULL, whole_pages(bytes) + SL_HUGE_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t skip = -(uintptr_t)p & (SL_HUGE_BYTES - 1), end = whole_pages(bytes);
    if (skip) (void)munmap(p, skip);
    if (skip < SL_HUGE_BYTES) (void)munmap(p + skip + end, SL_HUGE_BYTES - skip);
    if (bytes >= SL_HUGE_BYTES) (void)madvise(p + skip, end, MADV_HUGEPAGE);
    return p + skip;
}

void sl_release(void *p, size_t n, size_t size) {
    if (p) (void)munmap(p, whole_pages(n * size));
}

char *sl_strndup(const char *s, size_t n) {
    char *p = n == SIZE_MAX ? NULL : sl_alloc(n + 1, 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

char *sl_strdup(const char *s) {
    return sl_strndup(s, strlen(s));
}

void sl_mem_fail_at(uint64_t nth) {
    uint64_t now = atomic_load_explicit(&alloc_count, memory_order_relaxed);
    atomic_store_explicit(&fail_at, nth ? now + nth : 0, memory_order_relaxed);
}

uint64_t sl_mem_count(void) {
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

sl_status sl_arena_create(size_t cap, sl_arena *out, sl_err *err) {
    uint8_t *base = sl_alloc(cap, 1);
    if (!base) return sl_fail(err, SL_ERR_NOMEM, "scratch arena of %zu bytes", cap);
    *out = (sl_arena){.base = base, .cap = cap};
    return SL_OK;
}

void sl_arena_free(sl_arena *a) {
    sl_free(a->base);
    *a = (sl_arena){0};
}

void *sl_arena_take(sl_arena *a, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    size_t start = (a->used + SL_ALIGN - 1) / SL_ALIGN * SL_ALIGN;
    if (start > a->cap || bytes > a->cap - start) return NULL;
    a->used = start + bytes;
    a->peak = SL_MAX(a->peak, a->used);
    return a->base + start;
}
