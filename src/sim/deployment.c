/* A deployment in virtual time: workers that take up messages and tasks, the loop, life and death.
 * What its parts share is sim_world.c. */
#include "sim/deployment_int.h"

#include <math.h>
#include <stdlib.h>

#define BETWEEN_US 1e5  /* a worker that ran something so recently waits; else it is idle */
#define LATE_US    0.01 /* of a task: not worth another event */

/* The worker takes it up. */
static void handle_message(sim *s, sim_worker *w, uint32_t id) {
    const sim_msg *m = &s->msg[id];
    if (sim_msg_is_void(s, m)) {
        sim_msg_drop(s, id);
        return;
    }
    switch (m->kind) {
    case SIM_MSG_DISPATCH:
        if (s->aep)
            sim_queue_on_dispatch(s, w, id);
        else
            sim_expert_on_dispatch(s, w, id);
        return;
    case SIM_MSG_RETURN:
        if (s->aep)
            sim_flow_on_return(s, w, id);
        else
            sim_attn_on_return(s, w, id);
        return;
    case SIM_MSG_JOIN:
        sim_expert_on_join(s, w, id);
        break;
    case SIM_MSG_SET:
        sim_expert_on_set(s, w, id);
        break;
    case SIM_MSG_PAGES:
        sl_sim_events_push(&s->ev, sim_now(s) + s->s->control_us, SIM_COPIED, w->id, id);
        return;
    default:
        sim_attn_on_open(s, w, id);
    }
    sim_msg_drop(s, id);
}

/* ---- tasks ---- */

/* Rows for its experts that it has not taken up. */
static double inbox_rows(const sim *s, const sim_worker *w) {
    double rows = 0;
    for (uint32_t i = 0; i < w->inbox.n; i++) {
        const sim_item *it = &w->inbox.item[(w->inbox.head + i) % w->inbox.cap];
        if (it->kind == SIM_DELIVER && s->msg[it->what].kind == SIM_MSG_DISPATCH)
            rows += s->msg[it->what].entries;
    }
    return rows;
}

static double depth_of(const sim *s, const sim_worker *w) {
    double depth = inbox_rows(s, w);
    if (w->attn) depth += s->aep ? sim_flow_depth(w) : sim_attn_depth(s, w);
    if (w->expert) depth += sim_expert_depth(w);
    if (w->queue) depth += sim_queue_depth(w);
    return depth;
}

static void book_depth(sim *s, sim_worker *w) {
    double now = sim_now(s);
    if (sim_counts(s))
        w->depth_area += w->depth * (now - SL_MAX(w->depth_since, s->result.from_us));
    w->depth = depth_of(s, w);
    w->depth_since = now;
    if (sim_counts(s)) w->depth_max = SL_MAX(w->depth_max, w->depth);
}

/* What came since the last task. */
static void drain_inbox(sim *s, sim_worker *w) {
    sim_item it;
    while (s->status == SL_OK && sim_inbox_pop(&w->inbox, &it)) {
        if (it.kind == SIM_DELIVER)
            handle_message(s, w, it.what);
        else
            sim_attn_on_control(s, w, (sim_event_kind)it.kind, it.what);
    }
}

/* Experts first: others wait for them. */
static bool start_task(sim *s, sim_worker *w) {
    bool goes_on = sim_flow_goes_on(w);
    w->n_kernels = 0;
    w->about = (sl_trace_event){0};
    if (!goes_on) drain_inbox(s, w);
    if (w->expert && sim_expert_start(s, w)) w->running = SIM_RUN_EXPERT;
    if (w->queue && !goes_on && sim_queue_start(s, w)) w->running = SIM_RUN_QUEUE;
    if (w->running == SIM_REST && w->attn && s->aep && sim_flow_start(s, w))
        w->running = SIM_RUN_FLOW;
    if (w->running == SIM_REST && w->attn && !s->aep && sim_attn_start(s, w))
        w->running = SIM_RUN_TURN;
    return w->running != SIM_REST;
}

static void note_rest(sim *s, sim_worker *w) {
    double now = sim_now(s);
    if (now <= w->rest_since || !w->trace) return;
    bool waits = now - w->rest_since < BETWEEN_US && w->tasks > 0;
    uint8_t why = w->attn ? SL_TRACE_WHY_EXPERTS : SL_TRACE_WHY_DISPATCH;
    sim_note(
        w, (sl_trace_event){.kind = waits ? SL_TRACE_WAIT : SL_TRACE_IDLE, .why = waits ? why : 0},
        w->rest_since, now);
}

