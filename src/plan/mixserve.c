/* MixServe's model of hybrid parallelism, its queue and its limits. */
#include "plan/mixserve.h"

#include "plan/account.h"
#include "plan/roofline.h"

#include <math.h>

#define MAX_SLOTS 65536u

typedef struct stage { /* what the degrees make of a batch */
    const sl_mixserve_model *m;
    const sl_mixserve_system *sys;
    const sl_mixserve_load *load;
    const sl_strategy *s;
    double sequences, rows, context;
    double tokens; /* sequences * rows */
} stage;

static double us(double seconds) {
    return seconds * 1e6;
}

static double attention_us(const stage *g) {
    const sl_mixserve_model *m = g->m;
    double mine = g->tokens / g->s->dp, tp = g->s->tp_a;
    double scores = 4 * mine * g->context * m->heads * m->head_values;
    double flops = (2 * m->layer_params * mine + scores) / tp;
    double kv = g->sequences / g->s->dp * g->context * m->kv_layer_bytes;
    double bytes = m->layer_params * m->weight_bytes / tp + kv / fmin(tp, m->kv_shards);
    return us(fmax(flops / g->sys->flops, bytes / g->sys->bandwidth));
}

static double moe_us(const stage *g) {
    const sl_mixserve_model *m = g->m;
    double group = g->tokens / sl_strategy_replicas(g->s), parts = (double)g->s->ep * g->s->tp_e;
    double flops = 2 * m->expert_params * m->top_k * group * g->load->imbalance / parts;
    double read = sl_expected_experts(m->experts, m->top_k, group) * m->expert_params;
    return us(fmax(flops / g->sys->flops, read * m->weight_bytes / parts / g->sys->bandwidth));
}

static const sl_fabric *fabric_of(const stage *g, uint32_t ranks) {
    return ranks <= g->sys->per_node ? &g->sys->intra : &g->sys->inter;
}

static double attention_comm_us(const stage *g) {
    double bytes = g->tokens / g->s->dp * g->m->row_bytes;
    return sl_collective_reduce_us(fabric_of(g, g->s->tp_a), bytes, g->s->tp_a);
}

/* Experts that are not cut: every rank sends its share of the rows to those that host them. */
static double pairwise_us(const stage *g) {
    const sl_mixserve_model *m = g->m;
    uint32_t ranks = SL_MIN(g->s->dp, g->s->ep); /* those that talk to each other */
    uint32_t column = g->s->dp < g->s->ep ? g->s->tp_a : 1;
    uint32_t near = SL_MAX(1u, SL_MIN(ranks, g->sys->per_node / column));
    double copies = sl_expected_groups(m->experts, m->top_k, g->s->ep);
    double bytes = g->tokens / SL_MAX(g->s->dp, g->s->ep) * copies * m->row_bytes;
    while (ranks % near != 0) near--;
    double one =
        sl_collective_exchange_two_us(&g->sys->intra, &g->sys->inter, bytes, ranks / near, near);
    double sum = sl_collective_reduce_us(fabric_of(g, g->s->tp_a),
                                         g->tokens / g->s->dp * m->row_bytes, g->s->tp_a);
    return 2 * one + sum;
}

static double hybrid_us(const stage *g) {
    uint32_t n = g->s->ep, groups = SL_MAX(g->s->dp, g->s->ep);
    bool far = (uint64_t)n * g->s->tp_e > g->sys->per_node;
    sl_hybrid_comm h = {.n = n,
                        .m = g->s->tp_e,
                        .tokens = g->tokens / groups,
                        .row_bytes = g->m->row_bytes,
                        .experts = g->m->experts,
                        .top_k = g->m->top_k,
                        .intra = &g->sys->intra,
                        .inter = far ? &g->sys->inter : &g->sys->intra};
    sl_hybrid_times t = sl_hybrid_law(&h);
    double spread = 0; /* attention of fewer ranks than a group of experts: rows are gathered */
    if (g->s->tp_e > g->s->tp_a && g->s->dp > n) {
        h.tokens *= (double)g->s->tp_e / g->s->tp_a;
        t = sl_hybrid_law(&h);
        spread = sl_collective_gather_us(&g->sys->intra, h.tokens * h.row_bytes, g->s->tp_e);
    }
    if (g->load->fused) return t.dispatch_us + t.combine_us + spread;
    return t.dispatch_apart_us + t.combine_apart_us + spread;
}

/* Eq. 5: two all-reduces of one d_TP, two all-to-alls of top-k copies; no latency. Split between
 * the two blocks as it falls. */
