/* Blocks of threads on fibres: who runs, who waits for whom, shared memory. */
#include "emulator_int.h"

#include "base/rng.h"
#include "base/status.h"
#include "fibre.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES ((size_t)256 << 10)
#define BARRIERS    16u
#define AREAS       64u   /* shared arrays of a kernel */
#define GUARD       128u  /* bytes on both sides of each, and how it is aligned */
#define ALIKE       1024u /* so far arrays of blocks are the same, as in clusters */
#define GUARD_BYTE  0xa5  /* in them */
#define GARBAGE     0xff
#define POLLS_MOST  (1u << 22)
#define CLUSTERS    (EMU_MAX_BLOCKS / 2)

/* A copy under way from global to shared memory. */
typedef struct copy {
    void *to;
    const void *from;
    uint32_t bytes, n, group;
} copy;

typedef struct block block;

typedef struct thread {
    sl_emu_thread here; /* first: what the kernel sees */
    emu_who who;
    block *in;
    uint32_t id;
    fibre *on;
    const char *waits; /* what for; NULL: it runs, or could */
    bool left;
    struct thread *behind; /* waits at the same barrier */
    void *slot;            /* what it brought to a meeting */
    copy *copies;
    uint32_t n_copies, room, groups;
} thread;

typedef struct meeting {
    uint32_t mask, came;
    const char *what;
} meeting;

typedef struct warp {
    meeting meetings[SL_WARP];
    uint32_t n, lanes, left;
} warp;

typedef struct barrier {
    uint32_t expected, came;
    thread *waiting;
} barrier;

typedef struct area {
    const char *site; /* NULL: the dynamic memory */
    uint8_t *memory;  /* with guards */
    size_t bytes;
} area;

struct block {
    sl_emu_block here;
    thread threads[EMU_MAX_THREADS];
    warp warps[EMU_MAX_THREADS / SL_WARP];
    barrier barriers[BARRIERS];
    uint32_t order[EMU_MAX_THREADS], next; /* threads from order[next] on did not begin */
    uint32_t n_left;
    area areas[AREAS];
    uint32_t n_areas;
    uint64_t number; /* among all that ever began */
    void *watched;
};

/* Threads in the order in which they came. */
typedef struct queue {
    thread *of[EMU_MAX_BLOCKS * EMU_MAX_THREADS];
    uint32_t first, n;
} queue;

/* One of these for each thread of the system that launches. */
typedef struct run {
    const emu_launch *launch;
    uint64_t rng;
    uint64_t blocks, begun, at,
        step;         /* how many there are, how many began; the next, in drawn order */
    uint64_t numbers; /* blocks of all launches */
    block *alive[EMU_MAX_BLOCKS], *rest[EMU_MAX_BLOCKS];
    uint32_t n_alive, n_rest;
    uint32_t came[CLUSTERS], phase[CLUSTERS]; /* threads at the barrier of a cluster; how often */
    bool clustered;                           /* somebody was */
    block *starting;                          /* the one that began last */
    queue ready, polling; /* those that may go on, and those that look again for what others do */
    uint32_t polls;       /* looks since anything else happened */
    thread *now;
    fibre *home, *idle[EMU_MAX_BLOCKS * EMU_MAX_THREADS], *all[EMU_MAX_BLOCKS * EMU_MAX_THREADS];
    uint32_t n_idle, n_all;
} run;

_Thread_local const sl_emu_thread *sl_emu_here;
const emu_watcher *emu_watch;
static _Thread_local run *self;

/* Ends of the process. */

static void say_where(void) {
    const run *r = self;
    if (!r || !r->launch) return;
    fprintf(stderr, "kernel %s", r->launch->kernel);
    if (r->now) {
        const sl_emu_dim *b = &r->now->in->here.index;
        fprintf(stderr, ", block (%u, %u, %u), thread %u", b->x, b->y, b->z, r->now->id);
    }
    fprintf(stderr, ": ");
}

