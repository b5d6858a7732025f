/* The figures of one candidate: memory, times of a step, what a trial is given. */
#include "plan/search_int.h"

#include "plan/findep.h"
#include "plan/pingpong.h"

#include <math.h>

/* What a lane costs in one routed block, and what it costs beside those. */
typedef struct lane {
    double attn, shared, expert, link, extra;
    double rows; /* of one expert */
} lane;

/* One layout and one batch: rows and keys at an attention worker. */
typedef struct batch {
    const sl_search_state *s;
    const sl_candidate *c;
    const sl_worker_costs *attn, *expert;
    bool prefill, free_links;
    double rows, keys;
} batch;

static uint32_t tp_index(uint32_t tp) {
    return tp >= 8 ? 3 : tp >= 4 ? 2 : tp >= 2 ? 1 : 0;
}

static const sl_costs *costs_of(const batch *b, const sl_worker_costs *w) {
    return b->prefill ? &w->prefill : &w->decode;
}

static double stage(const batch *b, sl_cost_kind kind, double rows, double keys) {
    return sl_stage_cost_us(&costs_of(b, b->attn)->stage[kind], rows, keys);
}

/* The busiest worker: what popularity and placement leave, and what chance adds where a barrier
 * waits for the last of n workers (the maximum of n nearly normal draws). */
static double imbalance(const batch *b, double load) {
    const sl_layout *l = &b->c->layout;
    const sl_search_problem *p = b->s->p;
    if (p->as_published || l->n_e <= 1) return 1;
    double skew = b->s->skew[SL_MIN(l->n_e, p->shape->n_experts)];
    if (l->kind == SL_LAYOUT_AEP) return p->workload->skew.permuted ? 1 : skew;
    double chance = sqrt(2 * log(l->n_e) / fmax(load, 1));
    return fmin(skew * (1 + chance), l->n_e);
}

/* `tokens` rows choose among all experts; `cut` of the worker's experts run at once. */
static double expert_us(const batch *b, double tokens, double cut, double *rows) {
    const sl_layout *l = &b->c->layout;
    const sl_shape *m = b->s->p->shape;
    bool summed_elsewhere = (l->kind == SL_LAYOUT_HYBRID && !sl_search_has_rails(b->s->p, l)) ||
                            l->kind == SL_LAYOUT_PIPELINE;
    const sl_costs *k = costs_of(b, b->expert);
    const sl_stage_cost *cost = summed_elsewhere ? &b->expert->apart : &k->stage[SL_COST_EXPERT];
    double load = tokens * m->top_k / l->n_e;
    double active = sl_expected_experts(m->n_experts, m->top_k, tokens) / l->n_e * cut;
    load *= imbalance(b, load) * cut;
    *rows = load / fmax(active, 1e-9);
    double launches = k->grouped ? 1 : active;
    double work = cost->row_us * *rows + sl_stage_cost_mean_pad_us(cost);
    return cost->fixed_us * launches + active * fmax(sl_stage_cost_least_us(cost, *rows), work) +
           cost->task_us + cost->sum_us + cost->sum_row_us * load;
}

static bool in_one_node(const batch *b) {
    const sl_layout *l = &b->c->layout;
    const sl_node_group *g = &b->s->p->cluster->group[l->attn_group];
    uint32_t devices = l->n_a * l->tp_a + (sl_layout_is_apart(l->kind) ? l->n_e * l->tp_e : 0);
    return l->attn_group == l->expert_group && devices <= g->devices_per_node;
}

static sl_link_cost link_of(const batch *b, uint32_t group) {
    const sl_search_problem *p = b->s->p;
    const sl_node_group *g = &p->cluster->group[group];
    bool near = in_one_node(b);
    const sl_link_cost *measured = near ? p->measured_intra : p->measured_inter;
    const sl_type_costs *t = sl_search_type(p, group);
    sl_link_cost l = measured ? *measured : sl_roofline_link(near ? &g->intra : &g->inter);
    if (t) l.alpha_us += t->copies.alpha_us, l.byte_us += t->copies.byte_us;
    return l;
}

