/* The loop of a worker, its connections, and what the coordinator tells it. Its two sides are in
 * the folders attn and expert, what all of them stand on in host. */
#include "engine/worker/worker.h"

#include "base/log.h"
#include "base/notify.h"
#include "engine/attn/attn.h"
#include "engine/attn/disk.h"
#include "engine/attn/keep.h"
#include "engine/expert/expert.h"
#include "engine/host/far.h"
#include "engine/worker/far_windows.h"
#include "engine/worker/peers.h"
#include "engine/worker/survey.h"
#include "engine/worker/take.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "format/json.h"
#include "sched/head.h"
#include "sched/hedge.h"
#include "spec/schedules.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PLAN_MEMORY ((size_t)256 << 20) /* of a parsed plan */
#define IDLE_US     100000u             /* longest sleep without a reason to wake */
/* Who has waited for rows so long in vain does so for somebody who is stopped, or for a plan: it
 * sleeps. */
#define SOON_NS 20000000u
/* So long a device that nobody waits for is made ready beside everything else. */
#define QUIET_MS 5000u
#define TICK_US  100u
/* While ranks on machines get their parts of a message, to hear what they say. */
#define RANKS_LOOK_US 50u
/* ...and for rows that they gather meanwhile: what sockets hold is on its way until then. */
#define GATHERS_LOOK_US 500u
/* How long after its last task a worker without an open round still counts as waiting. */
#define BETWEEN_ROUNDS_NS 100000000ull
#define JOIN_PAUSE_MS     100u  /* between two attempts to join; doubles... */
#define JOIN_PAUSE_MAX_MS 2000u /* ...up to this */

/* ---- fabric callbacks: they run inside progress, possibly under a kernel's tick, so they only
 * note what came and leave the work to the loop ---- */

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    sl_worker *w = ctx;
    if (!peer->is_coordinator && c == w->coordinator)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %u answers where the coordinator is called",
                       peer->worker);
    if (!peer->is_coordinator) {
        const bool calls = !sl_peers_of(w, c);
        sl_status st = sl_peers_on_open(w, c, peer, err);
        return st == SL_OK && calls && w->rails ? sl_rails_greet(w->rails, c, err) : st;
    }
    if (c != w->coordinator) return sl_fail(err, SL_ERR_PROTOCOL, "a second coordinator");
    w->coordinator_open = true;
    return SL_OK;
}

static sl_status take_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                              sl_err *err) {
    sl_worker *w = ctx;
    const sl_worker_peer *p = sl_peers_of(w, c);
    sl_inbox_item item = {.conn = c,
                          .from_coordinator = c == w->coordinator,
                          .h = *h,
                          .payload = payload,
                          .came_ns = sl_now_ns(),
                          .came_us = sl_clock_now_us(&w->clock)};
    if (p) item.h.src = (uint32_t)(p - w->peer); /* who is authenticated, not what is claimed */
    if (p) item.far = p->far;
    if (p) sl_worker_note_arrival(w, &item.h, item.came_ns);
    sl_status st = sl_inbox_push(&w->inbox, item, err);
    if (st != SL_OK) sl_net_buf_give(w->net, payload);
    return st;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    sl_worker *w = ctx;
    return w->rails && c != w->coordinator ? sl_rails_on_message(w->rails, c, h, payload, err)
                                           : take_message(w, c, h, payload, err);
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    sl_worker *w = ctx;
    if (w->rails) sl_rails_on_down(w->rails, c);
    if (sl_peers_of(w, c) || c == w->coordinator) /* else it was turned away: the fabric says so */
        sl_log(SL_LOG_INFO, "worker", "connection to %s ended: %s (%s)", sl_conn_hello(c)->name,
               text, sl_status_text(why));
    /* What it said before still counts, but the connection itself is about to be freed. */
    for (size_t i = 0; i < w->inbox.len; i++) {
        sl_inbox_item *it = sl_inbox_at(&w->inbox, i);
        if (it->conn == c) it->conn = NULL;
    }
    if (c != w->coordinator) {
        sl_peers_on_down(w, c, why);
        return;
    }
    w->coordinator = NULL;
    sl_worker_stop(w, sl_fail(&w->stop_err, why == SL_OK ? SL_ERR_PEER_DOWN : why,
                              "coordinator %s: %s", w->opts->coordinator, text));
    w->coordinator_open = false;
}

/* ---- the plan ---- */

/* Rows of a block that ran inside the device. */
static void on_routed(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert) {
    sl_worker *w = ctx;
    const sl_model_spec *m = w->device->spec;
    w->n.expert_rows += (uint64_t)rows * m->top_k;
    sl_counts_routed(&w->counts, layer, m->moe_index[layer], expert, (size_t)rows * m->top_k);
}

/* ---- rails of ranks on machines of their own ---- */