_Noreturn void sl_emu_die(const char *why, ...) {
    va_list args;
    fflush(stdout);
    say_where();
    va_start(args, why);
    vfprintf(stderr, why, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}

static const char *state_of(const thread *t) {
    return t->left ? "left" : t->waits ? t->waits : "did not begin";
}

/* "threads 0-31 wait at a barrier, threads 32-63 left", of the oldest block. */
static _Noreturn void die_stuck(run *r, const char *why) {
    const block *b = r->alive[0];
    char text[1024] = "";
    size_t n = 0;
    r->now = NULL;
    for (uint32_t i = 0; i < r->launch->threads && n + 100 < sizeof text;) {
        const char *state = state_of(&b->threads[i]);
        uint32_t j = i + 1;
        while (j < r->launch->threads && state_of(&b->threads[j]) == state) j++;
        n += (size_t)snprintf(text + n, sizeof text - n, "%sthreads %u-%u %s%s", n ? ", " : "", i,
                              j - 1, b->threads[i].left ? "" : "wait at ", state);
        i = j;
    }
    sl_emu_die("%s; block (%u, %u, %u), of %u that began: %s", why, b->here.index.x,
               b->here.index.y, b->here.index.z, r->n_alive, text);
}

/* Who runs. */

static void fibre_loop(fibre *f);
static void begin_block(run *r);
static void end_block(run *r, block *b);

static void push(queue *q, thread *t, const char *waits) {
    t->waits = waits;
    q->of[(q->first + q->n++) % SL_LEN(q->of)] = t;
}

/* The first one; with a seed any. */
static thread *pop(run *r, queue *q) {
    const uint32_t first = q->first % SL_LEN(q->of);
    if (r->launch->seed) {
        const uint32_t pick = (first + (uint32_t)sl_rng_below(&r->rng, q->n)) % SL_LEN(q->of);
        thread *t = q->of[pick];
        q->of[pick] = q->of[first];
        q->of[first] = t;
    }
    q->first = first + 1;
    q->n--;
    return q->of[first];
}

static fibre *take_fibre(run *r) {
    if (r->n_idle) return r->idle[--r->n_idle];
    if (r->n_all == SL_LEN(r->all)) sl_emu_die("%u threads at once", r->n_all);
    fibre *f = fibre_create(STACK_BYTES, fibre_loop);
    r->all[r->n_all++] = f;
    return f;
}

static bool more_blocks(const run *r) {
    return r->begun < r->blocks && r->n_alive < EMU_MAX_BLOCKS;
}

/* The fibre that goes on when `from` cannot. Another block begins when those that did have ended,
 * or wait for what it may do. */
static fibre *another(run *r) {
    const bool in_vain = r->polls > 2 * r->polling.n;
    if (r->starting && r->starting->next < r->launch->threads) return take_fibre(r);
    if (r->ready.n) {
        r->polls = 0;
        return pop(r, &r->ready)->on;
    }
    if (r->polling.n && !(in_vain && more_blocks(r))) {
        if (++r->polls > POLLS_MOST) die_stuck(r, "all look for what nobody does");
        return pop(r, &r->polling)->on;
    }
    if (more_blocks(r)) {
        begin_block(r);
        r->polls = 0;
        return take_fibre(r);
    }
    if (r->n_alive) die_stuck(r, "nobody can go on");
    return r->home;
}

static void run_another(run *r, fibre *from) {
    fibre *to = another(r);
    if (to != from) fibre_switch(from, to);
}

static void give_way(run *r, thread *t) {
    run_another(r, t->on);
    t->waits = NULL;
    r->now = t;
    sl_emu_here = &t->here;
}

static void wait_here(run *r, const char *what) {
    r->now->waits = what;
    r->polls = 0;
    give_way(r, r->now);
}

void sl_emu_yield(void) {
    run *r = self;
    push(&r->polling, r->now, "a look at what others do");
    give_way(r, r->now);
}

static void leave(run *r, thread *t) {
    block *b = t->in;
    warp *w = &b->warps[t->id / SL_WARP];
    const uint32_t bit = 1u << t->id % SL_WARP;
    for (uint32_t i = 0; i < w->n; i++)
        if (w->meetings[i].mask & bit)
            sl_emu_die("left while others of its warp (mask %08x) wait for it at %s",
                       w->meetings[i].mask, w->meetings[i].what);
    if (b->barriers[0].came) sl_emu_die("left while others of its block wait at __syncthreads");
    w->left |= bit;
    t->left = true;
    t->n_copies = 0;
    r->polls = 0;
    if (++b->n_left == r->launch->threads) end_block(r, b);
}

/* What a fibre does: threads that did not begin yet, one after another; then it is idle. */
static void fibre_loop(fibre *f) {
    run *r = self;
    for (;;) {
        block *b = r->starting;
        while (b && b == r->starting && b->next < r->launch->threads) {
            thread *t = &b->threads[b->order[b->next++]];
            t->on = f;
            t->who.stack = fibre_stack(f, &t->who.stack_bytes);
            r->now = t;
            sl_emu_here = &t->here;
            r->launch->thunk(r->launch->args);
            leave(r, t);
        }
        r->idle[r->n_idle++] = f;
        run_another(r, f);
    }
}

/* Meetings. */

void sl_emu_barrier(uint32_t id, uint32_t threads, bool waits) {
    run *r = self;
    thread *t = r->now;
    const char *what = id ? "a barrier of some threads" : "__syncthreads";
    if (id >= BARRIERS) sl_emu_die("there is no barrier %u", id);
    if (!threads || threads > r->launch->threads || (id && threads % SL_WARP))
        sl_emu_die("barrier %u of %u threads in a block of %u", id, threads, r->launch->threads);
    if (!id && t->in->n_left)
        sl_emu_die("at __syncthreads, which %u threads never reach", t->in->n_left);
    barrier *b = &t->in->barriers[id];
    if (b->came && b->expected != threads)
        sl_emu_die("barrier %u of %u threads, of which others say %u", id, threads, b->expected);
    b->expected = threads;
    if (emu_watch) emu_watch->release(b);
    if (++b->came < threads) {
        if (!waits) return;
        t->behind = b->waiting;
        b->waiting = t;
        wait_here(r, what);
        return;
    }
    for (thread *u = b->waiting, *next; u; u = next) {
        next = u->behind;
        if (emu_watch) emu_watch->acquire(b, u->in->watched, u->id);
        push(&r->ready, u, NULL);
    }
    if (emu_watch && waits) emu_watch->acquire(b, t->in->watched, t->id);
    if (emu_watch) emu_watch->drop(b, t->in->watched);
    *b = (barrier){0};
}

/* The meeting of exactly these lanes. */
static meeting *find_meeting(warp *w, const char *what, uint32_t mask, uint32_t bit) {
    if (!(mask & bit)) sl_emu_die("at %s with mask %08x, which does not name it", what, mask);
    if (mask & ~w->lanes)
        sl_emu_die("at %s with mask %08x; its warp has only %08x", what, mask, w->lanes);
    if (mask & w->left)
        sl_emu_die("at %s with mask %08x, of which lanes %08x have left", what, mask,
                   mask & w->left);
    for (uint32_t i = 0; i < w->n; i++) {
        meeting *m = &w->meetings[i];
        if (m->mask == mask && m->what == what) return m;
        if (m->mask & bit && m->came & mask) /* each waits for the other */
            sl_emu_die("at %s with mask %08x, while lanes %08x wait at %s with mask %08x", what,
                       mask, m->came, m->what, m->mask);
    }
    w->meetings[w->n] = (meeting){.mask = mask, .what = what};
    return &w->meetings[w->n++];
}

/* orders: memory, too. */
static void meet(const char *what, uint32_t mask, void *mine,
                 void (*all)(void *const lanes[SL_WARP], uint32_t mask), bool orders) {
    run *r = self;
    thread *t = r->now;
    warp *w = &t->in->warps[t->id / SL_WARP];
    meeting *m = find_meeting(w, what, mask, 1u << t->id % SL_WARP);
    m->came |= 1u << t->id % SL_WARP;
    t->slot = mine;
    thread *first = &t->in->threads[t->id / SL_WARP * SL_WARP];
    const void *key = &first[__builtin_ctz(mask)];
    if (emu_watch && orders) emu_watch->release(key);
    if (m->came != mask) {
        wait_here(r, what);
        return;
    }
    *m = w->meetings[--w->n];
    void *lanes[SL_WARP];
    for (uint32_t i = 0; i < SL_WARP; i++) lanes[i] = mask >> i & 1 ? first[i].slot : NULL;
    if (all) all(lanes, mask);
    for (uint32_t i = 0; i < SL_WARP; i++) {
        if (!(mask >> i & 1)) continue;
        if (emu_watch && orders) emu_watch->acquire(key, t->in->watched, first[i].id);
        if (&first[i] != t) push(&r->ready, &first[i], NULL);
    }
    if (emu_watch && orders) emu_watch->drop(key, t->in->watched);
}

void emu_meet(const char *what, uint32_t mask, void *mine,
              void (*all)(void *const lanes[SL_WARP], uint32_t mask)) {
    meet(what, mask, mine, all, false);
}

/* The only meeting of a warp that orders what its lanes do to memory. */
void sl_emu_syncwarp(uint32_t mask) {
    meet("__syncwarp", mask, NULL, NULL, true);
}

/* Shared memory. */

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION(p, n)
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

static area *add_area(block *in, const char *site, size_t bytes) {
    if (in->n_areas == AREAS) sl_emu_die("more than %u arrays of shared memory", AREAS);
    area *a = &in->areas[in->n_areas++];
    const size_t all = (GUARD + bytes + GUARD + GUARD - 1) / GUARD * GUARD;
    *a = (area){.site = site,
                .memory = aligned_alloc(ALIKE, (all + ALIKE - 1) / ALIKE * ALIKE),
                .bytes = bytes};
    if (!a->memory) sl_emu_die("no memory for %zu bytes of shared memory", bytes);
    memset(a->memory, GUARD_BYTE, all);
    memset(a->memory + GUARD, GARBAGE, bytes);
    POISON(a->memory, GUARD);
    POISON(a->memory + GUARD + bytes, all - GUARD - bytes);
    return a;
}

static void drop_areas(block *in) {
    for (uint32_t i = 0; i < in->n_areas; i++) {
        area *a = &in->areas[i];
        UNPOISON(a->memory, (GUARD + a->bytes + GUARD + GUARD - 1) / GUARD * GUARD);
        free(a->memory);
    }
    in->n_areas = 0;
}

/* After a block: nobody wrote past an end (ASan tells who); new garbage for the next one. */
static void renew_areas(block *in) {
    for (uint32_t i = 0; i < in->n_areas; i++) {
        area *a = &in->areas[i];
        UNPOISON(a->memory, GUARD);
        UNPOISON(a->memory + GUARD + a->bytes, GUARD);
        for (uint32_t j = 0; j < GUARD; j++)
            if (a->memory[j] != GUARD_BYTE || a->memory[GUARD + a->bytes + j] != GUARD_BYTE)
                sl_emu_die("something was written outside of shared %s",
                           a->site ? a->site : "dynamic memory");
        POISON(a->memory, GUARD);
        POISON(a->memory + GUARD + a->bytes, GUARD);
        memset(a->memory + GUARD, GARBAGE, a->bytes);
        if (emu_watch) emu_watch->forget(a->memory + GUARD, a->bytes);
    }
}

void *sl_emu_shared(const char *site, size_t bytes) {
    block *in = self->now->in;
    size_t sum = bytes;
    for (uint32_t i = 0; i < in->n_areas; i++) {
        if (in->areas[i].site == site) return in->areas[i].memory + GUARD;
        if (in->areas[i].site) sum += in->areas[i].bytes;
    }
    if (sum > EMU_STATIC_BYTES)
        sl_emu_die("%zu bytes of static shared memory, of %u at most", sum, EMU_STATIC_BYTES);
    sum += in->areas[0].bytes; /* dynamic */
    if (sum > (self->launch->plain ? EMU_STATIC_BYTES : EMU_SHARED_BYTES))
        sl_emu_die("%zu bytes of shared memory, which a launch %s", sum,
                   self->launch->plain ? "has to ask for" : "cannot have");
    return add_area(in, site, bytes)->memory + GUARD;
}

void *sl_emu_dynamic(void) {
    return self->now->in->areas[0].memory + GUARD;
}

const char *emu_shared_name(const void *p, size_t *offset) {
    const block *in = self->now->in;
    for (uint32_t i = 0; i < in->n_areas; i++) {
        const area *a = &in->areas[i];
        *offset = (size_t)((uintptr_t)p - (uintptr_t)a->memory - GUARD);
        if (*offset < a->bytes) return a->site ? a->site : "dynamic memory";
    }
    return NULL;
}

bool emu_is_shared(const void *p, size_t bytes) {
    size_t first, last;
    const char *name = emu_shared_name(p, &first);
    return name && emu_shared_name((const uint8_t *)p + bytes - 1, &last) == name;
}

const emu_who *emu_who_runs(void) {
    const run *r = self;
    return r && r->now ? &r->now->who : NULL;
}

/* Clusters of two blocks, neighbours in x. */

static uint32_t cluster_of(const run *r) {
    const uint32_t i = r->now->in->here.index.x / 2;
    if (r->launch->grid[0] % 2 || r->launch->grid[1] * r->launch->grid[2] > 1 || i >= CLUSTERS)
        sl_emu_die("clusters of two in a grid of %u x %u x %u blocks", r->launch->grid[0],
                   r->launch->grid[1], r->launch->grid[2]);
    return i;
}

void sl_emu_cluster_sync(void) {
    run *r = self;
    const uint32_t i = cluster_of(r), phase = r->phase[i];
    r->clustered = true;
    if (emu_watch) emu_watch->release(&r->phase[i]);
    if (++r->came[i] == 2 * r->launch->threads) {
        r->came[i] = 0;
        r->phase[i]++;
    }
    while (r->phase[i] == phase) sl_emu_yield();
    if (emu_watch) emu_watch->acquire(&r->phase[i], r->now->in->watched, r->now->id);
}

bool emu_is_clustered(void) {
    return self && self->clustered;
}

void *sl_emu_peer(const void *p, uint32_t rank) {
    const run *r = self;
    const block *in = r->now->in, *other = NULL;
    const uint32_t x = 2 * cluster_of(r) + rank;
    for (uint32_t i = 0; i < r->n_alive; i++)
        if (r->alive[i]->here.index.x == x) other = r->alive[i];
    if (!other) sl_emu_die("block %u of the cluster has not begun, or has ended", rank);
    for (uint32_t i = 0; i < in->n_areas; i++) {
        const size_t offset = (size_t)((uintptr_t)p - (uintptr_t)in->areas[i].memory - GUARD);
        if (offset >= in->areas[i].bytes) continue;
        for (uint32_t j = 0; j < other->n_areas; j++)
            if (other->areas[j].site == in->areas[i].site)
                return other->areas[j].memory + GUARD + offset;
    }
    sl_emu_die("%p is not in shared memory that both blocks of the cluster have", p);
}

/* Copies that go on beside the thread: done as late as possible. */

void sl_emu_cp_async(void *shared, const void *global, uint32_t bytes, uint32_t n) {
    thread *t = self->now;
    if ((uintptr_t)shared % bytes || (n && (uintptr_t)global % bytes))
        sl_emu_die("an asynchronous copy of %u bytes from %p to %p is not aligned", bytes, global,
                   shared);
    if (n > bytes) sl_emu_die("an asynchronous copy of %u bytes into %u", n, bytes);
    if (!emu_is_shared(shared, bytes))
        sl_emu_die("an asynchronous copy to %p, which is not in shared memory", shared);
    if (t->n_copies == t->room) {
        t->room = t->room ? 2 * t->room : 16;
        t->copies = realloc(t->copies, t->room * sizeof *t->copies);
        if (!t->copies) sl_emu_die("no memory for asynchronous copies");
    }
    t->copies[t->n_copies++] =
        (copy){.to = shared, .from = global, .bytes = bytes, .n = n, .group = t->groups};
    memset(shared, GARBAGE, bytes);
}

void sl_cp_async_commit(void) {
    self->now->groups++;
}

void sl_emu_cp_async_wait(uint32_t n) {
    thread *t = self->now;
    uint32_t i = 0;
    if (!t->n_copies) return;
    for (; i < t->n_copies && t->copies[i].group + n < t->groups; i++) {
        const copy *c = &t->copies[i];
        if (emu_watch && c->n) emu_watch->touch(c->from, c->n, false);
        if (emu_watch) emu_watch->touch(c->to, c->bytes, true);
        if (c->n) memcpy(c->to, c->from, c->n);
        memset((uint8_t *)c->to + c->n, 0, c->bytes - c->n);
    }
    t->n_copies -= i;
    memmove(t->copies, t->copies + i, t->n_copies * sizeof *t->copies);
}

/* Launches. */

static run *run_of_thread(void) {
    if (!self) {
        self = calloc(1, sizeof *self);
        if (!self) sl_emu_die("no memory for the emulator");
        self->home = fibre_of_thread();
    }
    return self;
}

static block *take_block(run *r) {
    if (r->n_rest) return r->rest[--r->n_rest];
    block *b = calloc(1, sizeof *b);
    if (!b) sl_emu_die("no memory for a block");
    return b;
}

/* A random permutation of the threads, or their order. */
static void draw_order(run *r, block *b) {
    for (uint32_t i = 0; i < r->launch->threads; i++) {
        const uint32_t j = r->launch->seed ? (uint32_t)sl_rng_below(&r->rng, i + 1) : i;
        b->order[i] = b->order[j];
        b->order[j] = i;
    }
}

static void begin_block(run *r) {
    const emu_launch *l = r->launch;
    const uint32_t *g = l->grid;
    block *b = take_block(r);
    b->here = (sl_emu_block){
        .index = {(uint32_t)(r->at % g[0]), (uint32_t)(r->at / g[0] % g[1]),
                  (uint32_t)(r->at / g[0] / g[1])},
        .threads = {l->threads, 1, 1},
        .grid = {g[0], g[1], g[2]},
    };
    b->number = ++r->numbers;
    b->watched = emu_watch ? emu_watch->begin_block(l->threads) : NULL;
    for (uint32_t i = 0; i < l->threads; i++) {
        thread *t = &b->threads[i];
        t->here = (sl_emu_thread){.index = {i, 0, 0}, .block = &b->here};
        t->who = (emu_who){.watched = b->watched, .block = b->number, .thread = i};
        t->in = b;
        t->id = i;
        t->waits = NULL;
        t->left = false;
        t->n_copies = t->groups = 0;
    }
    for (uint32_t i = 0; i * SL_WARP < l->threads; i++) {
        const uint32_t lanes = l->threads - i * SL_WARP;
        b->warps[i].n = b->warps[i].left = 0;
        b->warps[i].lanes = lanes < SL_WARP ? (1u << lanes) - 1 : SL_ALL;
    }
    draw_order(r, b);
    b->next = b->n_left = 0;
    if (!b->n_areas) add_area(b, NULL, l->dynamic_bytes);
    r->alive[r->n_alive++] = r->starting = b;
    r->at = (r->at + r->step) % r->blocks;
    r->begun++;
}

static void end_block(run *r, block *b) {
    uint32_t i = 0;
    r->now = NULL;
    for (i = 1; i < BARRIERS; i++)
        if (b->barriers[i].came)
            sl_emu_die("a block has ended, with %u of %u threads at barrier %u",
                       b->barriers[i].came, b->barriers[i].expected, i);
    renew_areas(b);
    if (emu_watch) emu_watch->end_block(b->watched);
    for (i = 0; r->alive[i] != b;) i++;
    memmove(&r->alive[i], &r->alive[i + 1], (--r->n_alive - i) * sizeof *r->alive);
    if (r->starting == b) r->starting = NULL;
    r->rest[r->n_rest++] = b;
}

/* From block to block: by a step that meets all of n, since it has no divisor in common. */
static uint64_t draw_step(run *r, uint64_t n) {
    if (!r->launch->seed || n < 3) return 1;
    for (;;) {
        const uint64_t step = 1 + sl_rng_below(&r->rng, n - 1);
        uint64_t a = step, b = n;
        while (b) {
            const uint64_t rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1) return step;
    }
}

void emu_run(const emu_launch *l) {
    run *r = run_of_thread();
    r->launch = l;
    r->rng = l->seed;
    r->now = NULL;
    if (!l->threads || l->threads > EMU_MAX_THREADS) sl_emu_die("%u threads", l->threads);
    r->blocks = (uint64_t)l->grid[0] * l->grid[1] * l->grid[2];
    r->begun = r->polls = 0;
    r->clustered = false;
    r->step = draw_step(r, r->blocks);
    r->at = l->seed && r->blocks ? sl_rng_below(&r->rng, r->blocks) : 0;
    if (emu_watch) emu_watch->begin_launch();
    run_another(r, r->home);
    for (uint32_t i = 0; i < r->n_rest; i++) drop_areas(r->rest[i]);
    r->launch = NULL;
}

void emu_release(void) {
    run *r = self;
    if (!r) return;
    for (uint32_t i = 0; i < r->n_all; i++) fibre_free(r->all[i]);
    for (uint32_t i = 0; i < r->n_rest; i++) {
        for (uint32_t j = 0; j < EMU_MAX_THREADS; j++) free(r->rest[i]->threads[j].copies);
        free(r->rest[i]);
    }
    fibre_free(r->home);
    free(r);
    self = NULL;
}
