/* Finds what kernels leave to chance: two threads that touch the same memory, one of them writing,
 * with nothing that says who is first. Kernels are compiled with -fsanitize=thread, whose calls end
 * here, not in ThreadSanitizer: that knows threads of the system, and nothing of blocks and warps.
 *
 * Threads of a block have vector clocks: what thread u did up to its step c[u] comes before what
 * this one does now. __syncthreads and other barriers, __syncwarp, atomic steps and barriers in
 * shared memory hand clocks on; shuffles, votes and tiles do not order memory. Between blocks there
 * is one clock, of all releases: a block that has acquired anything has seen them all. Every 4
 * bytes remember the last two threads that wrote and the last two that read, byte by byte; so what
 * is found is a race (unless bytes were copied behind the compiler's back), and nearly all are.
 *
 * Thread: one stream at a time. */
#include "emulator_int.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE_BYTES 4096u
#define PAGE_WORDS (PAGE_BYTES / 4)
#define SLOTS      2u

/* Who was at some bytes of a word. */
typedef struct visit {
    uint64_t block; /* 0: nobody */
    uint32_t step;  /* of that thread */
    uint32_t tick;  /* of all releases */
    uint16_t thread;
    uint8_t bytes; /* mask of 4 */
} visit;

typedef struct word {
    visit writes[SLOTS], reads[SLOTS];
} word;

typedef struct page {
    uintptr_t number; /* address / PAGE_BYTES */
    uint64_t launch;  /* as of which it counts */
    word words[PAGE_WORDS];
} page;

/* What was released at a key, for the threads of a block. */
typedef struct key {
    const void *at;
    uint32_t *clock; /* [threads] */
    struct key *next;
} key;

typedef struct watched {
    uint32_t threads;
    uint32_t *clocks; /* [threads][threads] */
    uint32_t seen;    /* releases of other blocks that it knows of */
    key *keys, *spare;
} watched;

static page **pages; /* open addressing, a power of two */
static size_t n_pages, room;
static page *last;
static uint64_t launch_number;
static uint32_t ticks;

static void *need(void *p) {
    if (!p) sl_emu_die("no memory to watch for races");
    return p;
}

/* Pages. */

static size_t place_of(uintptr_t number) {
    return (size_t)((number * 0x9E3779B97F4A7C15u) >> 20) & (room - 1);
}

static void put(page *p) {
    size_t i = place_of(p->number);
    while (pages[i]) i = (i + 1) & (room - 1);
    pages[i] = p;
}

static void grow(void) {
    page **old = pages;
    const size_t n = room;
    room = room ? 2 * room : 1024;
    pages = need(calloc(room, sizeof(page *)));
    for (size_t i = 0; i < n; i++)
        if (old[i]) put(old[i]);
    free(old);
}

/* The page of an address as of this launch; NULL where none is and none is to be made. */
static page *page_of(uintptr_t at, bool make) {
    const uintptr_t number = at / PAGE_BYTES;
    page *p = last;
    if (!p || p->number != number) {
        p = NULL;
        for (size_t i = room ? place_of(number) : 0; room && pages[i]; i = (i + 1) & (room - 1))
            if (pages[i]->number == number) p = pages[i];
    }
    if (!p && !make) return NULL;
    if (!p) {
        if (n_pages * 2 >= room) grow();
        p = need(calloc(1, sizeof *p));
        p->number = number;
        p->launch = launch_number;
        put(p);
        n_pages++;
    }
    if (p->launch != launch_number) {
        memset(p->words, 0, sizeof p->words);
        p->launch = launch_number;
    }
    return last = p;
}

static void forget(const void *p, size_t bytes) {
    const uintptr_t end = (uintptr_t)p + bytes;
    for (uintptr_t at = (uintptr_t)p & ~(uintptr_t)3; at < end; at += 4) {
        page *g = page_of(at, false);
        if (g) memset(&g->words[at % PAGE_BYTES / 4], 0, sizeof(word));
    }
}

static void begin_launch(void) {
    launch_number++;
}

/* Clocks. */

static void *begin_block(uint32_t threads) {
    watched *w = need(calloc(1, sizeof *w));
    w->threads = threads;
    w->clocks = need(calloc((size_t)threads * threads, sizeof(uint32_t)));
    for (uint32_t i = 0; i < threads; i++) w->clocks[i * threads + i] = 1;
    w->seen = 0;
    return w;
}