/* Of `bytes` in `messages`, by the port that takes longer. */
static double port_us(const sl_link_cost *k, double bytes, double messages) {
    return k->byte_us * (bytes + messages * k->half_bytes);
}

static double row_bytes(const batch *b) {
    return b->s->p->shape->d_model * b->s->p->value_bytes;
}

/* One direction between attention and expert workers; a row goes once to each worker. */
static double link_apart(const batch *b, double rows) {
    const sl_layout *l = &b->c->layout;
    const sl_shape *m = b->s->p->shape;
    sl_link_cost from = link_of(b, l->attn_group), to = link_of(b, l->expert_group);
    double copies = sl_expected_groups(m->n_experts, m->top_k, l->n_e);
    double sent = rows * copies * row_bytes(b) / sl_search_senders(b->s->p, l->attn_group, l->tp_a);
    double load = rows * l->n_a * m->top_k / l->n_e;
    double got = rows * l->n_a * copies / l->n_e * row_bytes(b) /
                 sl_search_senders(b->s->p, l->expert_group, l->tp_e) * imbalance(b, load);
    return fmax(from.alpha_us, to.alpha_us) +
           fmax(port_us(&from, sent, l->n_e), port_us(&to, got, l->n_a));
}

/* One direction among colocated workers whose experts are whole. */
static double link_pairwise(const batch *b, double rows) {
    const sl_layout *l = &b->c->layout;
    const sl_shape *m = b->s->p->shape;
    if (l->n_e <= 1) return 0;
    uint32_t per_node = b->s->p->cluster->group[l->attn_group].devices_per_node;
    double peers = l->n_e - 1.0, near = fmin(per_node, l->n_e) - 1, far = peers - near;
    double copies = sl_expected_groups(m->n_experts, m->top_k, l->n_e);
    double bytes = rows / l->tp_a * copies * row_bytes(b) / l->n_e; /* to one peer */
    double load = rows * l->n_a * m->top_k / l->n_e;
    bytes *= imbalance(b, load);
    sl_link_cost out = link_of(b, l->attn_group);
    const sl_fabric *intra = &b->s->intra[l->attn_group];
    double us = 0;
    if (far > 0) us = out.alpha_us + port_us(&out, far * bytes, far);
    if (near > 0) {
        sl_link_cost in = {.alpha_us = intra->alpha_us, .byte_us = intra->byte_us};
        if (b->s->p->measured_intra) in = *b->s->p->measured_intra;
        us = fmax(us, in.alpha_us + port_us(&in, near * bytes, near));
    }
    return us + sl_collective_gather_us(intra, rows * row_bytes(b), l->tp_a);
}

static double link_hybrid(const batch *b, double rows) {
    const sl_layout *l = &b->c->layout;
    const sl_shape *m = b->s->p->shape;
    const sl_fabric *intra = &b->s->intra[l->attn_group];
    sl_hybrid_comm h = {.n = l->n_e,
                        .m = l->tp_e,
                        .tokens = rows,
                        .row_bytes = row_bytes(b),
                        .experts = m->n_experts,
                        .top_k = m->top_k,
                        .intra = intra,
                        .inter = in_one_node(b) ? intra : &b->s->inter[l->attn_group]};
    sl_hybrid_times t = sl_hybrid_law(&h);
    if (b->s->p->as_published) return (t.dispatch_apart_us + t.combine_apart_us) / 2;
    return (t.dispatch_us + t.combine_us) / 2;
}

/* One direction among gangs on nodes: a row once to each that has experts for it, in stripes over
 * the ports of all ranks (src/net/rails.h). */