static void on_rail_word(void *ctx, uint32_t rank, const sl_rails_word *word) {
    sl_worker *w = ctx;
    if (w->rails) sl_rails_on_word(w->rails, rank, word);
}

static void say_to_rank(void *ctx, uint32_t rank, const sl_rails_word *word) {
    sl_worker *w = ctx;
    if (w->device) w->device->ops->rail(w->device, rank, word);
}

static void listen_to_ranks(void *ctx) {
    sl_worker *w = ctx;
    if (w->device) sl_device_tend(w->device);
}

static void greet_callers(sl_worker *w) {
    sl_err err;
    for (uint32_t id = 0; id < w->n_peers; id++) {
        const sl_worker_peer *peer = &w->peer[id];
        if (peer->open && !peer->called_us && sl_rails_greet(w->rails, peer->conn, &err) != SL_OK)
            sl_net_close(w->net, peer->conn, err.code, err.msg);
    }
}

/* A step of fewer has no message that is long enough. */
static uint32_t spread_rows(const sl_plan *p, const sl_model_spec *m) {
    const size_t row = sl_wire_row_bytes((sl_wire_format)p->wire, m->d_model);
    return (uint32_t)((p->rail_bytes + row - 1) / row);
}

static sl_status open_device(sl_worker *w, const char *folder, const sl_model_spec *m,
                             sl_err *err) {
    const sl_plan *p = &w->plan;
    uint8_t *hosted = sl_alloc((size_t)m->n_moe * p->n_experts, 1);
    if (!hosted) return sl_fail(err, SL_ERR_NOMEM, "table of hosted experts");
    sl_placement_mark(p, m->n_moe, w->id, hosted);
    const bool attention = w->roles & SL_ROLE_ATTENTION, experts = w->roles & SL_ROLE_EXPERT;
    const sl_device_spec device = sl_plan_device_of(p, w->id);
    w->kv_fd = w->keep ? sl_keep_file(w->keep, w->id, p, m, folder) : w->opts->kv_fd;
    const sl_device_opts o = {.folder = folder,
                              .hosts = {.attention = attention,
                                        .experts = experts,
                                        .hosted = hosted,
                                        .skew = p->skew,
                                        .random = p->random_weights,
                                        .mtp = attention && sl_speculates_by_mtp(p->speculate),
                                        .kv_type = p->kv_type,
                                        .segmented = p->segments},
                              .device = &device,
                              .isa = w->opts->isa,
                              .threads =
                                  w->opts->threads ? w->opts->threads : SL_MAX(p->threads, 1u),
                              .ranks = sl_plan_ranks(p, w->roles),
                              .pipeline = sl_plan_pipeline(p),
                              .rank_kind = p->rank_kind,
                              .ranks_at = p->worker[w->id].ranks,
                              .secret = w->opts->secret,
                              .spreads = sl_plan_spreads(p),
                              .spread_rows = spread_rows(p, m),
                              .wire = (sl_wire_format)p->wire,
                              .rail_word = on_rail_word,
                              .encrypt = w->opts->encrypt,
                              .apart = sl_worker_picks_cpus(w, w->opts->cpu),
                              .numa = w->opts->numa ? w->opts->numa > 0 : p->numa,
                              .activations = p->activations,
                              .exact = p->exact,
                              .max_rows = attention ? sl_plan_lane_rows(p) : 0,
                              .max_pairs = experts ? sl_worker_max_pairs(w, m) : 0,
                              .head_rows = attention ? SL_HEAD_ROWS : 0,
                              .requests = attention ? p->lanes * p->max_num_seqs : 0,
                              .guesses = attention && p->speculate,
                              .kv_pages = attention ? p->n_pages : 0,
                              .kv_fd = w->kv_fd,
                              .tick = p->pump ? NULL : sl_worker_tick,
                              .wait = sl_worker_wait_until,
                              .ctx = w,
                              .tick_us = TICK_US,
                              .quiet_ms = w->spare && !w->virtual_time ? QUIET_MS : 0,
                              .routed = on_routed,
                              .progress = w->opts->progress,
                              .progress_ctx = w->opts->progress_ctx};
    const uint32_t ranks = sl_plan_all_ranks(p, w->roles);
    const uint32_t cores = sl_device_is_cpu(&device) ? SL_MAX(o.threads, ranks) : 1;
    sl_status st = sl_worker_pin(w, w->opts->cpu, cores, err);
    if (st == SL_OK && p->pump) st = sl_net_set_pump(w->net, err);
    const sl_device_maker *by = &w->opts->device;
    if (st == SL_OK)
        st =
            by->open ? by->open(by->ctx, &o, &w->device, err) : sl_device_open(&o, &w->device, err);
    if (st == SL_OK && w->device->spreads) {
        sl_rails_begin(w->rails);
        greet_callers(w);
    }
    if (o.progress) o.progress(o.progress_ctx, 0, 0);
    if (st == SL_OK && w->device->note[0]) sl_log(SL_LOG_WARN, "worker", "%s", w->device->note);
    sl_free(hosted);
    return st;
}