static void published_comm(const stage *g, sl_mixserve_layer *out) {
    double rows = g->tokens * g->m->row_bytes, dp = g->s->dp, ep = g->s->ep;
    double reduce = sl_published_reduce(rows / dp, g->s->tp_a) * fabric_of(g, g->s->tp_a)->byte_us;
    double exchange = g->s->dp >= g->s->ep
                          ? sl_published_exchange(rows * g->m->top_k / dp, g->s->ep)
                          : sl_published_exchange(rows * g->m->top_k / ep, g->s->dp);
    out->attn_comm_us = g->s->tp_a > 1 ? reduce : 0;
    out->moe_comm_us =
        (g->s->tp_a > 1 ? reduce : 0) + 2 * exchange * fabric_of(g, g->s->ep * g->s->tp_e)->byte_us;
}

/* `sequences` with `rows` new rows and a context of `context` positions each. */
static sl_mixserve_layer layer_time(const sl_mixserve_model *m, const sl_mixserve_system *sys,
                                    const sl_mixserve_load *load, const sl_strategy *s,
                                    double sequences, double rows, double context) {
    stage g = {m, sys, load, s, sequences, rows, context, sequences * rows};
    sl_mixserve_layer t = {.attn_us = attention_us(&g) + sys->stage_us,
                           .moe_us = moe_us(&g) + sys->stage_us};
    if (load->as_published) {
        published_comm(&g, &t);
        return t;
    }
    t.attn_comm_us = attention_comm_us(&g);
    if (s->tp_e > 1)
        t.moe_comm_us = hybrid_us(&g);
    else if (s->ep > 1)
        t.moe_comm_us = pairwise_us(&g);
    return t;
}

double sl_mixserve_memory(const sl_mixserve_model *m, const sl_mixserve_load *load,
                          const sl_strategy *s, double slots) {
    double positions = load->input + load->output, layers = m->layers;
    double experts = m->expert_params * m->experts * layers;
    double rest = m->layer_params * layers;
    double stages = s->pp;
    if (load->as_published) /* Eq. 8: parameters and values, whatever a byte is */
        return rest / s->tp_a + experts / ((double)s->ep * s->tp_a) +
               2 * slots * positions * m->d_model * layers / stages;
    double weights =
        (rest / s->tp_a + experts / ((double)s->tp_e * s->ep)) / stages + m->other_params / s->tp_a;
    double kv = slots / s->dp * positions * m->kv_layer_bytes * layers / stages;
    double buffers =
        2 * load->input * m->row_bytes * (1 + sl_expected_groups(m->experts, m->top_k, s->ep));
    return weights * m->weight_bytes + kv / fmin(s->tp_a, m->kv_shards) + buffers;
}

/* Probability that all c servers of an M/M/c queue are taken. */
static double erlang_c(double c, double rho) {
    double load = c * rho, b = 1;
    for (double i = 1; i <= c; i++) b = load * b / (i + load * b);
    return b / (1 - rho * (1 - b));
}

double sl_queue_wait(double slots, double service, double rate, double cv2) {
    double rho = rate * service / slots;
    if (rho >= 1) return INFINITY;
    return erlang_c(floor(slots), rho) * service / (slots * (1 - rho)) * (1 + cv2) / 2;
}

static double layer_us(const sl_mixserve_layer *t) {
    return t->attn_us + t->moe_us + t->attn_comm_us + t->moe_comm_us;
}

static double hops_us(const sl_mixserve_model *m, const sl_mixserve_system *sys,
                      const sl_strategy *s, double rows) {
    double bytes = rows / s->dp * m->row_bytes / s->tp_a;
    return (s->pp - 1.0) * (sys->inter.alpha_us + bytes * sys->inter.byte_us);
}

uint32_t sl_mixserve_slots(const sl_mixserve_model *m, const sl_mixserve_system *sys,
                           const sl_mixserve_load *load, const sl_strategy *s) {
    double unit = (double)s->dp * s->pp, none = sl_mixserve_memory(m, load, s, 0);
    double one = sl_mixserve_memory(m, load, s, unit) - none;
    double units = floor((sys->memory_bytes - none) / one);
    if (units < 1) return 0;
    return (uint32_t)fmin(units * unit, fmax(unit, MAX_SLOTS));
}

static void waiting(const sl_mixserve_load *load, const sl_strategy *s, sl_mixserve_result *r) {
    double life = r->slots / (double)s->dp * r->prefill_us / s->pp +
                  (load->output - 1) * r->decode_us; /* prompts of other slots stop this one */
    r->capacity = r->slots / (life / 1e6);
    double rate = load->rate;
    r->busy = rate > 0 ? rate / r->capacity : 1;
    double prompts = rate > 0 ? rate / s->dp * r->prefill_us / s->pp / 1e6 : 0;
    r->itl_us = rate > 0 ? r->decode_us / (1 - fmin(prompts, 0.99))
                         : (life - r->prefill_us / s->pp) / fmax(load->output - 1, 1);
    r->wait_us = rate > 0 ? sl_queue_wait(r->slots, life, rate / 1e6, load->cv2) : 0;
    double served = rate > 0 ? fmin(rate, r->capacity) : r->capacity;
    r->throughput = served * (load->input + load->output);
    r->output_throughput = served * load->output;
    if (load->as_published) {
        double mu = 1e6 / r->decode_us, tokens = rate * load->output; /* Eq. 7 */
        r->busy = tokens / mu;
        r->wait_us = r->busy < 1 ? 1e6 * r->busy / (mu * (1 - r->busy)) : INFINITY;
        r->itl_us = r->decode_us;
        r->throughput = 1e6 * (load->input + load->output) /
                        (r->wait_us + r->prefill_us + load->output * r->decode_us); /* Eq. 11 */
        r->output_throughput = r->throughput * load->output / (load->input + load->output);
    }
    r->ttft_us = r->wait_us + r->prefill_us;
}