/* ---- neighbours in the same memory ---- */

static void count_busy(sim *s, int change) {
    s->busy_area += s->n_busy * (sim_now(s) - s->busy_at);
    s->busy_at = sim_now(s);
    s->n_busy += (uint32_t)change;
}

static void begin_busy(sim *s, sim_worker *w, double us) {
    double slow = 0;
    for (uint32_t i = 0; i < w->n_kernels; i++) slow += w->kernel[i].slow * w->kernel[i].us;
    count_busy(s, 1);
    w->slow = slow / us;
    w->late_us = 0;
    w->looked_at = sim_now(s);
    w->area_at = s->busy_area;
}

/* What others computed since the last look makes the task longer; false: it is over. */
static bool is_late(sim *s, sim_worker *w) {
    if (w->slow <= 0) return false;
    count_busy(s, 0);
    double passed = sim_now(s) - w->looked_at;
    double others = passed > 0 ? (s->busy_area - w->area_at) / passed - 1 : 0; /* on average */
    double more = passed * (1 - 1 / (1 + w->slow * SL_MAX(others, 0.0)));
    w->looked_at = sim_now(s);
    w->area_at = s->busy_area;
    if (more < LATE_US) return false;
    w->late_us += more;
    sl_sim_events_push(&s->ev, sim_now(s) + more, SIM_TASK, w->id, 0);
    return true;
}

static void finish_task(sim *s, sim_worker *w) {
    sim_running ran = w->running;
    double at = w->began_at, own = 0;
    for (uint32_t i = 0; i < w->n_kernels; i++) own += w->kernel[i].us;
    for (uint32_t i = 0; i < w->n_kernels; i++) {
        sl_trace_event e = w->about;
        double us = w->kernel[i].us * (1 + w->late_us / own);
        e.kind = w->kernel[i].kind;
        e.rows = w->kernel[i].rows;
        sim_note(w, e, at, at + us);
        at += us;
        w->rows += w->kernel[i].rows;
    }
    w->busy_us += sim_now(s) - w->began_at;
    w->tasks += w->n_kernels > 0;
    w->running = SIM_REST;
    w->rest_since = sim_now(s);
    switch (ran) {
    case SIM_RUN_TURN:
        sim_attn_finish(s, w);
        break;
    case SIM_RUN_EXPERT:
        sim_expert_finish(s, w);
        break;
    case SIM_RUN_FLOW:
        sim_flow_finish(s, w);
        break;
    default:
        sim_queue_finish(s, w);
    }
}

/* The worker takes tasks until one lasts. */
static void kick(sim *s, sim_worker *w) {
    while (s->status == SL_OK && !w->dead && w->running == SIM_REST && start_task(s, w)) {
        double us = w->n_kernels ? w->owed_us : 0;
        for (uint32_t i = 0; i < w->n_kernels; i++) us += w->kernel[i].us;
        w->began_at = sim_now(s);
        if (us > 0) {
            note_rest(s, w);
            if (w->owed_us > 0) { /* before the first kernel */
                sim_note(w, (sl_trace_event){.kind = SL_TRACE_PACK}, sim_now(s),
                         sim_now(s) + w->owed_us);
                w->busy_us += w->owed_us;
                w->began_at += w->owed_us;
                w->owed_us = 0;
            }
            begin_busy(s, w, us);
            sl_sim_events_push(&s->ev, sim_now(s) + us, SIM_TASK, w->id, 0);
            break;
        }
        finish_task(s, w);
    }
    book_depth(s, w);
    w->dirty = false;
}

/* ---- the loop ---- */

static void die(sim *s, uint32_t id) {
    sim_worker *w = &s->worker[id];
    if (w->dead) return;
    w->dead = true;
    if (w->running != SIM_REST) count_busy(s, -1);
    w->running = SIM_REST;
    sl_sim_events_push(&s->ev, sim_now(s) + s->s->notice_us, SIM_NOTICE, id, 0);
}