/* Pages of its KV go to other workers, or come from them. */
static bool moves_pages(const sl_worker *w) {
    bool any = w->plan.kv_replicas > 0;
    for (uint32_t i = 0; i < w->plan.n_workers; i++) any |= w->plan.worker[i].pages;
    return any && (w->roles & SL_ROLE_ATTENTION);
}

static sl_status make_stages(sl_worker *w, const char *folder, const sl_model_spec *m,
                             sl_err *err) {
    sl_status st = open_device(w, folder, m, err);
    if (st == SL_OK) st = sl_counts_create(w->device->spec, &w->counts, err);
    if (st == SL_OK && moves_pages(w) && !sl_device_copies(w->device))
        st = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "%s: this device, or the model, has KV that cannot be copied",
                     w->plan.kv_replicas ? "kv_replicas" : "workers for prompts (prefill)");
    if (st != SL_OK) return st;
    const bool barriers = sl_schedule_traits_of(w->plan.schedule)->barriers;
    w->expert_ops = barriers ? &sl_expert_barriers : &sl_expert_queues;
    if (w->roles & SL_ROLE_EXPERT) st = w->expert_ops->create(w, &w->expert, err);
    if (st == SL_OK && (w->roles & SL_ROLE_ATTENTION))
        st = sl_attn_create(w, folder, &w->attn, err);
    if (st == SL_OK && w->attn) sl_attn_load(w->attn, folder);
    return st;
}

/* What the net was made with; the plan has said who this worker is. */
static sl_net_opts net_opts(sl_worker *w) {
    const sl_worker_opts *o = w->opts;
    return (sl_net_opts){.transport = o->transport,
                         .hub = o->hub,
                         .host = o->host,
                         .port = o->port,
                         .advertise = o->advertise,
                         .secret = o->secret,
                         .hello = w->hello,
                         .clock = w->clock,
                         .silence_limit_us = (uint32_t)(1e6 * o->silence_limit_s),
                         .parent = o->parent,
                         .sums = o->sums,
                         .encrypt = o->encrypt,
                         .windows = o->windows,
                         .on = {on_open, on_message, on_down},
                         .ctx = w};
}

/* Schedule hybrid: who called before the plan was here hears of the rails now. */
static sl_status open_rails(sl_worker *w, sl_err *err) {
    const sl_plan *p = &w->plan;
    const bool asked = w->opts->rails && w->opts->rails[0];
    if (sl_plan_rails(p) == 1 && asked && w->chosen)
        sl_log(SL_LOG_INFO, "worker", "--rails is not used: schedule %s was chosen",
               sl_schedule_name(p->schedule));
    else if (sl_plan_rails(p) == 1 && asked)
        return sl_fail(err, SL_ERR_ARG, "--rails %.60s is for schedule hybrid, the plan has %s",
                       w->opts->rails, sl_schedule_name(p->schedule));
    if (sl_plan_rails(p) == 1) return SL_OK;
    const bool far = sl_plan_spreads(p);
    if (far && asked)
        return sl_fail(err, SL_ERR_ARG,
                       "--rails %.60s: ranks on machines have theirs where they are called",
                       w->opts->rails);
    if (!far && w->opts->advertise && w->opts->advertise[0])
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "schedule %s: rails listen at addresses of this machine, --advertise %s is "
                       "none",
                       sl_schedule_name(p->schedule), w->opts->advertise);
    const sl_rails_far ranks = {.say = say_to_rank, .listen = listen_to_ranks, .ctx = w};
    sl_rails_opts o = {.n = sl_plan_rails(p),
                       .least = p->rail_bytes,
                       .hosts = far ? p->worker[w->id].ranks : w->opts->rails,
                       .far = far ? &ranks : NULL,
                       .main = w->net,
                       .net = net_opts(w),
                       .driven = w->virtual_time,
                       .deliver = take_message,
                       .ctx = w};
    o.net.callers = p->n_workers;
    o.net.windows = false; /* their messages are copied together as it is */
    sl_status st = sl_rails_open(&o, &w->rails, err);
    if (st == SL_OK) greet_callers(w);
    return st;
}

static sl_status adopt_plan(sl_worker *w, sl_err *err) {
    const sl_plan *p = &w->plan;
    sl_status st = sl_peers_reserve(w, p->n_workers, err);
    if (st == SL_OK) st = sl_take_roles(w, err);
    if (st != SL_OK) return st;
    w->inbox.more = (size_t)p->n_workers * p->lanes * p->chunks;
    sl_net_set_callers(w->net, p->n_workers);
    w->roles = p->worker[w->id].roles;
    w->taker.epoch = p->epoch;
    w->hello.worker = w->id;
    w->hello.roles = w->roles;
    w->hello.wire = w->plan.wire;
    char who[24];
    snprintf(who, sizeof who, "worker %u", w->id);
    snprintf(w->hello.name, sizeof w->hello.name, "%s", who);
    w->planned = true;
    return open_rails(w, err);
}

