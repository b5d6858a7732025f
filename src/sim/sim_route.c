/* Which experts a row goes to, and what a lane sends. Only counts travel: of a message the rows,
 * its (row, expert) pairs by expert, and its size. */
#include "sim/deployment_int.h"

#include <string.h>

/* ---- draws ---- */

/* Walker's alias table of n weights (Vose's way of filling it). */
static sl_status fill_alias(sim *s, const double *weight, float *share, uint32_t *other) {
    uint32_t n = s->m->n_experts, n_small = 0, n_large = 0;
    uint32_t *list, *large;
    double *p, sum = 0;
    void *block = sl_alloc_arrays(SL_ARRAY(list, n), SL_ARRAY(large, n), SL_ARRAY(p, n));
    if (!block) return SL_ERR_NOMEM;
    for (uint32_t e = 0; e < n; e++) sum += weight[e];
    for (uint32_t e = 0; e < n; e++) {
        p[e] = sum > 0 ? weight[e] / sum * n : 1;
        if (p[e] < 1)
            list[n_small++] = e;
        else
            large[n_large++] = e;
    }
    while (n_small > 0 && n_large > 0) {
        uint32_t less = list[--n_small], more = large[n_large - 1];
        share[less] = (float)p[less];
        other[less] = more;
        p[more] -= 1 - p[less];
        if (p[more] < 1) {
            list[n_small++] = more;
            n_large--;
        }
    }
    while (n_large > 0) share[large[--n_large]] = 1;
    while (n_small > 0) share[list[--n_small]] = 1;
    sl_free(block);
    return SL_OK;
}

static uint32_t draw_one(sim *s, size_t table) {
    uint64_t r = sl_rng_next(&s->rng);
    uint32_t e = (uint32_t)((r >> 32) * s->m->n_experts >> 32);
    float u = (float)(r & 0xFFFFFF) * 0x1p-24f;
    return u < s->alias_share[table + e] ? e : s->alias_other[table + e];
}

static bool is_in(const uint32_t *list, uint32_t n, uint32_t v) {
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == v) return true;
    return false;
}

/* The heaviest that is not chosen yet: where draws find only what is. */
static uint32_t heaviest_left(const sim *s, size_t table, const uint32_t *chosen, uint32_t n) {
    uint32_t best = SIM_NONE;
    for (uint32_t e = 0; e < s->m->n_experts; e++) {
        if (is_in(chosen, n, e)) continue;
        if (best == SIM_NONE || s->weight[table + e] > s->weight[table + best]) best = e;
    }
    return best;
}

/* Draws that hit what is chosen already are repeated, which is the same as drawing from the weights
 * that are left. */
static void draw(sim *s, uint32_t moe, uint32_t *expert) {
    size_t table = s->n_pop == 1 ? 0 : (size_t)moe * s->m->n_experts;
    for (uint32_t j = 0; j < s->m->top_k; j++) {
        uint32_t e = SIM_NONE;
        for (uint32_t tries = 0; tries < 200 && e == SIM_NONE; tries++) {
            e = draw_one(s, table);
            if (is_in(expert, j, e)) e = SIM_NONE;
        }
        expert[j] = e != SIM_NONE ? e : heaviest_left(s, table, expert, j);
    }
}

uint32_t sim_route_row(sim *s, uint32_t request, uint32_t position, uint32_t moe,
                       uint32_t *expert) {
    const sim_request *q = &s->req[request];
    if (s->s->route)
        return s->s->route(s->s->route_ctx, q->number, position, q->life->tokens, moe, expert);
    draw(s, moe, expert);
    return (uint32_t)sl_rng_next(&s->rng);
}

/* ---- a dispatch ---- */

void sim_route_pair(sim *s, uint32_t worker, uint32_t expert) {
    uint32_t at = worker * s->m->n_experts + expert;
    if (s->cell[at]++ == 0) s->touched[s->n_touched++] = at;
}

/* Whether its step's chunks are of experts. */
static bool by_experts(const sim_lane *l) {
    return l->step.chunking == SL_CHUNK_EXPERTS;
}

/* The chunk of an expert: it says so itself, or it is given. */
static uint32_t chunk_of(const sim *s, const sim_lane *l, uint32_t expert, uint32_t given) {
    return by_experts(l) ? sl_cut_group(&s->cut, l->step.n_cut, expert) : given;
}

/* Puts the pairs so far into the messages of their workers. */
static void flush_pairs(sim *s, const sim_lane *l, uint32_t chunk) {
    for (uint32_t i = 0; i < s->n_touched; i++) {
        uint32_t at = s->touched[i], e = at % s->m->n_experts, x = at / s->m->n_experts;
        uint32_t c = chunk_of(s, l, e, chunk);
        sim_msg_add_pair(s, s->to_msg[x * s->chunks + c], e, s->cell[at]);
        s->cell[at] = 0;
    }
    s->n_touched = 0;
}

/* The row's data travels to a worker with the first of its chunks; later ones refer to it. */
static void count_row(sim *s, const sim_lane *l, uint32_t row, const uint32_t *expert,
                      const uint32_t *owner, uint32_t chunk) {
    uint32_t k = s->m->top_k, group[SL_MAX_TOP_K];
    for (uint32_t j = 0; j < k; j++) group[j] = chunk_of(s, l, expert[j], chunk);
    for (uint32_t j = 0; j < k; j++) {
        uint32_t c = group[j], at = owner[j] * s->chunks + c;
        sim_msg *m = &s->msg[s->to_msg[at]];
        m->entries++;
        sim_route_pair(s, owner[j], expert[j]);
        if (s->last_row[at] == row) continue;
        s->last_row[at] = row;
        m->rows++;
        bool old = false;
        for (uint32_t i = 0; i < k && !old; i++) old = owner[i] == owner[j] && group[i] < c;
        m->old += old;
    }
}