static double link_rails(const batch *b, double rows) {
    const sl_layout *l = &b->c->layout;
    const sl_shape *m = b->s->p->shape;
    const sl_link_cost out = link_of(b, l->attn_group);
    const double peers = l->n_e - 1.0, load = rows * l->n_a * m->top_k / l->n_e;
    const double share = sl_expected_groups(m->n_experts, m->top_k, l->n_e) / l->n_e;
    const double bytes = rows * share * row_bytes(b) * imbalance(b, load); /* to one peer */
    const double ports = bytes >= SL_PLAN_RAIL_BYTES ? l->tp_a : 1;
    return out.alpha_us + port_us(&out, peers * bytes / ports, peers);
}

static double link_us(const batch *b, double rows) {
    const sl_layout *l = &b->c->layout;
    if (b->free_links) return 0;
    const bool turns = sl_layout_takes_turns(l) && !b->s->p->as_published;
    if (sl_layout_is_apart(l->kind) || (turns && !sl_layout_not_run(b->s->p, l)))
        return link_apart(b, rows);
    if (sl_search_has_rails(b->s->p, l)) return link_rails(b, rows);
    return l->tp_e > 1 ? link_hybrid(b, rows) : link_pairwise(b, rows);
}

static lane lane_of(const batch *b) {
    lane t = {.attn = stage(b, SL_COST_ATTENTION, b->rows, b->keys) +
                      stage(b, SL_COST_ROUTER, b->rows, 0),
              .shared = stage(b, SL_COST_SHARED, b->rows, 0),
              .link = link_us(b, b->rows)};
    double head = b->prefill ? 1 : b->rows;
    t.extra = b->s->n_dense * (stage(b, SL_COST_ATTENTION, b->rows, b->keys) +
                               stage(b, SL_COST_DENSE, b->rows, 0)) +
              stage(b, SL_COST_HEAD, head, 0);
    t.expert = expert_us(b, b->rows * b->c->layout.n_a, 1, &t.rows);
    return t;
}

/* One micro-batch's way through a block, nothing overlapped but the shared experts. */
static double round_us(const lane *t) {
    return t->attn + fmax(t->shared, t->link) + t->expert + t->link;
}

/* Groups of a worker's experts whose transfers overlap the others' computing. */
static double eps_us(const batch *b, const lane *t) {
    double rows, n = b->c->layout.chunks;
    double group = expert_us(b, b->rows * b->c->layout.n_a, 1 / n, &rows);
    double link = link_us(b, b->rows / n);
    double chain = 2 * link + group + (n - 1) * fmax(link, group);
    return t->attn + t->shared + fmin(chain, 2 * t->link + t->expert);
}

static sl_findep_times chunk_times(const batch *b, const lane *t) {
    const sl_layout *l = &b->c->layout;
    double rows, all = b->rows * l->n_a, n = l->chunks;
    bool groups = l->chunking == SL_CHUNK_EXPERTS;
    double e = expert_us(b, groups ? all : all / n, groups ? 1 / n : 1, &rows);
    double c = link_us(b, b->rows / n);
    return (sl_findep_times){.a = t->attn, .s = t->shared, .c = c, .e = e, .d = c};
}

/* Period of a block for all lanes. */
static double layer_us(const batch *b, const lane *t) {
    const sl_layout *l = &b->c->layout;
    if (l->kind == SL_LAYOUT_EPS) return eps_us(b, t);
    if (!sl_layout_is_apart(l->kind)) return round_us(t);
    if (l->kind == SL_LAYOUT_FINDEP) {
        sl_findep_times f = chunk_times(b, t);
        return sl_findep_period(&f, l->lanes, l->chunks, l->order);
    }
    /* The law of pingpong.h, with shared experts beside the round. */
    double link = link_of(b, l->attn_group).half_duplex ? 2 * t->link : t->link;
    double busiest = fmax(t->attn + t->shared, fmax(t->expert, link));
    return fmax(l->lanes * busiest, round_us(t));
}