/* {"you": id, "model": folder, "trace_events": most of them, "joins": whether the others run
 * already, "spare": and serve without it, "chosen": nobody said its schedule, "plan": {...}}. *spec
 * is read first, unless this worker has the model. */
static sl_status read_plan(sl_worker *w, sl_json root, const char **folder, uint64_t *trace_events,
                           sl_model_spec *spec, sl_plan *out, sl_err *err) {
    uint64_t you = 0;
    sl_json plan;
    sl_status st = sl_json_u64(root, "you", SL_JSON_REQUIRED, 0, SL_MAX_WORKERS - 1, &you, err);
    if (st == SL_OK) st = sl_json_string(root, "model", SL_JSON_REQUIRED, folder, err);
    if (st == SL_OK)
        st = sl_json_u64(root, "trace_events", SL_JSON_OPTIONAL, 0, SL_TRACE_MAX_EVENTS,
                         trace_events, err);
    if (st == SL_OK && !w->planned) /* until a plan is taken, whatever plans come */
        st = sl_json_bool(root, "joins", SL_JSON_OPTIONAL, &w->taker.joins, err);
    if (st == SL_OK && !w->planned)
        st = sl_json_bool(root, "spare", SL_JSON_OPTIONAL, &w->spare, err);
    if (st == SL_OK && !w->planned)
        st = sl_json_bool(root, "chosen", SL_JSON_OPTIONAL, &w->chosen, err);
    if (st == SL_OK) st = sl_json_object(root, "plan", SL_JSON_REQUIRED, &plan, err);
    if (w->opts->model_folder && w->opts->model_folder[0]) *folder = w->opts->model_folder;
    if (st == SL_OK && w->planned) *spec = *w->device->spec;
    if (st == SL_OK && !w->planned) st = sl_model_read_spec(*folder, spec, NULL, err);
    if (st == SL_OK) st = sl_plan_from_message(plan, spec, out, err);
    if (st == SL_OK) st = sl_plan_check_size(out, spec, err);
    if (st == SL_OK && (you >= out->n_workers || (w->planned && you != w->id)))
        st = sl_fail(err, SL_ERR_PROTOCOL, "plan of %u workers makes this one %u", out->n_workers,
                     (unsigned)you);
    if (!w->planned) w->id = (uint32_t)you;
    return st;
}

/* The next plan of a worker that has one. */
static sl_status on_next_plan(sl_worker *w, sl_json root, sl_err *err) {
    sl_model_spec spec;
    const char *folder = NULL;
    uint64_t trace_events = 0;
    sl_plan next = {0};
    sl_status st = read_plan(w, root, &folder, &trace_events, &spec, &next, err);
    if (st == SL_OK) return sl_take_prepare(w, &next, err);
    sl_plan_free(&next);
    return st;
}

static sl_status on_first_plan(sl_worker *w, sl_json root, sl_err *err) {
    const char *folder = NULL;
    uint64_t trace_events = 0;
    sl_model_spec spec;
    sl_status st = read_plan(w, root, &folder, &trace_events, &spec, &w->plan, err);
    if (st == SL_OK) st = adopt_plan(w, err);
    spec.kv_type = w->plan.kv_type;
    if (st == SL_OK) st = make_stages(w, folder, &spec, err);
    if (st == SL_OK) {
        memcpy(w->hello.model_hash, w->device->spec->hash, 32);
        sl_net_set_hello(w->net, &w->hello);
        sl_worker_enter(w, SL_MODE_SLEEP); /* a trace begins after the model is there */
        if (trace_events) st = sl_trace_create(trace_events, &w->trace, err);
        sl_worker_watch_device(w);
    }
    w->owes_ready = true;
    /* Those who run already hear of this worker with the plan by which it joins them. */
    return st == SL_OK && !w->taker.joins ? sl_peers_connect(w, err) : st;
}

static sl_status on_plan(sl_worker *w, sl_span payload, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st =
        sl_json_parse_within("plan from the coordinator", payload, PLAN_MEMORY, &doc, err);
    if (st == SL_OK)
        st = w->planned ? on_next_plan(w, sl_json_root(doc), err)
                        : on_first_plan(w, sl_json_root(doc), err);
    sl_json_doc_free(doc);
    return st;
}