static void free_keys(key *k) {
    for (key *next; k; k = next) {
        next = k->next;
        free(k->clock);
        free(k);
    }
}

static void end_block(void *p) {
    watched *w = p;
    free_keys(w->keys);
    free_keys(w->spare);
    free(w->clocks);
    free(w);
}

static key *key_at(watched *w, const void *at, bool make) {
    key *k = w->keys;
    while (k && k->at != at) k = k->next;
    if (k || !make) return k;
    if ((k = w->spare)) {
        w->spare = k->next;
    } else {
        k = need(malloc(sizeof *k));
        k->clock = need(malloc(w->threads * sizeof(uint32_t)));
    }
    memset(k->clock, 0, w->threads * sizeof(uint32_t));
    k->at = at;
    k->next = w->keys;
    w->keys = k;
    return k;
}

static void raise_to(uint32_t *clock, const uint32_t *other, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) clock[i] = clock[i] > other[i] ? clock[i] : other[i];
}

/* What comes after this is another step. */
static void release(const void *at) {
    const emu_who *who = emu_who_runs();
    if (!who) return;
    watched *w = who->watched;
    uint32_t *mine = w->clocks + (size_t)who->thread * w->threads;
    raise_to(key_at(w, at, true)->clock, mine, w->threads);
    mine[who->thread]++;
    ticks++;
}

static void acquire(const void *at, void *p, uint32_t thread) {
    watched *w = p;
    const key *k = key_at(w, at, false);
    if (k) raise_to(w->clocks + (size_t)thread * w->threads, k->clock, w->threads);
}

static void drop(const void *at, void *p) {
    watched *w = p;
    for (key **k = &w->keys; *k; k = &(*k)->next)
        if ((*k)->at == at) {
            key *it = *k;
            *k = it->next;
            it->next = w->spare;
            w->spare = it;
            return;
        }
}

/* Visits. */

static bool comes_before(const visit *v, const emu_who *who) {
    const watched *w = who->watched;
    if (v->block != who->block) return v->tick < w->seen;
    return v->thread == who->thread ||
           v->step <= w->clocks[(size_t)who->thread * w->threads + v->thread];
}

static _Noreturn void report(const visit *v, bool wrote, const emu_who *who, uintptr_t at,
                             size_t bytes, bool writes, const void *code) {
    char where[160], other[64] = "";
    size_t offset;
    Dl_info in = {0};
    const char *shared = emu_shared_name((const void *)at, &offset);
    if (shared)
        snprintf(where, sizeof where, "shared %s + %zu", shared, offset);
    else
        snprintf(where, sizeof where, "global %p", (const void *)at);
    if (v->block != who->block) snprintf(other, sizeof other, " of another block");
    if (!dladdr(code, &in)) in.dli_fname = "?";
    sl_emu_die("%s %zu bytes at %s, which thread %u%s %s, and nothing says who is first (%s+0x%lx)",
               writes ? "writes" : "reads", bytes, where, v->thread, other,
               wrote ? "wrote" : "read", in.dli_fname,
               (unsigned long)((uintptr_t)code - (uintptr_t)in.dli_fbase));
}

/* Keeps it, best in the place of one that it comes after. */
static void keep(visit slots[SLOTS], const visit *v, const emu_who *who) {
    for (uint32_t i = 0; i < SLOTS; i++) {
        visit *s = &slots[i];
        if (s->block == v->block && s->thread == v->thread && s->step == v->step) {
            s->bytes |= v->bytes;
            s->tick = v->tick;
            return;
        }
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        visit *s = &slots[i];
        if (!s->block || ((s->bytes & ~v->bytes) == 0 && comes_before(s, who))) {
            *s = *v;
            return;
        }
    }
    slots[1] = slots[0];
    slots[0] = *v;
}

