/* The engine on a virtual clock: coordinator and workers in one thread, over "loop", whose messages
 * travel as src/sim's do. Each worker has a stack of its own, so that one whose stage takes time
 * stands still in the middle of it while the others go on. Rails (schedule hybrid) are driven here
 * whenever they have something, as threads of their own would. */
#include "base/mem.h"
#include "decide.h"
#include "engine/coord/coord_int.h"
#include "engine/host/host.h"
#include "engine/worker/worker.h"
#include "net/rails_int.h"
#include "sim/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define ORIGIN_US    10000000u /* of the load's time, when all workers are ready */
#define HEADER_BYTES SL_WIRE_HEADER_BYTES
#define STACK_BYTES  (8u << 20) /* what threads have */

typedef enum event_kind {
    EV_COME,  /* a request */
    EV_RAN,   /* who: worker; its stage is over */
    EV_HEAD,  /* what: parcel reaches the receiver's in-port */
    EV_THERE, /* what: parcel is there */
} event_kind;

typedef struct parcel {
    sl_loop_parcel p;
    uint32_t src, dst, rail;
    bool there;
    struct parcel *next; /* of the same link */
} parcel;

typedef struct channel {
    parcel *first, **last;
} channel;

/* A worker, or last the coordinator. */
typedef struct actor {
    sl_worker_opts opts;
    sl_worker *w;
    sl_watch watch;
    stage_times times;
    uint64_t address[SL_RAILS_MAX]; /* of its main net, and from 1 on of its rails */
    sl_sim_port out[SL_RAILS_MAX], in[SL_RAILS_MAX];
    bool dirty;
    ucontext_t here, outside;
    char *stack;
    bool busy;      /* its last turn found something to do */
    bool in_stage;  /* it stands in a stage, ... */
    bool awaited;   /* ...whose end, an EV_RAN, is to come... */
    double wake_us; /* ...then */
} actor;

typedef struct world {
    scene *x;
    sl_engine *engine;
    uint32_t n; /* workers */
    actor actor[MAX_WORKERS + 1];
    channel link[SL_RAILS_MAX][MAX_WORKERS + 1][MAX_WORKERS + 1];
    sl_sim_events ev;
    uint64_t start_us; /* before all are ready */
    bool serving, over, any_dirty;
    uint32_t n_come, n_ended;
    uint32_t *n_known; /* [n] tokens of a request */
    char why[200];
} world;

static world *the_world; /* of new stacks */

static bool failed(world *v, const char *why) {
    if (!v->why[0]) snprintf(v->why, sizeof v->why, "%s", why);
    return false;
}

static uint64_t now_us(void *ctx) {
    const world *v = ctx;
    return v->serving ? ORIGIN_US + (uint64_t)v->ev.now : v->start_us;
}

/* ---- messages ---- */

static const sl_link_cost *link_of(const world *v, uint32_t worker, uint32_t by) {
    if (by > 0) return &v->x->rail[by - 1];
    bool attention = v->x->plan.worker[worker].roles & SL_ROLE_ATTENTION;
    return attention ? &v->x->attention.link : &v->x->expert.link;
}

/* Which rail of whom has that address, 0 being the main net. */
static uint32_t actor_at(const world *v, uint64_t address, uint32_t *by) {
    for (uint32_t i = 0; i <= v->n; i++)
        for (*by = 0; *by < SL_RAILS_MAX; ++*by)
            if (v->actor[i].address[*by] == address) return i;
    SL_ASSERT(!"a net of nobody");
    return 0;
}

static void touch(world *v, uint32_t who) {
    v->actor[who].dirty = v->any_dirty = true;
}

/* What is there and nothing before it is missing reaches its receiver. */
static void hand_over(world *v, channel *l) {
    for (parcel *p; (p = l->first) && p->there;) {
        sl_loop_hub_deliver(v->engine->hub, &p->p);
        l->first = p->next;
        free(p);
    }
    if (!l->first) l->last = &l->first;
}

/* Whether it takes a time that src/sim knows; the others (handshakes, heartbeats, statistics) take
 * none, and nobody is woken by them. */