/* What the plan that came last asks for is there, and everybody it connects this worker with. */
static void report_ready(sl_worker *w) {
    const bool first = !w->taker.next, alone = w->taker.joins && first;
    if (!w->owes_ready || w->goal.due || w->stop || !w->device || !(alone || sl_peers_complete(w)))
        return;
    sl_buf *b = sl_net_buf_take(w->net, 32);
    if (!b) return;
    memcpy(b->data, w->hello.model_hash, 32);
    if (w->attn && first) sl_attn_tell_kept(w->attn);
    const sl_wire_header h = {.kind = SL_MSG_READY,
                              .flags = (sl_worker_is_kept(w) ? SL_WIRE_KEPT : 0) |
                                       (w->device->resumes ? SL_WIRE_RESUMES : 0) |
                                       (w->attn && sl_attn_saves(w->attn) ? SL_WIRE_SAVES : 0),
                              .epoch = first ? w->plan.epoch : w->taker.next};
    w->owes_ready = false;
    sl_worker_send(w, SL_NO_WORKER, h, b); /* a lost coordinator ends the worker */
}

/* ---- dispatch by kind ---- */

/* gone: else it is only done without. */
static sl_status lose(sl_worker *w, uint32_t id, bool gone, bool left, sl_err *err) {
    if (w->attn) sl_attn_lose(w->attn, id, gone);
    return w->expert ? w->expert_ops->on_gone(w->expert, id, left, err) : SL_OK;
}

/* An expert worker lets others wait: until the next plan it counts as lost, though it is connected.
 */
static sl_status on_slow(sl_worker *w, const sl_wire_header *h, sl_span payload, sl_err *err) {
    uint32_t id;
    sl_status st = sl_wire_worker_decode(payload, &id, err);
    if (st != SL_OK || !w->planned || h->epoch != w->plan.epoch) return st;
    if (id == w->id || id >= w->plan.n_workers || w->plan.worker[id].roles != SL_ROLE_EXPERT)
        return sl_fail(err, SL_ERR_PROTOCOL, "worker %u of %u cannot be done without", id,
                       w->plan.n_workers);
    sl_log(SL_LOG_INFO, "worker", "worker %u is too slow, others do what it owes", id);
    return lose(w, id, false, false, err);
}

static sl_status handle_control(sl_worker *w, const sl_wire_header *h, sl_span payload,
                                sl_err *err) {
    switch (h->kind) {
    case SL_MSG_MEASURE:
        return sl_worker_on_measure(w, payload, err);
    case SL_MSG_PLAN:
        return on_plan(w, payload, err);
    case SL_MSG_HOLD:
    case SL_MSG_TAKE:
    case SL_MSG_GO:
        return sl_take_on_word(w, h, payload, err);
    case SL_MSG_SLOW:
        return on_slow(w, h, payload, err);
    case SL_MSG_STATS_GET:
        if (w->attn) sl_attn_count(w->attn);
        if (w->expert && w->expert_ops->count) w->expert_ops->count(w->expert, &w->counts);
        sl_worker_send_stats(w);
        return SL_OK;
    case SL_MSG_CLOCK:
        return sl_worker_answer_clock(w, h);
    case SL_MSG_TRACE_GET:
        return sl_worker_send_trace(w, h);
    case SL_MSG_SHUTDOWN:
        if (w->attn) sl_attn_count(w->attn);
        if (w->device)
            sl_worker_send_stats(w); /* the coordinator may go on: its books are whole then */
        sl_worker_stop(w, SL_OK);    /* also when the coordinator is gone since */
        return SL_OK;
    case SL_MSG_SUBMIT:
        sl_peers_begin_use(w);
        if (w->attn) return sl_attn_on_submit(w->attn, payload, err);
        break;
    case SL_MSG_KV_FETCH:
        sl_peers_begin_use(w);
        if (w->attn) return sl_attn_on_fetch(w->attn, h, payload, err);
        break;
    case SL_MSG_KV_SAVE:
        if (w->attn) return sl_attn_on_save(w->attn, h, payload, err);
        break;
    case SL_MSG_CANCEL:
    case SL_MSG_ACK:
    case SL_MSG_PAGES:
        if (w->attn) return sl_attn_on_pairs(w->attn, h, payload, err);
        break;
    default:
        break;
    }
    return sl_fail(err, SL_ERR_PROTOCOL, "%s from the coordinator", sl_msg_kind_name(h->kind));
}

static sl_status handle_token_path(sl_worker *w, const sl_wire_header *h, sl_span span,
                                   sl_buf **payload, sl_err *err) {
    if (h->epoch == w->plan.epoch) sl_peers_begin_use(w);
    /* What is in a page is a matter of no plan. */
    if (w->attn && (h->kind == SL_MSG_KV_GET || h->kind == SL_MSG_KV_PAGES))
        return sl_attn_on_blocks(w->attn, h, span, err);
    /* Given up, or of somebody who is gone: who died in another epoch is in no round of this one.
     */
    if (h->epoch != w->plan.epoch) {
        w->n.rows_stale += h->rows;
        if (w->attn && h->kind == SL_MSG_RETURN) sl_attn_on_stale(w->attn, h);
        return SL_OK;
    }
    switch (h->kind) {
    case SL_MSG_DISPATCH:
        if (w->expert) return w->expert_ops->on_dispatch(w->expert, h, payload, err);
        break;
    case SL_MSG_JOIN:
    case SL_MSG_ROUND_SET:
    case SL_MSG_MEMBER_DEAD:
        if (w->expert && w->expert_ops->on_peer)
            return w->expert_ops->on_peer(w->expert, h, span, err);
        break;
    case SL_MSG_RETURN:
        if (w->attn) return sl_attn_on_return(w->attn, h->src, h, payload, err);
        break;
    case SL_MSG_ROUND_OPEN:
        if (w->attn) return sl_attn_on_peer(w->attn, h, span, err);
        break;
    case SL_MSG_BUSY:
        if (w->attn) return sl_attn_on_busy(w->attn, h, err);
        break;
    default:
        break;
    }
    return sl_worker_refuse(h, err);
}