/* All blocks and the head, once for every lane. */
static double step_us(const batch *b, const lane *t, double layer) {
    const sl_layout *l = &b->c->layout;
    double n = b->s->n_moe, lanes = l->lanes;
    if (b->s->p->as_published && l->kind == SL_LAYOUT_PINGPONG) {
        sl_pingpong p = {t->attn + t->shared, t->expert, t->link, l->lanes, b->s->n_moe, 0};
        return sl_pingpong_as_published(&p).total + t->extra;
    }
    double attention = lanes * (n * (t->attn + t->shared) + t->extra);
    double rest = n * layer + (sl_layout_is_apart(l->kind) && lanes > 1 ? 0 : t->extra);
    double hops =
        (l->stages - 1.0) * (b->s->inter[l->attn_group].alpha_us +
                             b->rows * row_bytes(b) / l->tp_a * b->s->inter[l->attn_group].byte_us);
    double alone = n * round_us(t) + t->extra;
    if (l->kind == SL_LAYOUT_EPS) alone = rest;
    if (l->kind == SL_LAYOUT_FINDEP) alone = n * layer / lanes + t->extra;
    return fmax(fmax(attention, rest), alone) + hops;
}

static void prefill_of(const sl_search_state *s, batch b, sl_candidate *c, double *occupied) {
    b.prefill = true;
    b.rows = s->input;
    b.keys = s->input * s->input / 2;
    lane t = lane_of(&b);
    double n = s->n_moe, stages = c->layout.stages;
    c->prefill_us = n * round_us(&t) + t.extra;
    double attention = n * (t.attn + t.shared) + t.extra;
    *occupied = c->prefill_us / stages;
    if (sl_layout_is_apart(c->layout.kind) && c->layout.kind != SL_LAYOUT_DEP)
        *occupied = fmax(attention, n * fmax(t.expert, t.link));
}

/* What is busy how much of a layer, and how much of a lane's transfers lengthens it. */
static void shares(batch b, sl_candidate *c, const lane *t, double layer) {
    const sl_layout *l = &c->layout;
    bool apart = sl_layout_is_apart(l->kind);
    double m = apart ? l->lanes : 1, attention = t->attn + t->shared;
    b.free_links = true;
    lane still = lane_of(&b);
    c->attn_busy = fmin(m * attention / layer, 1);
    c->expert_busy = fmin(m * t->expert / layer, 1);
    c->link_busy = fmin(m * t->link * (apart ? 1 : 2) / layer, 1);
    double longer = fmax(layer - layer_us(&b, &still), 0);
    c->hidden = t->link > 0 ? 1 - fmin(longer / (2 * t->link), 1) : 1;
    double busiest = fmax(fmax(c->attn_busy, c->expert_busy), c->link_busy);
    if (apart && busiest < 0.9)
        c->bottleneck = SL_STATION_ROUND;
    else if (c->link_busy >= busiest)
        c->bottleneck = SL_STATION_LINK;
    else
        c->bottleneck = c->expert_busy >= busiest ? SL_STATION_EXPERTS : SL_STATION_ATTENTION;
}

void sl_search_evaluate(sl_search_state *s, sl_candidate *c) {
    const sl_layout *l = &c->layout;
    batch b = {.s = s,
               .c = c,
               .attn = &s->costs[l->attn_group][tp_index(l->tp_a)],
               .expert = &s->costs[l->expert_group][tp_index(l->tp_e)],
               .rows = c->rows,
               .keys = c->rows * s->context};
    lane t = lane_of(&b);
    s->evaluations++;
    double layer = layer_us(&b, &t), occupied, slots = (double)c->rows * l->lanes * l->stages;
    c->attn_us = t.attn;
    c->shared_us = t.shared;
    c->expert_us = t.expert;
    c->link_us = t.link;
    c->layer_us = layer;
    c->expert_rows = t.rows;
    c->imbalance = imbalance(&b, b.rows * l->n_a * s->p->shape->top_k / l->n_e);
    c->step_us = c->tried_us > 0 ? c->tried_us : step_us(&b, &t, layer);
    prefill_of(s, b, c, &occupied);
    double prompts = s->p->decode_only ? 0 : slots / s->output * occupied, f;
    c->tpot_us = c->step_us + prompts;
    f = prompts / c->tpot_us;
    c->ttft_us = s->p->decode_only ? 0 : c->prefill_us * (1 + f / (2 - 2 * f)) + c->step_us;
    c->seqs = (uint64_t)(slots * l->n_a) * c->copies;
    c->tokens_per_s = (double)c->seqs / c->tpot_us * 1e6;
    c->estimated = costs_of(&b, b.attn)->estimated;
    c->derived = (sl_search_measured(s->p, l->attn_group) && l->tp_a > 1) ||
                 (sl_search_measured(s->p, l->expert_group) && l->tp_e > 1);
    c->bound = l->kind == SL_LAYOUT_AEP ? c->tried_us <= 0 : link_of(&b, l->attn_group).half_duplex;
    const sl_stage_cost *cost = &costs_of(&b, b.expert)->stage[SL_COST_EXPERT];
    c->expert_knee = sl_stage_cost_knee(cost);
    shares(b, c, &t, layer);
}