/* Rows [first, end) of the step. */
static void count_rows(sim *s, const sim_side *side, const sim_lane *l, uint32_t moe,
                       uint32_t first, uint32_t end, uint32_t chunk) {
    uint32_t expert[SL_MAX_TOP_K], owner[SL_MAX_TOP_K], before = 0;
    const sl_step_part *part = l->step.part;
    for (uint32_t r = first; r < end; r++) {
        while (r >= before + part->rows) before += part++->rows;
        uint32_t position = l->life[part->slot].done + r - before;
        uint32_t key = sim_route_row(s, l->request[part->slot], position, moe, expert);
        for (uint32_t j = 0; j < s->m->top_k; j++)
            owner[j] = s->expert_index[sl_plan_host_of(&side->plan, moe, expert[j], key)];
        count_row(s, l, r, expert, owner, chunk);
    }
}

static bool take_messages(sim *s, sim_worker *w, uint32_t lane_id, uint32_t moe, bool stay,
                          uint32_t n_out) {
    const sim_lane *l = &w->attn->lane[lane_id];
    for (uint32_t i = 0; i < w->side->n_expert * s->chunks && s->status == SL_OK; i++) {
        uint32_t chunk = i % s->chunks;
        if (chunk >= n_out) continue;
        uint32_t id = sim_msg_take(s, SIM_MSG_DISPATCH, w->id, w->side->expert_id[i / s->chunks]);
        if (id == SIM_NONE) return false;
        sim_msg *m = &s->msg[id];
        m->lane = lane_id;
        m->layer = moe;
        m->chunk = chunk;
        m->round = l->member.round;
        m->with_set = sl_member_needs_set(&l->member, moe, chunk);
        m->stay = stay && chunk == s->chunks - 1;
        m->ends = chunk + 1 == n_out && n_out < s->chunks;
        s->to_msg[i] = id;
        s->last_row[i] = SIM_NONE;
    }
    return s->status == SL_OK;
}

void sim_route_dispatch(sim *s, sim_worker *w, uint32_t lane_id, uint32_t moe, bool stay) {
    const sim_lane *l = &w->attn->lane[lane_id];
    const uint32_t rows = s->pipe > 1 ? 0 : l->step.rows; /* they stay inside */
    const uint32_t n_out = sl_cut_sent(s->chunks, l->step.n_cut, rows > 0, moe + 1u == s->m->n_moe);
    if (!take_messages(s, w, lane_id, moe, stay, n_out)) return;
    for (uint32_t c = 0; !by_experts(l) && c < n_out; c++) {
        uint32_t first, end;
        sl_cut_rows(rows, l->step.n_cut, c, &first, &end);
        count_rows(s, w->side, l, moe, first, end, c);
        flush_pairs(s, l, c);
    }
    if (by_experts(l)) {
        count_rows(s, w->side, l, moe, 0, rows, 0);
        flush_pairs(s, l, 0);
    }
    sl_resolve_drop(&w->attn->resolve, lane_id);
    for (uint32_t c = 0; c < n_out; c++)
        for (uint32_t k = 0; k < w->side->n_expert && s->status == SL_OK; k++) {
            const uint32_t x = sl_order_kth(w->id, w->side->n_expert, k);
            const uint32_t id = s->to_msg[x * s->chunks + c];
            const sim_msg *m = &s->msg[id];
            size_t n_set = m->with_set ? l->member.set.n : 0;
            sl_resolve_sent(&w->attn->resolve, lane_id, c, x, m->entries, m->rows - m->old,
                            (uint64_t)sim_now(s));
            sim_msg_send(s, id, m->rows || n_set ? sim_dispatch_bytes(s, m, n_set) : 0);
        }
    for (uint32_t i = n_out * w->side->n_expert; i < s->chunks * w->side->n_expert; i++)
        sl_turns_reply(&w->attn->turns, lane_id);
}

/* ---- life ---- */

sl_status sim_route_create(sim *s) {
    size_t E = s->m->n_experts, hosts = SL_MAX(s->side[0].n_expert, s->side[1].n_expert);
    size_t n = hosts * s->chunks;
    s->n_pop = s->s->popularity ? s->s->n_layers : 1;
    s->tables = sl_alloc_arrays(
        SL_TABLE(s->alias_share, s->n_pop, E), SL_TABLE(s->alias_other, s->n_pop, E),
        SL_TABLE(s->weight, s->n_pop, E), SL_ARRAY(s->expert_rows, E), SL_TABLE(s->cell, hosts, E),
        SL_TABLE(s->touched, hosts, E), SL_ARRAY(s->to_msg, n), SL_ARRAY(s->last_row, n),
        SL_ARRAY(s->answer, s->n_workers), SL_ARRAY(s->answered, s->n_workers));
    if (!s->tables) return sim_oom(s, "tables of experts");
    for (uint32_t i = 0; i < s->n_workers; i++) s->answer[i] = SIM_NONE;
    for (size_t i = 0; i < s->n_pop * E; i++)
        s->weight[i] = s->s->popularity ? s->s->popularity[i] : 1;
    sl_status st = SL_OK;
    for (uint32_t l = 0; st == SL_OK && l < s->n_pop; l++)
        st = fill_alias(s, s->weight + l * E, s->alias_share + l * E, s->alias_other + l * E);
    return st == SL_OK ? st : sim_oom(s, "tables of experts");
}