/* Peers may hear of an orderly stop first and be gone while this worker still sends to them: with
 * the coordinator's word here, even unread, that is no loss. */
static bool is_told_to_stop(const sl_worker *w) {
    if (w->stop) return w->stop_status == SL_OK;
    for (size_t i = 0; i < w->inbox.len; i++) {
        const sl_inbox_item *it = sl_inbox_at(&w->inbox, i);
        if (it->from_coordinator && it->h.kind == SL_MSG_SHUTDOWN) return true;
    }
    return false;
}

/* A peer is gone, or the connection with it: expert workers take part in every request, unless
 * others can stand in for them, attention workers in barriers. */
static sl_status handle_down(sl_worker *w, uint32_t id, bool left, sl_err *err) {
    if (!w->planned || id >= w->plan.n_workers) return SL_OK;
    uint32_t roles = w->plan.worker[id].roles;
    /* Whoever told this worker before its own connection ended knows whether that one left. */
    bool told = w->expert && w->expert_ops->is_dead && w->expert_ops->is_dead(w->expert, id);
    sl_log(left || told || !roles ? SL_LOG_INFO : SL_LOG_WARN, "worker", "worker %u %s", id,
           left   ? "left"
           : told ? "is gone, as another one said"
                  : "is lost");
    /* What follows depends on who is there. Of a connection that an earlier plan has left open
     * nothing does: whether its other end lives the coordinator knows by itself. */
    if (!roles || sl_peers_are_needed(w, id)) sl_worker_tell_of(w, SL_MSG_LOST, id, 0);
    return lose(w, id, true, left, err);
}

static void handle(sl_worker *w, sl_inbox_item *it) {
    sl_err err = {0};
    sl_status st;
    w->came_ns = it->came_ns;
    w->came_us = it->came_us;
    sl_span span = it->payload ? (sl_span){it->payload->data, it->payload->len} : (sl_span){0};
    if (it->down) {
        st = handle_down(w, it->h.src, it->left || is_told_to_stop(w), &err);
    } else if (it->from_coordinator && it->h.kind == SL_MSG_ECHO) {
        st = sl_worker_on_echo(w, &it->h, &it->payload, &err);
    } else if (it->from_coordinator) {
        st = handle_control(w, &it->h, span, &err);
        if (st != SL_OK && it->h.kind == SL_MSG_PLAN) {
            w->stop_err = err;
            sl_worker_stop(w, st);
        }
    } else if (!it->own && it->h.kind == SL_MSG_DEVICE_WINDOW) {
        st = sl_far_windows_on_offer(w, &it->h, it->conn, span, &err);
    } else if (!w->planned) { /* peers wait for READY, which waits for the plan */
        st = sl_fail(&err, SL_ERR_PROTOCOL, "%s before the plan", sl_msg_kind_name(it->h.kind));
    } else if (!it->own && (it->h.src == w->id || it->h.src >= w->plan.n_workers)) {
        st = sl_fail(&err, SL_ERR_PROTOCOL, "no peer of this plan is worker %u", it->h.src);
    } else {
        st = sl_far_arrive(w, it, &err);
        span = it->payload ? (sl_span){it->payload->data, it->payload->len} : (sl_span){0};
        if (st == SL_OK) st = handle_token_path(w, &it->h, span, &it->payload, &err);
    }
    if (st != SL_OK) {
        /* Why it ends, whoever runs the worker says. */
        sl_log(w->stop ? SL_LOG_INFO : SL_LOG_WARN, "worker", "%s: %s",
               sl_msg_kind_name(it->h.kind), err.msg);
        /* Opening a device lets the coordinator go meanwhile: this item's own is stale then. */
        sl_conn *c = it->from_coordinator ? w->coordinator : it->conn;
        if (c && sl_conn_is_open(c)) sl_net_close(w->net, c, st, err.msg);
        if (it->own && !w->stop) { /* nobody would ever answer it */
            sl_worker_stop(w, sl_fail(&w->stop_err, SL_ERR_INTERNAL, "its own %s: %s",
                                      sl_msg_kind_name(it->h.kind), err.msg));
        }
    }
    sl_net_buf_give(w->net, it->payload);
}