static bool takes_time(uint16_t kind) {
    static const uint16_t kinds[] = {SL_MSG_SUBMIT,    SL_MSG_CANCEL,  SL_MSG_TOKENS,
                                     SL_MSG_ACK,       SL_MSG_PAGES,   SL_MSG_DISPATCH,
                                     SL_MSG_RETURN,    SL_MSG_JOIN,    SL_MSG_ROUND_OPEN,
                                     SL_MSG_ROUND_SET, SL_MSG_STRIPED, SL_MSG_STRIPE};
    for (size_t i = 0; i < SL_LEN(kinds); i++)
        if (kinds[i] == kind) return true;
    return false;
}

static void leave(world *v, parcel *p) {
    double now = v->ev.now;
    if (p->src == v->n || p->dst == v->n) {
        sl_sim_events_push(&v->ev, now + v->x->control_us, EV_THERE, 0, (uint64_t)(uintptr_t)p);
        return;
    }
    const sl_link_cost *c = link_of(v, p->src, p->rail);
    double at = sl_sim_leave(&v->actor[p->src].out[p->rail], now, c, c->alpha_us,
                             (double)(p->p.bytes + HEADER_BYTES));
    sl_sim_events_push(&v->ev, at, EV_HEAD, 0, (uint64_t)(uintptr_t)p);
}

static void carry(void *ctx, const sl_loop_parcel *given) {
    world *v = ctx;
    if (!v->serving || v->over) { /* nothing else is on its way */
        sl_loop_hub_deliver(v->engine->hub, given);
        return;
    }
    parcel *p = calloc(1, sizeof *p);
    SL_ASSERT(p);
    p->p = *given;
    p->src = actor_at(v, given->from, &p->rail);
    p->dst = actor_at(v, given->to, &p->rail);
    p->there = !takes_time(given->kind);
    channel *l = &v->link[p->rail][p->src][p->dst];
    *l->last = p;
    l->last = &p->next;
    if (!p->there) leave(v, p);
    hand_over(v, l);
}

static void on_head(world *v, parcel *p) {
    actor *to = &v->actor[p->dst];
    const sl_link_cost *here = link_of(v, p->dst, p->rail);
    sl_sim_port *port = here->half_duplex ? &to->out[p->rail] : &to->in[p->rail];
    double at = sl_sim_come(port, v->ev.now, link_of(v, p->src, p->rail), here,
                            (double)(p->p.bytes + HEADER_BYTES));
    sl_sim_events_push(&v->ev, at, EV_THERE, 0, (uint64_t)(uintptr_t)p);
}

/* What threads do where time is real: at once, whatever the worker is at. */
static void drive_rails(const actor *a) {
    const sl_rails *r = a->w ? a->w->rails : NULL;
    for (uint32_t i = 1; r && i < r->o.n; i++) rail_turn(&a->w->rails->rail[i]);
}

static void on_there(world *v, parcel *p) {
    uint32_t src = p->src, dst = p->dst, by = p->rail;
    p->there = true;
    hand_over(v, &v->link[by][src][dst]);
    if (by > 0) drive_rails(&v->actor[dst]);
    if (v->actor[dst].in_stage) sl_worker_tick(v->actor[dst].w); /* as kernels do all the while */
    touch(v, dst);
}

/* ---- requests ---- */

typedef struct asked {
    world *v;
    uint32_t number;
} asked;

static void on_event(void *ctx, const sl_request_event *ev) {
    asked *r = ctx;
    world *v = r->v;
    for (uint32_t i = 0; i < ev->n; i++)
        v->x->token[r->number][v->n_known[r->number]++] = ev->tokens[i];
    if (ev->finish == SL_FINISH_NONE) return;
    v->n_ended++;
    if (ev->finish != SL_FINISH_LENGTH) failed(v, ev->message ? ev->message : "a request stopped");
    free(r);
}

static void come(world *v) {
    uint32_t number = v->n_come++;
    const sl_trace_request *t = &v->x->arrival[number];
    uint32_t *ids = v->x->token[number];
    asked *r = calloc(1, sizeof *r);
    SL_ASSERT(r);
    *r = (asked){v, number};
    for (uint32_t i = 0; i < t->input; i++) ids[i] = (number * 131 + i * 7) % v->x->model->vocab;
    v->n_known[number] = t->input;
    const sl_request_params p = {.prompt = ids,
                                 .n_prompt = t->input,
                                 .max_tokens = t->output,
                                 .sampling = {.top_p = 1},
                                 .ignore_eos = true,
                                 .on_event = on_event,
                                 .ctx = r};
    uint64_t id;
    sl_err err;
    if (sl_engine_submit(v->engine, &p, &id, &err) != SL_OK) {
        failed(v, err.msg);
        free(r);
    }
    touch(v, v->n);
    if (v->n_come == v->x->n) return;
    double at = (double)v->x->arrival[v->n_come].at_us;
    sl_sim_events_push(&v->ev, SL_MAX(at, v->ev.now), EV_COME, 0, 0);
}