/* Expert workers wait for it no longer. */
static void announce(sim *s, uint32_t id) {
    for (uint32_t i = 0; i < s->side[0].n_expert; i++) {
        sim_worker *w = &s->worker[s->side[0].expert_id[i]];
        if (s->aep)
            sim_queue_on_dead(s, w, id);
        else
            sim_expert_on_dead(s, w, id);
        sim_touch(s, w);
    }
}

/* What the engine does when others notice: see sl_sim_death. */
static void notice(sim *s, uint32_t id) {
    uint32_t duties;
    if (!sl_roster_ended(&s->roster, id, id, &duties)) return;
    if (duties & SL_ROSTER_REHOST) { /* nobody can host its experts */
        for (uint32_t i = 0; i < s->side[0].n_attn; i++)
            sim_attn_lose(s, &s->worker[s->side[0].attn_id[i]]);
        sim_coord_experts_lost(s);
        return;
    }
    sim_attn_lose(s, &s->worker[id]);
    sim_coord_worker_lost(s, id);
    if (duties & SL_ROSTER_ANNOUNCE) announce(s, id);
}

static sim_item item_of(const sl_sim_event *e) {
    return (sim_item){.kind = e->kind, .who = e->who, .what = (uint32_t)e->what};
}

static void handle(sim *s, const sl_sim_event *e) {
    switch ((sim_event_kind)e->kind) {
    case SIM_BEGIN: /* the coordinator has been touched */
        break;
    case SIM_COME:
        sim_coord_come(s);
        break;
    case SIM_CLIENT:
        sim_coord_client(s, e->who);
        break;
    case SIM_SUBMIT:
    case SIM_PAGE:
    case SIM_CANCEL:
    case SIM_ACK:
    case SIM_FETCH:
        sim_inbox_push(s, &s->worker[e->who].inbox, item_of(e));
        sim_touch(s, &s->worker[e->who]);
        break;
    case SIM_COPIED:
        sim_coord_copied(s, (uint32_t)e->what);
        break;
    case SIM_HEAR:
        sim_inbox_push(s, &s->heard, item_of(e));
        sim_touch_coord(s);
        break;
    case SIM_TASK:
        if (s->worker[e->who].dead || is_late(s, &s->worker[e->who])) break;
        count_busy(s, -1);
        finish_task(s, &s->worker[e->who]);
        sim_touch(s, &s->worker[e->who]);
        break;
    case SIM_BACK:
        if (s->worker[e->who].dead) break;
        sim_attn_back(s, &s->worker[e->who], (uint32_t)e->what);
        sim_touch(s, &s->worker[e->who]);
        break;
    case SIM_HEAD:
        sim_msg_head(s, e->what);
        break;
    case SIM_DELIVER:
        sim_msg_deliver(s, (uint32_t)e->what);
        break;
    case SIM_PORT:
        sim_port_turn(s, e->who, e->what);
        break;
    case SIM_DIE:
        die(s, e->who);
        break;
    case SIM_NOTICE:
        notice(s, e->who);
        break;
    case SIM_END:
        s->phase = SIM_ENDING;
        s->over = s->result.from_us <= 0 && s->s->warmup_us > 0; /* no token came at all */
        break;
    }
}