static void drain_inbox(sl_worker *w) {
    sl_inbox_item it;
    while (sl_inbox_pop(&w->inbox, &it)) {
        if (!it.down && it.conn) {
            w->n.received_messages++;
            w->n.received_bytes += SL_WIRE_HEADER_BYTES + it.h.bytes;
        }
        handle(w, &it);
    }
}

/* ---- the loop ---- */

/* What a GPU was asked for may be a request's own: it would kill every worker that computes it. */
void sl_worker_crash(const sl_worker *w) {
    if (!w->opts->parent) return;
    sl_log(SL_LOG_ERROR, "worker", "its device has failed: %s", w->device->failure.msg);
    abort();
}

bool sl_worker_step(sl_worker *w) {
    sl_worker_enter(w, SL_MODE_POLL);
    uint32_t came = sl_net_progress(w->net);
    if (w->rails) came += sl_rails_progress(w->rails);
    bool computes = w->device && sl_device_poll(w->device);
    if (w->device && !computes) sl_device_tend(w->device);
    if (sl_worker_has_no_device(w)) return true;
    drain_inbox(w);
    if (w->attn) sl_attn_look(w->attn); /* before work that takes its time: answers wait for it */
    sl_peers_call_again(w);
    sl_peers_open_windows(w);
    sl_far_look(w);
    bool hosts = sl_take_host(w);
    report_ready(w);
    if (w->stop) return true;
    /* Experts first: others wait for them. */
    bool busy = w->expert && w->expert_ops->run(w->expert);
    if (!busy) busy = w->attn && sl_attn_run(w->attn);
    bool moves = w->attn && sl_attn_move(w->attn, busy);
    sl_take_look(w);
    return busy || moves || hosts || computes || came || w->inbox.len || w->stop;
}

bool sl_worker_stopped(const sl_worker *w, sl_status *status, sl_err *err) {
    *status = w->stop_status;
    if (w->stop && w->stop_status != SL_OK) *err = w->stop_err;
    return w->stop;
}

static sl_status start(sl_worker *w, sl_err *err) {
    const sl_worker_opts *o = w->opts;
    w->virtual_time = o->clock.now_us != NULL;
    w->clock = w->virtual_time ? o->clock : sl_clock_real();
    w->watch = o->watch;
    w->keep = o->keep;
    w->disk = o->disk;
    w->started_ns = sl_now_ns();
    w->doing = (sl_trace_event){.kind = SL_TRACE_POLL, .begin_ns = w->started_ns};
    w->id = SL_NO_WORKER;
    w->hello = (sl_hello){.worker = o->wanted, .incarnation = randombytes_random()};
    w->hello.roles = SL_ROLE_ATTENTION | SL_ROLE_EXPERT;
    snprintf(w->hello.name, sizeof w->hello.name, "worker");
    const sl_net_opts no = net_opts(w);
    sl_status st = sl_inbox_reserve(&w->inbox, err);
    if (st == SL_OK) st = sl_net_create(&no, &w->net, err);
    if (st == SL_OK) sl_net_on_give(w->net, sl_far_given);
    if (st == SL_OK) st = sl_net_connect(w->net, o->coordinator, NULL, &w->coordinator, err);
    return st;
}

sl_status sl_worker_create(const sl_worker_opts *o, sl_worker **out, sl_err *err) {
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    sl_worker *w = sl_alloc(1, sizeof *w);
    if (!w) return sl_fail(err, SL_ERR_NOMEM, "worker");
    w->opts = o;
    sl_status st = start(w, err);
    if (st == SL_OK)
        *out = w;
    else
        sl_worker_free(w, false);
    return st;
}

void sl_worker_free(sl_worker *w, bool crash) {
    if (!w) return;
    if (w->device) sl_device_drain(w->device);
    sl_attn_free(w->attn);
    if (w->expert) w->expert_ops->free(w->expert);
    if (w->device) sl_far_close(w);
    sl_device_close(w->device);
    w->device = NULL;
    sl_inbox_item it; /* also what came while the device ended */
    while (sl_inbox_pop(&w->inbox, &it)) sl_net_buf_give(w->net, it.payload);
    sl_rails_free(w->rails);
    if (crash)
        sl_net_abandon(w->net);
    else
        sl_net_free(w->net);
    sl_far_free(w);
    sl_trace_free(w->trace);
    sl_counts_free(&w->counts);
    sl_plan_free(&w->plan);
    sl_plan_free(&w->next);
    sl_free(w->goal.hosted);
    sl_idset_free(&w->attention);
    sl_idset_free(&w->experts);
    sl_free(w->peer);
    sl_inbox_free(&w->inbox);
    sl_free(w);
}