/* ---- turns ---- */

static void check_stopped(world *v, const actor *a) {
    sl_status st;
    sl_err err;
    if (sl_worker_stopped(a->w, &st, &err)) failed(v, st == SL_OK ? "a worker stopped" : err.msg);
}

/* On the worker's stack: one turn after the other. */
static void live(uint32_t i) {
    actor *a = &the_world->actor[i];
    for (;;) {
        a->busy = sl_worker_step(a->w);
        swapcontext(&a->here, &a->outside);
    }
}

/* On the worker's stack, in a stage. */
static void pass(void *ctx, double us) {
    actor *a = ctx;
    if (!the_world->serving) return;
    a->wake_us = the_world->ev.now + us;
    a->in_stage = true;
    swapcontext(&a->here, &a->outside);
    a->in_stage = false;
}

/* It goes on until its turn is over, or it stands in a stage. */
static void go_on(world *v, actor *a) {
    swapcontext(&a->outside, &a->here);
    drive_rails(a);
    check_stopped(v, a);
}

static void run_coordinator(world *v) {
    while (sl_engine_step(v->engine)) continue;
}

/* Turns until a stage takes time, or there is nothing to do. */
static void run_worker(world *v, uint32_t i) {
    actor *a = &v->actor[i];
    a->busy = true;
    while (a->busy && !a->in_stage && !v->why[0]) go_on(v, a);
    if (!a->in_stage || a->awaited) return;
    a->awaited = true;
    sl_sim_events_push(&v->ev, a->wake_us, EV_RAN, i, 0);
}

static void ran(world *v, uint32_t i) {
    v->actor[i].awaited = false;
    go_on(v, &v->actor[i]);
    touch(v, i);
}

static void handle(world *v, const sl_sim_event *e) {
    switch ((event_kind)e->kind) {
    case EV_COME:
        come(v);
        break;
    case EV_RAN:
        ran(v, e->who);
        break;
    case EV_HEAD:
        on_head(v, (parcel *)(uintptr_t)e->what);
        break;
    case EV_THERE:
        on_there(v, (parcel *)(uintptr_t)e->what);
        break;
    }
}

/* Who may have something to do at this time does it, in the order of ids, the coordinator last. */
static void run_dirty(world *v) {
    for (uint32_t i = 0; v->any_dirty && i <= v->n; i++) {
        if (!v->actor[i].dirty) continue;
        v->actor[i].dirty = false;
        if (i == v->n)
            run_coordinator(v);
        else
            run_worker(v, i);
    }
    v->any_dirty = false;
}

static void run_load(world *v) {
    sl_sim_event e;
    sl_sim_events_push(&v->ev, 0, EV_COME, 0, 0);
    while (!v->why[0] && sl_sim_events_pop(&v->ev, &e)) {
        handle(v, &e);
        if (!sl_sim_events_at_once(&v->ev)) run_dirty(v);
    }
    if (v->n_ended < v->x->n) failed(v, "requests do not end");
}

/* ---- life ---- */

static uint64_t number_of(const char *address) {
    return strtoull(address + strlen("loop:"), NULL, 10);
}

static bool start_worker(world *v, uint32_t i) {
    sl_err err;
    actor *a = &v->actor[i];
    bool attention = v->x->plan.worker[i].roles & SL_ROLE_ATTENTION;
    a->times = (stage_times){attention ? &v->x->attention : &v->x->expert, pass, a};
    a->opts = (sl_worker_opts){.coordinator = sl_net_address(v->engine->net),
                               .transport = "loop",
                               .hub = v->engine->hub,
                               .secret = v->engine->o.secret,
                               .wanted = i,
                               .device = {timed_open, &a->times},
                               .watch = &a->watch,
                               .clock = {now_us, v}};
    a->address[0] = v->actor[v->n].address[0] + 1 + i; /* of a hub: in the order of nets */
    if (sl_worker_create(&a->opts, &a->w, &err) != SL_OK) return failed(v, err.msg);
    SL_ASSERT(a->address[0] == number_of(sl_net_address(a->w->net)));
    a->stack = malloc(STACK_BYTES);
    if (!a->stack || getcontext(&a->here) != 0) return failed(v, "no stack for a worker");
    a->here.uc_stack = (stack_t){.ss_sp = a->stack, .ss_size = STACK_BYTES};
    makecontext(&a->here, (void (*)(void))live, 1, i);
    return true;
}