static int by_id(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Who may have something to do at this time does it, in the order of ids, the coordinator last. */
static void run_all(sim *s) {
    qsort(s->dirty, s->n_dirty, sizeof *s->dirty, by_id);
    for (uint32_t i = 0; i < s->n_dirty && s->status == SL_OK; i++) {
        if (s->dirty[i] < s->n_workers)
            kick(s, &s->worker[s->dirty[i]]);
        else
            sim_coord_run(s);
    }
    s->n_dirty = 0;
}

static sl_status loop(sim *s) {
    sl_sim_event e;
    while (s->status == SL_OK && !s->over && sl_sim_events_pop(&s->ev, &e)) {
        handle(s, &e);
        if (sl_sim_events_at_once(&s->ev)) continue;
        run_all(s);
        if (s->ev.failed) sim_fail(s, sim_oom(s, "events"));
        if (s->s->max_events && s->ev.popped >= s->s->max_events) break;
    }
    for (uint32_t i = 0; i < s->n_workers; i++) {
        book_depth(s, &s->worker[i]);
        note_rest(s, &s->worker[i]);
    }
    return s->status;
}

/* ---- life ---- */

static sl_status check(const sl_sim_setup *s, uint32_t n_attn, uint32_t n_expert, sl_err *err) {
    if (n_attn == 0 || n_expert == 0)
        return sl_fail(err, SL_ERR_ARG, "simulation: %u attention and %u expert workers", n_attn,
                       n_expert);
    if (s->popularity && s->n_layers != 1 && s->n_layers != s->model->n_moe)
        return sl_fail(err, SL_ERR_ARG, "popularity of %u blocks, the model has %u with experts",
                       s->n_layers, s->model->n_moe);
    if (s->model->top_k < 1 || s->model->top_k > s->model->n_experts || s->model->n_moe == 0)
        return sl_fail(err, SL_ERR_ARG, "a model of %u blocks with experts, %u of %u a row",
                       s->model->n_moe, s->model->top_k, s->model->n_experts);
    if (s->plan->lanes < 1 || s->plan->lanes > SL_PLAN_MAX_LANES || s->plan->chunks < 1 ||
        s->plan->max_num_batched_tokens / s->plan->lanes < 1)
        return sl_fail(err, SL_ERR_ARG, "plan of %u lanes, %u chunks, %u rows a step",
                       s->plan->lanes, s->plan->chunks, s->plan->max_num_batched_tokens);
    if (s->plan->speculate && !s->guess && !(s->load->guess_right > 0))
        return sl_fail(err, SL_ERR_ARG,
                       "speculate %s: how many guesses are right has to be said: --acceptance, or "
                       "guesses of the workload",
                       sl_speculate_names[s->plan->speculate]);
    if (sl_speculates_by_mtp(s->plan->speculate) && sl_speculates_by_lookup(s->plan->speculate) &&
        !s->guess && !(s->load->guess_block > 0))
        return sl_fail(err, SL_ERR_ARG,
                       "speculate %s: how many guesses of the block are right has to be said, too: "
                       "--acceptance RIGHT:FOUND:BLOCK",
                       sl_speculate_names[s->plan->speculate]);
    if (s->plan->kv_replicas)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "kv_replicas %u: copies of KV pages are not simulated",
                       s->plan->kv_replicas);
    if (s->n_deaths && sl_plan_has_prefill(s->plan))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "deaths are not simulated where workers are for prompts (prefill)");
    if (!(s->jitter >= 0 && s->jitter <= 10))
        return sl_fail(err, SL_ERR_ARG, "jitter is %g, must be 0 to 10", s->jitter);
    for (uint32_t i = 0; i < s->n_deaths; i++) {
        uint32_t id = s->death[i].worker;
        bool there = s->roles ? id < s->n_workers
                              : id < s->plan->n_workers && sl_plan_first_roles(s->plan, id);
        if (!there) return sl_fail(err, SL_ERR_ARG, "death of worker %u, which is not there", id);
    }
    return SL_OK;
}

static sl_status create_workers(sim *s) {
    for (uint32_t i = 0; i < s->n_workers; i++) {
        sim_worker *w = &s->worker[i];
        w->id = i;
        w->roles = s->s->roles ? s->s->roles[i] : (uint8_t)sl_plan_first_roles(s->p, i);
        w->side = &s->side[sl_plan_sides_apart(s->p) && sl_plan_is_prefill(s->p, i)];
        if (w->roles & SL_ROLE_ATTENTION) w->side->attn_id[w->side->n_attn++] = i;
        if (w->roles & SL_ROLE_EXPERT) {
            s->expert_index[i] = w->side->n_expert;
            w->side->expert_id[w->side->n_expert++] = i;
        }
    }
    return check(s->s, s->side[0].n_attn, s->side[0].n_expert, s->err);
}

static sl_status create_sides(sim *s) {
    for (int i = 0; i < 2; i++) {
        sim_side *side = &s->side[i];
        side->members = (sl_idset){.ids = side->attn_id, .n = side->n_attn};
        side->experts = (sl_idset){.ids = side->expert_id, .n = side->n_expert};
        side->plan = *s->p;
        if (i) side->plan.place = s->p->prefill_place;
    }
    sl_status st = sim_route_create(s);
    for (uint32_t i = 0; st == SL_OK && i < s->n_workers; i++) {
        sim_worker *w = &s->worker[i];
        if (w->roles & SL_ROLE_EXPERT)
            st = s->aep ? sim_queue_create(s, w) : sim_expert_create(s, w);
        if (st == SL_OK && (w->roles & SL_ROLE_ATTENTION)) st = sim_attn_create(s, w);
        if (st == SL_OK && s->s->trace_events)
            st = sl_trace_create(s->s->trace_events, &w->trace, s->err);
    }
    return st;
}