static void touch_word(uintptr_t at, uint8_t bytes, const emu_who *who, bool writes,
                       const void *code) {
    word *w = &page_of(at, true)->words[at % PAGE_BYTES / 4];
    const watched *of = who->watched;
    const uint32_t step = of->clocks[(size_t)who->thread * of->threads + who->thread];
    visit *slots = writes ? w->writes : w->reads;
    for (uint32_t i = 0; i < SLOTS; i++) {
        visit *s = &slots[i];
        if (s->step != step || s->thread != who->thread || s->block != who->block) continue;
        if (bytes & ~s->bytes) continue;
        s->tick = ticks; /* again: whoever came since without an order was found then */
        return;
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        const visit *o = &w->writes[i];
        if (o->block && o->bytes & bytes && !comes_before(o, who))
            report(o, true, who, at, 4, writes, code);
        o = &w->reads[i];
        if (writes && o->block && o->bytes & bytes && !comes_before(o, who))
            report(o, false, who, at, 4, writes, code);
    }
    const visit v = {.block = who->block,
                     .step = step,
                     .tick = ticks,
                     .thread = (uint16_t)who->thread,
                     .bytes = bytes};
    keep(slots, &v, who);
}

static void touch_from(const void *p, size_t bytes, bool writes, const void *code) {
    const emu_who *who = emu_who_runs();
    if (!bytes || !who || (uintptr_t)p - (uintptr_t)who->stack < who->stack_bytes) return;
    for (uintptr_t at = (uintptr_t)p, end = at + bytes; at < end;) {
        const uintptr_t behind = (at & ~(uintptr_t)3) + 4, next = behind < end ? behind : end;
        const uint32_t first = at % 4, n = (uint32_t)(next - at);
        touch_word(at & ~(uintptr_t)3, (uint8_t)(((1u << n) - 1) << first), who, writes, code);
        at = next;
    }
}

static void touch(const void *p, size_t bytes, bool writes) {
    touch_from(p, bytes, writes, __builtin_return_address(0));
}

static const emu_watcher watcher = {begin_launch, begin_block, end_block, forget,
                                    release,      acquire,     drop,      touch};

__attribute__((constructor)) static void watch(void) {
    emu_watch = &watcher;
}

/* What kernels call (device_host.h). */

sl_emu_dim sl_emu_dim_of(int which) {
    const sl_emu_thread *t = sl_emu_here;
    return which == 0   ? t->index
           : which == 1 ? t->block->index
           : which == 2 ? t->block->threads
                        : t->block->grid;
}

void sl_emu_release(const void *p) {
    release(p);
}

void sl_emu_acquire(const void *p) {
    const emu_who *who = emu_who_runs();
    if (!who) return;
    acquire(p, who->watched, who->thread);
    if (!emu_is_shared(p, 1) || emu_is_clustered())
        ((watched *)who->watched)->seen = ticks; /* of other blocks */
}

void sl_emu_touch(const void *p, size_t bytes, bool writes) {
    touch_from(p, bytes, writes, __builtin_return_address(0));
}

/* What the compiler calls. */

#define AT(n)                                                                                      \
    void __tsan_read##n(const void *p);                                                            \
    void __tsan_read##n(const void *p) {                                                           \
        touch_from(p, n, false, __builtin_return_address(0));                                      \
    }                                                                                              \
    void __tsan_write##n(const void *p);                                                           \
    void __tsan_write##n(const void *p) {                                                          \
        touch_from(p, n, true, __builtin_return_address(0));                                       \
    }                                                                                              \
    void __tsan_unaligned_read##n(const void *p);                                                  \
    void __tsan_unaligned_read##n(const void *p) {                                                 \
        touch_from(p, n, false, __builtin_return_address(0));                                      \
    }                                                                                              \
    void __tsan_unaligned_write##n(const void *p);                                                 \
    void __tsan_unaligned_write##n(const void *p) {                                                \
        touch_from(p, n, true, __builtin_return_address(0));                                       \
    }
AT(1)
AT(2)
AT(4)
AT(8)
AT(16)

void __tsan_read_range(const void *p, size_t n);
void __tsan_read_range(const void *p, size_t n) {
    touch_from(p, n, false, __builtin_return_address(0));
}

void __tsan_write_range(const void *p, size_t n);
void __tsan_write_range(const void *p, size_t n) {
    touch_from(p, n, true, __builtin_return_address(0));
}

void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(const void *p);
void __tsan_func_entry(const void *p) {
    (void)p;
}
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