sl_status sl_mixserve_evaluate(const sl_mixserve_model *m, const sl_mixserve_system *sys,
                               const sl_mixserve_load *load, const sl_strategy *s,
                               sl_mixserve_result *out, sl_err *err) {
    sl_mixserve_result r = {.memory_limit = sys->memory_bytes};
    char text[SL_STRATEGY_TEXT];
    sl_strategy_print(s, text);
    uint32_t fit = sl_mixserve_slots(m, sys, load, s);
    r.slots = load->slots ? SL_MIN(load->slots, fit) : fit;
    r.memory_bytes = sl_mixserve_memory(m, load, s, r.slots);
    if (fit == 0) {
        *out = r;
        double need = sl_mixserve_memory(m, load, s, (double)s->dp * s->pp);
        return sl_fail(err, SL_ERR_INFEASIBLE, "%s: a device needs %.1f GB and has %.1f", text,
                       need / 1e9, sys->memory_bytes / 1e9);
    }
    double stages = s->pp, layers = m->layers, context = load->input + load->output / 2;
    double at_once = r.slots / stages; /* of a stage */
    r.decode = layer_time(m, sys, load, s, at_once, 1, context);
    r.prefill = layer_time(m, sys, load, s, s->dp, load->input, load->input / 2);
    r.decode_us = layers * layer_us(&r.decode) + hops_us(m, sys, s, at_once);
    r.prefill_us = layers * layer_us(&r.prefill) + hops_us(m, sys, s, s->dp * load->input);
    waiting(load, s, &r);
    *out = r;
    if (r.busy >= 1 && load->rate > 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "%s: %.2f requests/s are more than the %.2f it can do", text, load->rate,
                       r.capacity);
    return SL_OK;
}

sl_strategy_limits sl_mixserve_limits(const sl_mixserve_model *m, const sl_mixserve_system *sys) {
    return (sl_strategy_limits){.nodes = sys->nodes,
                                .per_node = sys->per_node,
                                .layers = m->layers,
                                .heads = m->heads,
                                .experts = m->experts,
                                .d_ff_expert = m->d_ff_expert};
}

sl_mixserve_model sl_mixserve_model_of(const sl_shape *s) {
    sl_params p = sl_account_params(s);
    bool mla = s->attention == SL_ATTENTION_MLA;
    return (sl_mixserve_model){
        .layers = s->n_layers,
        .d_model = s->d_model,
        .heads = s->n_heads,
        .kv_heads = s->n_kv_heads,
        .experts = s->n_experts,
        .top_k = s->top_k,
        .d_ff_expert = s->d_ff_expert,
        .head_values = mla ? s->kv_lora : s->qk_head_dim,
        .layer_params = (double)(p.attention + p.router + p.shared),
        .expert_params = (double)p.expert,
        .other_params = (double)(p.embedding + p.head),
        .weight_bytes = s->expert_weight_bytes,
        .row_bytes = 2.0 * s->d_model,
        .kv_layer_bytes = s->kv_value_bytes * sl_shape_kv_values(s),
        .kv_shards = mla ? 1 : s->n_kv_heads,
    };
}

static sl_fabric fabric_of_tier(const sl_link_tier *t) {
    double bandwidth = t->bandwidth > 0 ? t->bandwidth : 1e30; /* one device, or one node */
    return (sl_fabric){SL_FABRIC_PORT, t->latency_us, 1e6 / bandwidth};
}

sl_mixserve_system sl_mixserve_system_of(const sl_cluster *c, uint32_t group, sl_compute compute,
                                         double reserve) {
    const sl_node_group *g = &c->group[group];
    const sl_device_type *d = &c->type[g->type];
    return (sl_mixserve_system){.nodes = g->count,
                                .per_node = g->devices_per_node,
                                .flops = sl_roofline_flops(d, compute),
                                .bandwidth = d->bandwidth * d->bandwidth_efficiency,
                                .memory_bytes = d->memory_bytes * (1 - reserve),
                                .stage_us = 2 * d->launch_us,
                                .intra = fabric_of_tier(&g->intra),
                                .inter = fabric_of_tier(&g->inter)};
}