/* There is nothing to do: says what the worker waits for. */
static void begin_rest(sl_worker *w) {
    sl_trace_event e = {.kind = SL_TRACE_IDLE};
    if (w->attn) sl_attn_waits_for(w->attn, &e);
    if (w->expert && w->expert_ops->waits_for && e.kind == SL_TRACE_IDLE)
        w->expert_ops->waits_for(w->expert, &e);
    if (e.kind == SL_TRACE_IDLE && w->last_task_ns &&
        sl_now_ns() - w->last_task_ns < BETWEEN_ROUNDS_NS)
        e = (sl_trace_event){.kind = SL_TRACE_WAIT, .why = SL_TRACE_WHY_ROUND};
    sl_worker_begin(w, &e);
}

static bool is_absence(sl_status st) {
    return st == SL_ERR_PEER_DOWN || st == SL_ERR_TIMEOUT;
}

/* *joined: the coordinator has answered. */
static sl_status run_once(const sl_worker_opts *o, bool *joined, sl_err *err) {
    sl_worker *w = NULL;
    *joined = false;
    sl_status st = sl_worker_create(o, &w, err);
    if (st != SL_OK) return st;
    uint64_t rests_since_ns = 0; /* 0: it does not */
    while (!sl_worker_stopped(w, &st, err)) {
        *joined = *joined || w->coordinator_open;
        if (o->supervised) sl_notify_alive();
        if (sl_worker_step(w)) {
            rests_since_ns = 0;
            continue;
        }
        begin_rest(w);
        if (!rests_since_ns) rests_since_ns = sl_now_ns();
        bool soon = sl_now_ns() - rests_since_ns < SOON_NS && w->doing.kind == SL_TRACE_WAIT;
        const bool awaits = w->rails && sl_rails_await(w->rails),
                   far = w->device && w->device->spreads, gathers = far && w->device->gathers;
        if (awaits && !far) soon = false; /* rails wake it */
        soon = soon || sl_worker_is_surveyed(w);
        sl_net_set_poll(w->net, soon && !(awaits && far) && !gathers ? SL_NET_POLL_US : 0);
        uint64_t rest_us = w->attn && sl_attn_is_owed(w->attn) ? SL_HEDGE_LOOK_US : IDLE_US;
        if (gathers) rest_us = SL_MIN(rest_us, GATHERS_LOOK_US);
        /* What ranks say comes by a net of theirs. */
        sl_net_wait(w->net, awaits && far ? SL_MIN(rest_us, RANKS_LOOK_US) : rest_us);
    }
    if (w->attn && is_absence(st)) sl_attn_keep(w->attn);
    sl_worker_free(w, false);
    return st;
}

static bool is_orphan(const sl_worker_opts *o) {
    return o->parent && getppid() != o->parent;
}

/* Tries to join until it has, for that long, and serves. */
static sl_status join(const sl_worker_opts *o, uint32_t timeout_s, bool *joined, sl_err *err) {
    uint64_t pause_ms = JOIN_PAUSE_MS, until_ns = sl_now_ns() + timeout_s * 1000000000ull;
    sl_status st = run_once(o, joined, err);
    if (!*joined && is_absence(st) && timeout_s)
        sl_log(SL_LOG_WARN, "worker", "%s; trying again for %u s", err->msg, timeout_s);
    while (!*joined && is_absence(st) && sl_now_ns() < until_ns && !is_orphan(o)) {
        const struct timespec pause = {.tv_sec = (time_t)(pause_ms / 1000),
                                       .tv_nsec = (long)(pause_ms % 1000) * 1000000};
        nanosleep(&pause, NULL);
        pause_ms = SL_MIN(pause_ms * 2, (uint64_t)JOIN_PAUSE_MAX_MS);
        st = run_once(o, joined, err);
    }
    if (!*joined && is_absence(st) && timeout_s)
        return sl_err_prefix(err, "no coordinator within %u s", timeout_s);
    return st;
}

static sl_status serve(const sl_worker_opts *o, sl_err *err) {
    bool joined;
    sl_status st = join(o, o->join_timeout_s, &joined, err);
    while (joined && is_absence(st) && o->rejoin_s && !is_orphan(o)) {
        sl_log(SL_LOG_WARN, "worker", "%s; another one is looked for", err->msg);
        st = join(o, o->rejoin_s, &joined, err);
    }
    return st;
}

sl_status sl_worker_run(const sl_worker_opts *o, sl_err *err) {
    sl_worker_opts own = *o;
    if (o->rejoin_s && !o->parent && !o->kv_fd) own.keep = sl_keep_create(); /* else without */
    sl_status st = SL_OK;
    if (o->kv_disk && o->kv_disk[0])
        st = sl_kv_disk_create(o->kv_disk, o->kv_disk_bytes, &own.disk, err);
    if (st == SL_OK) st = serve(&own, err);
    sl_kv_disk_free(own.disk);
    sl_keep_free(own.keep);
    return st;
}