static sl_status create(sim *s) {
    const sl_sim_setup *o = s->s;
    s->n_workers = o->roles ? o->n_workers : s->p->n_workers;
    s->lanes = s->p->lanes;
    s->chunks = s->p->chunks;
    s->max_slots = s->p->max_num_seqs;
    s->max_rows = sl_plan_lane_rows(s->p);
    s->aep = s->p->schedule == SL_SCHED_AEP;
    s->half = o->attention->link.half_duplex;
    s->rails = sl_plan_rails(s->p);
    s->scale = o->time_scale > 0 ? o->time_scale : 1;
    s->sigma = o->jitter > 0 ? sqrt(log(1 + o->jitter * o->jitter)) : 0;
    s->rng = o->seed * 2 + 1;
    s->lengths_rng = o->seed + 0x5eed;
    s->guess_rng = o->seed + 0x9e55;
    s->serving = true;
    s->free_msg = s->free_entry = SIM_NONE;
    s->workers = sl_alloc_arrays(
        SL_ARRAY(s->worker, s->n_workers), SL_ARRAY(s->side[0].attn_id, s->n_workers),
        SL_ARRAY(s->side[0].expert_id, s->n_workers), SL_ARRAY(s->side[1].attn_id, s->n_workers),
        SL_ARRAY(s->side[1].expert_id, s->n_workers), SL_ARRAY(s->expert_index, s->n_workers),
        SL_ARRAY(s->dirty, s->n_workers + 1u), SL_ARRAY(s->moe, s->m->n_layers));
    if (!s->workers) return sim_oom(s, "workers");
    for (uint32_t l = 0; l < s->m->n_layers; l++) s->moe[l] = s->m->ffn[l] != SL_FFN_DENSE;
    sl_status st = create_workers(s);
    if (st == SL_OK) st = sim_links_create(s);
    if (st == SL_OK) st = sim_pipeline_create(s);
    if (st == SL_OK) st = sim_cache_create(s);
    if (st == SL_OK) st = sl_cut_create(s->p, s->m, o->row_bytes, &s->cut, s->err);
    if (st == SL_OK) st = create_sides(s);
    for (uint32_t i = 0; st == SL_OK && i < o->n_deaths; i++)
        sl_sim_events_push(&s->ev, o->death[i].at_us, SIM_DIE, o->death[i].worker, 0);
    return st == SL_OK ? sim_coord_start(s) : st;
}

static void destroy(sim *s) {
    for (uint32_t i = 0; s->worker && i < s->n_workers; i++) {
        sim_attn_free(s, &s->worker[i]);
        sim_expert_free(&s->worker[i]);
        sim_queue_free(&s->worker[i]);
        sl_trace_free(s->worker[i].trace);
        sl_free(s->worker[i].inbox.item);
    }
    for (uint32_t i = 0; i < s->n_msgs; i++) {
        sim_set_drop(s->msg[i].set);
        sl_free(s->msg[i].pair);
    }
    sim_links_free(s);
    sl_admit_free(&s->admit);
    sl_roster_free(&s->roster);
    void *const owned[] = {s->workers, s->tables, s->caches, s->msg,      s->entry,     s->req,
                           s->ttft.v,  s->itl.v,  s->tpot.v, s->queued.v, s->heard.item};
    for (size_t i = 0; i < SL_LEN(owned); i++) sl_free(owned[i]);
    sl_cut_free(&s->cut);
    sl_sim_events_free(&s->ev);
}

sl_status sl_sim_run(const sl_sim_setup *setup, sl_sim_result *out, sl_err *err) {
    *out = (sl_sim_result){0};
    sim *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "simulation");
    s->s = setup;
    s->m = setup->model;
    for (uint32_t l = 0; l < s->m->n_layers; l++) s->n_sight[s->m->sight[l]]++;
    s->p = setup->plan;
    s->err = err;
    sl_status st = create(s);
    if (st == SL_OK) st = loop(s);
    if (st == SL_OK) st = sim_report(s, out);
    destroy(s);
    sl_free(s);
    return st;
}