/* Whether all are connected: where threads drive them nobody knows when they are. */
static bool rails_are_there(const world *v) {
    bool all = true;
    for (uint32_t i = 0; i < v->n; i++) {
        const sl_rails *r = v->actor[i].w->rails;
        for (const rails_link *l = r ? r->links : NULL; l; l = l->next)
            all = all && l->bound == r->all_bound;
    }
    return all;
}

static void find_rails(world *v) {
    for (uint32_t i = 0; i < v->n; i++) {
        const sl_rails *r = v->actor[i].w->rails;
        for (uint32_t t = 1; r && t < r->o.n; t++)
            v->actor[i].address[t] = number_of(sl_net_address(r->rail[t].net));
    }
}

static bool start(world *v) {
    sl_err err;
    actor *c = &v->actor[v->n];
    const sl_engine_opts o = {.model_folder = v->x->folder,
                              .transport = "loop",
                              .spawn = SL_SPAWN_NONE,
                              .plan = v->x->plan};
    if (sl_engine_create_stepped(&o, (sl_clock){now_us, v}, &v->engine, &err) != SL_OK)
        return failed(v, err.msg);
    /* Time goes from event to event here, which is no stop of this process. */
    v->engine->clock = (sl_clock){now_us, v};
    c->address[0] = number_of(sl_net_address(v->engine->net));
    sl_loop_hub_set_carrier(v->engine->hub, carry, v);
    v->engine->admit.shape.watch = &c->watch;
    for (uint32_t i = 0; i < v->n; i++)
        if (!start_worker(v, i)) return false;
    bool ready = false;
    for (; !ready && v->start_us < ORIGIN_US; v->start_us += 100) {
        (void)sl_engine_step(v->engine);
        for (uint32_t i = 0; i < v->n; i++) go_on(v, &v->actor[i]);
        ready = v->engine->serving && rails_are_there(v);
    }
    if (!ready) return failed(v, "workers are not ready");
    find_rails(v);
    v->serving = true;
    return true;
}

static void stop(world *v) {
    v->over = true; /* what is said from now on takes no time, as what was said before */
    for (uint32_t r = 0; r < SL_RAILS_MAX; r++)
        for (uint32_t i = 0; i <= v->n; i++)
            for (uint32_t j = 0; j <= v->n; j++) {
                for (parcel *p = v->link[r][i][j].first; p; p = p->next) p->there = true;
                hand_over(v, &v->link[r][i][j]);
            }
    for (uint32_t i = 0; i < v->n; i++) {
        const sl_worker *w = v->actor[i].w;
        if (w && w->rails) v->x->striped += sl_rails_stats_of(w->rails).striped;
        sl_worker_free(v->actor[i].w, true);
        free(v->actor[i].stack);
    }
    sl_engine_free(v->engine);
    sl_sim_events_free(&v->ev);
    sl_free(v->n_known);
}

bool world_run(scene *x, decisions *log) {
    world *v = sl_alloc(1, sizeof *v);
    if (!v) return false;
    *v = (world){.x = x, .n = x->plan.n_workers};
    v->n_known = sl_alloc(x->n, sizeof *v->n_known);
    the_world = v;
    for (uint32_t i = 0; i <= v->n; i++) {
        actor *a = &v->actor[i];
        a->watch = (sl_watch){decisions_saw, &log[i]};
        log[i].origin_us = ORIGIN_US;
        for (uint32_t r = 0; r < SL_RAILS_MAX; r++)
            for (uint32_t j = 0; j <= v->n; j++) v->link[r][i][j].last = &v->link[r][i][j].first;
    }
    if (v->n_known && start(v)) run_load(v);
    bool ok = !v->why[0];
    if (!ok) printf("the engine's run: %s\n", v->why);
    if (v->engine) stop(v);
    the_world = NULL;
    sl_free(v);
    return ok;
}
