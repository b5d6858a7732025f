/* A worker that is a pipeline (docs/pipeline.md): rank 0 is its thread, the others are servers of
 * their own, first in, first out, with a hop of the link between ranks before each and, where rows
 * come back to rank 0, behind it. A lane's blocks of rank 0 are one task; when it is over the
 * lane's rows go from rank to rank, and its last block with experts ends when they are back. All
 * experts are here: rows leave for nobody, the words of the round go. */
#include "sim/deployment_int.h"

#include "spec/pipeline.h"

sl_status sim_pipeline_create(sim *s) {
    const sl_plan *p = s->p;
    s->pipe = sl_plan_pipeline(p);
    if (s->pipe == 1) return SL_OK;
    const sim_side *side = &s->side[0];
    const bool alone = side->n_attn == 1 && side->n_expert == 1 && !s->side[1].n_attn &&
                       side->attn_id[0] == side->expert_id[0];
    if (s->aep || s->chunks > 1 || !alone || sl_plan_has_gangs(p) || s->m->dense_branch)
        return sl_fail(s->err, SL_ERR_UNSUPPORTED,
                       "a pipeline of %u ranks is simulated where it is the one worker, of ranks "
                       "that are no gangs, by a schedule with barriers and without chunks",
                       s->pipe);
    if (s->pipe > s->m->n_layers)
        return sl_fail(s->err, SL_ERR_ARG, "a pipeline of %u ranks: the model has %u blocks",
                       s->pipe, s->m->n_layers);
    for (uint32_t r = 0; r < s->pipe; r++)
        s->pipe_blocks[r] = sl_pipeline_blocks(s->m, (sl_rank){r, s->pipe}, false);
    return SL_OK;
}

/* Routed experts of a block, of the lane's rows as they are drawn. */
static double experts_us(sim *s, const sim_worker *w, const sim_lane *l, uint32_t moe) {
    uint32_t expert[SL_MAX_TOP_K];
    double us = 0;
    for (size_t i = 0; i < l->step.n_parts; i++) {
        const sl_step_part *part = &l->step.part[i];
        for (uint32_t r = 0; r < part->rows; r++) {
            const uint32_t position = l->life[part->slot].done + r;
            (void)sim_route_row(s, l->request[part->slot], position, moe, expert);
            for (uint32_t j = 0; j < s->m->top_k; j++) s->expert_rows[expert[j]]++;
        }
    }
    for (uint32_t e = 0; e < s->m->n_experts; e++) {
        if (s->expert_rows[e]) us += sim_expert_us(s, w, moe, e, s->expert_rows[e], us <= 0);
        s->expert_rows[e] = 0;
    }
    return us;
}

static double stage_us(sim *s, const sim_worker *w, sl_cost_kind kind, uint32_t layer, double rows,
                       double keys) {
    const sl_stage_cost c = sim_stage_cost(s, w, kind, layer);
    return sl_stage_cost_us(&c, rows, keys);
}

static double block_us(sim *s, const sim_worker *w, const sim_lane *l, uint32_t layer) {
    const double rows = l->step.rows;
    double us = stage_us(s, w, SL_COST_ATTENTION, layer, rows, l->keys);
    if (!s->moe[layer]) return us + stage_us(s, w, SL_COST_DENSE, layer, rows, 0);
    us += stage_us(s, w, SL_COST_ROUTER, layer, rows, 0) +
          experts_us(s, w, l, s->m->moe_index[layer]);
    return s->m->d_ff_shared ? us + stage_us(s, w, SL_COST_SHARED, layer, rows, 0) : us;
}

double sim_pipeline_last_us(sim *s, sim_worker *w, double us, uint32_t back) {
    double *free_at = &w->attn->pipe_free[s->pipe - 1];
    const double row = (double)s->m->d_model * sizeof(float);
    const double comes = sim_now(s) + s->s->rank_link.alpha_us * s->scale;
    const double waits = SL_MAX(*free_at - comes, 0.0);
    *free_at = comes + waits + us * s->scale;
    return waits / s->scale + s->s->rank_link.alpha_us +
           sl_link_cost_us(&s->s->rank_link, back * row);
}

void sim_pipeline_start(sim *s, sim_worker *w, const sl_turn *t) {
    sim_lane *l = &w->attn->lane[t->lane];
    if (t->layer > 0) return;
    for (uint32_t r = 0; r < s->pipe; r++) {
        const sl_extent has = s->pipe_blocks[r];
        l->rank_us[r] = 0;
        for (uint32_t i = 0; i < has.n; i++) l->rank_us[r] += block_us(s, w, l, has.first + i);
    }
    sim_kernel_add(s, w, SL_TRACE_ATTENTION, &(sl_stage_cost){.fixed_us = l->rank_us[0]},
                   l->step.rows, 0);
}

/* The lane's rows leave rank 0: when they are back. */
static void hand_over(sim *s, sim_worker *w, sim_lane *l) {
    const double bytes = (double)l->step.rows * s->m->d_model * sizeof(float);
    const double hop = sl_link_cost_us(&s->s->rank_link, bytes) * s->scale;
    double t = sim_now(s);
    for (uint32_t r = 1; r < s->pipe; r++) {
        t = SL_MAX(t + hop, w->attn->pipe_free[r]) + l->rank_us[r] * s->scale;
        w->attn->pipe_free[r] = t;
        if (!sl_pipeline_hands_on((sl_rank){r, s->pipe})) t += hop;
    }
    l->back_at = t;
}

bool sim_pipeline_holds(sim *s, sim_worker *w, const sl_turn *t) {
    sim_lane *l = &w->attn->lane[t->lane];
    if (l->step.rows == 0) return false;
    if (t->layer == 0) hand_over(s, w, l);
    if (!s->moe[t->layer] || !sl_is_last_moe(s->m, t->layer)) return false;
    if (sim_now(s) >= l->back_at) return false;
    l->held = *t;
    sl_sim_events_push(&s->ev, l->back_at, SIM_BACK, w->id, t->lane);
    return true;
}
