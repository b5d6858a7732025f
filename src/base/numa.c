/* Pages asked for and moved by move_pages(2), a batch at a time. */
#include "base/numa.h"

#include "base/clock.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOVE   (1 << 1) /* MPOL_MF_MOVE */
#define ROUNDS 4        /* the kernel ends a call at the first pages that it cannot move */

static long ask_kernel(unsigned long n, void *const *page, const int *node, int *status) {
    return syscall(SYS_move_pages, 0, n, page, node, status, MOVE);
}

static void add(_Atomic uint64_t *to, uint64_t bytes) {
    if (bytes) atomic_fetch_add_explicit(to, bytes, memory_order_relaxed);
}

static void leave(sl_numa *n, uint64_t bytes, int why) {
    if (!bytes) return;
    add(&n->left, bytes);
    atomic_store_explicit(&n->why, why, memory_order_relaxed);
}

/* False: the system answers no such call, and is not asked again. */
static bool ask(sl_numa *n, size_t pages, void *const *page, const int *node, int *status,
                long *got) {
    const sl_numa_call call = n->call ? n->call : ask_kernel;
    errno = 0;
    *got = call(pages, page, node, status);
    if (*got >= 0 || (errno != EPERM && errno != ENOSYS)) return true;
    atomic_store_explicit(&n->refused, errno, memory_order_relaxed);
    return false;
}

static uint64_t all_bytes(const sl_numa_batch *b) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < b->n; i++) bytes += b->bytes[i];
    return bytes;
}

/* Where pages are, into status. Those on the node and those that are nowhere are counted, with
 * `moved` as such, and leave the batch; what is known of the others stays beside them. */
static bool sort_out(sl_numa_batch *b, int *known, bool moved) {
    int status[SL_NUMA_BATCH];
    uint64_t there = 0, absent = 0;
    size_t kept = 0;
    long got;
    if (!ask(b->of, b->n, b->page, NULL, status, &got)) return false;
    for (size_t i = 0; i < b->n; i++) {
        if (got == 0 && status[i] == b->of->node) {
            there += b->bytes[i];
        } else if (got == 0 && status[i] < 0) {
            absent += b->bytes[i];
        } else {
            b->page[kept] = b->page[i];
            b->bytes[kept] = b->bytes[i];
            known[kept++] = known[i];
        }
    }
    b->n = kept;
    add(&b->of->there, there);
    add(&b->of->absent, absent);
    if (moved) add(&b->of->moved, there);
    return true;
}

/* Of pages that lie elsewhere: why they do is left in `known`. A large page answers for one of its
 * small ones, so it is asked again where they are. */
static bool move(sl_numa_batch *b, int *known) {
    int node[SL_NUMA_BATCH];
    for (size_t i = 0; i < b->n; i++) node[i] = b->of->node;
    for (int round = 0; round < ROUNDS && b->n; round++) {
        const size_t before = b->n;
        long got;
        for (size_t i = 0; i < b->n; i++) known[i] = -EBUSY;
        if (!ask(b->of, b->n, b->page, node, known, &got)) return false;
        const int why = got < 0 ? -errno : 0;
        for (size_t i = 0; i < b->n && why; i++) known[i] = why;
        if (!sort_out(b, known, true)) return false;
        if (got <= 0 || b->n == before) break;
    }
    return true;
}

static void count_left(sl_numa_batch *b, const int *known) {
    uint64_t others = 0, left = 0;
    int why = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (known[i] == -EACCES)
            others += b->bytes[i];
        else
            left += b->bytes[i], why = known[i] < 0 ? -known[i] : EBUSY;
    }
    add(&b->of->others, others);
    leave(b->of, left, why);
}

void sl_numa_begin(sl_numa *of, sl_numa_batch *out) {
    out->of = of;
    out->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    out->n = 0;
}

void sl_numa_flush(sl_numa_batch *b) {
    int known[SL_NUMA_BATCH] = {0};
    if (!b->of || b->n == 0) return;
    int why = atomic_load_explicit(&b->of->refused, memory_order_relaxed);
    if (!why && sl_now_ns() >= b->of->until_ns) why = ETIME;
    if (!why && !(sort_out(b, known, false) && move(b, known)))
        why = atomic_load_explicit(&b->of->refused, memory_order_relaxed);
    if (why)
        leave(b->of, all_bytes(b), why);
    else
        count_left(b, known);
    b->n = 0;
}

void sl_numa_add(sl_numa_batch *b, const void *at, size_t bytes) {
    uintptr_t from = (uintptr_t)at;
    const uintptr_t end = from + bytes;
    while (b->of && from < end) {
        const uintptr_t page = from / b->page_bytes * b->page_bytes;
        const uintptr_t to = SL_MIN(page + b->page_bytes, end);
        if (b->n == SL_NUMA_BATCH) sl_numa_flush(b);
        b->page[b->n] = (void *)page;
        b->bytes[b->n++] = (uint32_t)(to - from);
        from = to;
    }
}

sl_numa_told sl_numa_tell(const sl_numa *n) {
#define GET(field) atomic_load_explicit(&n->field, memory_order_relaxed)
    return (sl_numa_told){.there = GET(there),
                          .moved = GET(moved),
                          .others = GET(others),
                          .left = GET(left),
                          .absent = GET(absent),
                          .why = GET(refused) ? GET(refused) : GET(why)};
#undef GET
}

void sl_numa_again(sl_numa *n) {
    _Atomic uint64_t *const counts[] = {&n->there, &n->others, &n->left, &n->absent};
    for (size_t i = 0; i < SL_LEN(counts); i++)
        atomic_store_explicit(counts[i], 0, memory_order_relaxed);
    atomic_store_explicit(&n->why, 0, memory_order_relaxed);
}