sl_search_trial sl_search_trial_of(const sl_search_state *s, const sl_candidate *c) {
    const sl_layout *l = &c->layout;
    const batch b = {.s = s, .c = c};
    const bool rails = sl_search_has_rails(s->p, l);
    sl_search_trial t = {.shape = s->p->shape,
                         .skew = &s->p->workload->skew,
                         .attention = s->costs[l->attn_group][tp_index(l->tp_a)].decode,
                         .expert = s->costs[l->expert_group][tp_index(l->tp_e)].decode,
                         .n_a = l->n_a,
                         .n_e = l->n_e,
                         .ranks = rails ? l->tp_a : 0,
                         .slots = c->rows * l->lanes,
                         .spare = l->spare,
                         .context = s->context,
                         .row_bytes = (size_t)row_bytes(&b)};
    t.attention.link = link_of(&b, l->attn_group);
    t.expert.link = link_of(&b, l->expert_group);
    t.attention.cache_bytes = t.expert.cache_bytes = 0; /* devices of a cluster share no cache */
    if (rails) return t;                                /* each rank's port is its own */
    const uint32_t from = sl_search_senders(s->p, l->attn_group, l->tp_a),
                   to = sl_search_senders(s->p, l->expert_group, l->tp_e);
    t.attention.link.byte_us /= from;
    t.expert.link.byte_us /= to;
    t.attention.link.beyond_us /= from;
    t.expert.link.beyond_us /= to;
    return t;
}

uint32_t sl_search_memory_rows(sl_search_state *s, sl_candidate *c) {
    const sl_layout *l = &c->layout;
    const sl_cluster *k = s->p->cluster;
    double room_a = k->type[k->group[l->attn_group].type].memory_bytes * (1 - s->p->reserve);
    double room_e = k->type[k->group[l->expert_group].type].memory_bytes * (1 - s->p->reserve);
    double each = ceil((double)s->p->shape->n_experts / l->n_e) + l->spare;
    double experts = each * s->column_bytes / l->tp_e / l->stages;
    /* The block that guesses is the last stage's. */
    double attention = (s->attn_bytes / l->stages + s->block_bytes) / l->tp_a;
    double kv_token = s->kv_token / l->stages + s->block_kv_token;
    double kv = s->context_p95 * kv_token / fmin(l->tp_a, s->kv_shards) + s->state / l->stages;
    double lanes = (double)l->lanes * l->stages;
    c->attn_memory = attention;
    c->expert_memory = experts;
    if (!sl_layout_is_apart(l->kind)) {
        c->attn_memory = c->expert_memory = attention = attention + experts;
        experts = 0;
    }
    double missing = fmax(attention + lanes * kv - room_a, experts - room_e);
    if (missing > 0) {
        sl_search_note_short(&s->lack, missing);
        return 0;
    }
    return (uint32_t)fmin((room_a - attention) / (lanes * kv), 65536);
}
