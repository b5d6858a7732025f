/* The experts of a block: one grouped product over pairs (row, expert), a slice of them at a time.
 */
#include "model/block_int.h"

#include <string.h>

/* Pairs a thread that are computed together: enough to keep every thread busy, and few enough that
 * what lies between the products stays in caches. */
#define SLICE_PAIRS 256u

size_t sl_experts_scratch_bytes(const sl_model_spec *spec, uint32_t max_pairs) {
    /* empty groups make no job, so there are never more jobs than pairs */
    size_t per_group = 4 * sizeof(sl_gemm_job) + 2 * sizeof(void *);
    size_t in = spec->gate_input ? sl_scratch_floats(max_pairs, spec->d_model) : 0;
    size_t in_8_bits =
        sl_scratch_act(max_pairs, spec->d_model) + sl_scratch_act(max_pairs, spec->d_ff_expert);
    size_t mid = (spec->glu_limit > 0 ? 2 : 1) * sl_scratch_floats(max_pairs, spec->d_ff_expert);
    size_t out = sl_scratch_floats(max_pairs, spec->d_model);
    return in + mid + out + in_8_bits + max_pairs * per_group + 7 * SL_SCRATCH_SLACK;
}

/* Each job gets its rows of k values; jobs lie one after the other. */
static void act_to_jobs(sl_act act, uint32_t k, sl_gemm_job *jobs, uint32_t n_jobs) {
    for (uint32_t j = 0; j < n_jobs; j++) {
        jobs[j].act = act;
        for (sl_act_kind i = 0; i < SL_ACT_KINDS; i++)
            if (act.row[i])
                act.row[i] += jobs[j].n_rows * sl_act_bytes_in(jobs[j].w->segments, i, k);
    }
}

/* gate[i].y, rows one after the other in the order of jobs, becomes the clamped SwiGLU of it and
 * of the ups, biased. */
static void clamped_swiglu(const sl_exec *ex, float limit, const sl_gemm_job *gate,
                           const sl_expert_weights *const *expert, uint32_t n_jobs, size_t n_rows,
                           sl_arena *scratch) {
    uint32_t width = gate[0].w->n;
    float *up = sl_take_rows(scratch, n_rows, width);
    sl_gemm_job *both = sl_take_list(ex, scratch, 2 * (size_t)n_jobs, sizeof *both);
    for (uint32_t i = 0; i < n_jobs; i++) {
        both[2 * i] = both[2 * i + 1] = gate[i];
        both[2 * i + 1].w = &expert[i]->up;
        both[2 * i + 1].y = up + (gate[i].y - gate[0].y);
    }
    sl_gemm(ex, both, 2 * n_jobs);
    for (uint32_t i = 0; i < n_jobs; i++) {
        if (!expert[i]->gate_bias.data) continue;
        sl_bias_add(ex, gate[i].y, &expert[i]->gate_bias, gate[i].n_rows);
        sl_bias_add(ex, both[2 * i + 1].y, &expert[i]->up_bias, gate[i].n_rows);
    }
    sl_swiglu_clamped(ex, gate[0].y, up, limit, n_rows * width);
}

/* Pairs first .. end - 1 of a batch, of groups from `group` on. */
typedef struct slice {
    uint32_t first, end, group;
} slice;

/* The next slice, of whole groups where one fits. */
static slice next_slice(const sl_expert_batch *b, slice s, uint32_t most) {
    slice n = {.first = s.end, .end = s.end, .group = s.group};
    while (b->first[n.group + 1] <= n.first) n.group++;
    uint32_t g = n.group;
    while (g < b->n_groups && b->first[g + 1] - n.first <= most) n.end = b->first[++g];
    if (n.end == n.first) n.end = n.first + most;
    return n;
}

/* Columns c0 .. c0 + n - 1 of the slice's results to where the batch wants them. */
static void sum_results(const sl_exec *ex, const sl_expert_batch *b, const slice *s,
                        const float *gate, uint32_t d, const float *y, uint32_t c0, uint32_t n) {
    sl_sum_pairs(ex, &(sl_pair_sum){.n_pairs = s->end - s->first,
                                    .d = d,
                                    .first = c0,
                                    .n = n,
                                    .y = y,
                                    .gate = gate ? gate + s->first : NULL,
                                    .to = b->to + s->first,
                                    .adds = b->adds + s->first});
}

/* Columns c0 .. c0 + n - 1 of the slice's results, which are a rank's to finish, to where the batch
 * wants them. */
static void put_results(const sl_exec *ex, const sl_expert_batch *b, const slice *s,
                        const float *gate, uint32_t d, const float *y, uint32_t c0, uint32_t n) {
    const sl_exec alone = {.k = ex->k};
    if (b->to) {
        sum_results(&alone, b, s, gate, d, y, c0, n);
        return;
    }
    for (uint32_t p = 0; p < s->end - s->first; p++) {
        float *to = b->y + (size_t)(s->first + p) * d + c0;
        const float *from = y + (size_t)p * d + c0;
        if (gate)
            sl_vec_scale(&alone, to, from, gate[s->first + p], n);
        else
            memcpy(to, from, n * sizeof *to);
    }
}

/* The bias to columns c0 .. c0 + n - 1 of rows. */
static void add_bias(const sl_exec *ex, float *y, const sl_mat *bias, uint32_t n_rows, uint32_t c0,
                     uint32_t n) {
    if (n == bias->k) {
        sl_bias_add(ex, y, bias, n_rows);
        return;
    }
    const sl_exec alone = {.k = ex->k};
    const sl_mat part = sl_bias_part(bias, c0, n);
    for (uint32_t r = 0; r < n_rows; r++)
        sl_bias_add(&alone, y + (size_t)r * bias->k + c0, &part, 1);
}

/* What the products of a slice are made of: gate with up, then down, a job of each an expert. */
typedef struct slice_jobs {
    sl_gemm_job *in, *out;
    const sl_mat **up;
    const sl_expert_weights **who;
    uint32_t n, in_kinds, out_kinds;
} slice_jobs;

static const sl_expert_weights *expert_of(const sl_model *m, uint32_t layer, uint32_t expert) {
    const sl_model_spec *s = &m->spec;
    SL_ASSERT(expert < s->n_experts);
    const sl_expert_weights *e = &m->expert[(size_t)s->moe_index[layer] * s->n_experts + expert];
    SL_ASSERT(e->gate.data != NULL);
    return e;
}

static const sl_mat *there(const sl_mat *w) {
    return w->data ? w : NULL;
}

bool sl_model_expert(const sl_model *m, uint32_t layer, uint32_t expert, sl_expert_mats *out) {
    const sl_model_spec *s = &m->spec;
    if (s->ffn[layer] != SL_FFN_MOE || expert >= s->n_experts) return false;
    const sl_expert_weights *e = &m->expert[(size_t)s->moe_index[layer] * s->n_experts + expert];
    *out = (sl_expert_mats){
        &e->gate, &e->up, &e->down, there(&e->gate_bias), there(&e->up_bias), there(&e->down_bias)};
    return e->gate.data && e->up.data && e->down.data;
}

/* x: rows that b->row names, or (weighed) one a pair of the slice; mid and y: of the slice. */
static slice_jobs make_jobs(const sl_model *m, const sl_exec *ex, uint32_t layer,
                            const sl_expert_batch *b, const slice *s, const float *x, bool weighed,
                            float *mid, float *y, sl_arena *scratch) {
    const uint32_t most = SL_MIN(s->end - s->first, b->n_groups);
    slice_jobs j = {.in = sl_take_list(ex, scratch, most, sizeof *j.in),
                    .out = sl_take_list(ex, scratch, most, sizeof *j.out),
                    .up = sl_take_list(ex, scratch, most, sizeof *j.up),
                    .who = sl_take_list(ex, scratch, most, sizeof *j.who)};
    uint32_t at = 0;
    for (uint32_t g = s->group; s->first + at < s->end; g++) {
        uint32_t n = SL_MIN(b->first[g + 1], s->end) - (s->first + at);
        if (n == 0) continue;
        const sl_expert_weights *e = expert_of(m, layer, b->expert[g]);
        float *mine = mid + (size_t)at * m->spec.d_ff_expert;
        size_t skip = (size_t)at * m->spec.d_model;
        j.in[j.n] = sl_dense_job(&e->gate, weighed ? x + skip : x, n, mine);
        j.in[j.n].row = weighed ? NULL : b->row + s->first + at;
        j.up[j.n] = &e->up;
        j.who[j.n] = e;
        j.in_kinds |= sl_act_kinds(ex, &e->gate) | sl_act_kinds(ex, &e->up);
        j.out_kinds |= sl_act_kinds(ex, &e->down);
        j.out[j.n] = sl_dense_job(&e->down, mine, n, y + skip + sl_rank_first(m));
        j.out[j.n++].y_stride = m->spec.d_model;
        at += n;
    }
    return j;
}

/* A slice between its two products: what DOWN multiplies is with all ranks, where each has some of
 * its rows, and on its way here. */
typedef struct passing {
    slice s;
    slice_jobs j;
    float *y;
    const float *gate;
    sl_arrival mid;
    size_t level; /* of its scratch, before */
} passing;

/* once: rows of x in 8 bits, all of them; NULL: a slice rounds what its pairs take. */
static void begin_slice(const sl_model *m, const sl_exec *ex, uint32_t layer,
                        const sl_expert_batch *b, const sl_act *once, passing *p,
                        sl_arena *scratch) {
    const sl_model_spec *spec = &m->spec;
    const slice *s = &p->s;
    uint32_t pairs = s->end - s->first, d = spec->d_model, d_ff = spec->d_ff_expert;
    p->level = scratch->used;
    bool weighed = spec->gate_input && b->gate;
    const float *x = b->x;
    p->gate = weighed ? NULL : b->gate;
    if (weighed) {
        float *own = sl_take_rows(scratch, pairs, d);
        sl_pick_rows(ex, b->x, b->row + s->first, b->gate + s->first, pairs, d, own);
        x = own;
    }
    float *mid = sl_take_rows(scratch, pairs, d_ff);
    bool apart = b->to || m->gang; /* ranks share what results go to */
    p->y = apart ? sl_take_rows(scratch, pairs, d) : b->y + (size_t)s->first * d;
    slice_jobs j = make_jobs(m, ex, layer, b, s, x, weighed, mid, p->y, scratch);
    for (uint32_t i = 0; once && i < j.n; i++) {
        j.in[i].act = *once;
        j.in[i].act_row = j.in[i].row;
    }
    if (!once)
        act_to_jobs(sl_take_act(ex, j.in_kinds, x, weighed ? NULL : b->row + s->first, pairs, d,
                                NULL, scratch),
                    d, j.in, j.n);
    if (spec->glu_limit > 0)
        clamped_swiglu(ex, spec->glu_limit, j.in, j.who, j.n, pairs, scratch);
    else
        sl_gemm_swiglu(ex, j.in, j.up, j.n);
    p->j = j;
    p->mid = sl_rank_send(m, ex, &m->holds.expert, 1, j.out_kinds, mid, pairs,
                          m->stored.d_ff_expert, scratch);
}

static void end_slice(const sl_model *m, const sl_exec *ex, const sl_expert_batch *b,
                      const passing *p, sl_arena *scratch) {
    const slice_jobs *j = &p->j;
    const slice *s = &p->s;
    const uint32_t pairs = s->end - s->first, d = m->spec.d_model, wide = j->out[0].w->k;
    const sl_arrived in = sl_rank_arrived(m, ex, &p->mid, j->out[0].w, scratch);
    for (uint32_t i = 0, at = 0; i < j->n; at += j->out[i++].n_rows)
        j->out[i].x = in.x ? in.x + (size_t)at * wide : NULL;
    act_to_jobs(in.act, wide, j->out, j->n);
    sl_gemm(ex, j->out, j->n);
    uint32_t c0 = 0, n = d;
    if (m->gang) sl_rank_join(m, ex, p->y, pairs, &c0, &n);
    for (uint32_t i = 0; i < j->n; i++)
        if (j->who[i]->down_bias.data)
            add_bias(ex, j->out[i].y - sl_rank_first(m), &j->who[i]->down_bias, j->out[i].n_rows,
                     c0, n);
    if (m->gang)
        put_results(ex, b, s, p->gate, d, p->y, c0, n);
    else if (b->to)
        sum_results(ex, b, s, p->gate, d, p->y, 0, d);
    else if (p->gate)
        sl_pick_rows(ex, p->y, NULL, p->gate + s->first, pairs, d, p->y);
    if (m->gang) m->gang->meet(m->gang->ctx);
    scratch->used = p->level;
}

/* rounded: what they read is there in 8 bits. */
static size_t slice_bytes(const sl_model *m, uint32_t pairs, bool rounded) {
    const size_t in = rounded ? sl_scratch_act(pairs, m->spec.d_model) : 0;
    return sl_experts_scratch_bytes(&m->spec, pairs) + sl_rank_pairs_bytes(m, pairs) - in;
}

/* Slices one by one, or the first product of one while what lies between those of the one before it
 * travels. */
static void run_slices(const sl_model *m, const sl_exec *ex, uint32_t layer,
                       const sl_expert_batch *b, const sl_act *once, sl_arena *scratch) {
    const uint32_t pairs = b->first[b->n_groups];
    uint32_t most = sl_rank_slice(m, ex, SLICE_PAIRS), begun = 0, ended = 0;
    const bool overlap = pairs > most && sl_rank_overlaps(m);
    if (overlap) most = SL_MIN(most, (pairs + 1) / 2); /* two have room where all had */
    const size_t bytes = overlap ? slice_bytes(m, most, once != NULL) : 0;
    passing part[2];
    sl_turns_scratch turns;
    sl_rank_turns(overlap, bytes, bytes, scratch, &turns);
    for (slice s = {0}; s.end < pairs || ended < begun;) {
        if (s.end < pairs) {
            s = next_slice(b, s, most);
            part[begun % 2].s = s;
            begin_slice(m, ex, layer, b, once, &part[begun % 2], turns.at[begun % 2]);
            begun++;
        }
        if (begun - ended > turns.ahead || s.end == pairs) {
            end_slice(m, ex, b, &part[ended % 2], turns.at[ended % 2]);
            ended++;
        }
    }
}

void sl_block_experts(const sl_model *m, const sl_exec *ex, uint32_t layer,
                      const sl_expert_batch *b, sl_arena *scratch) {
    uint32_t pairs = b->first[b->n_groups], kinds = 0;
    size_t level = scratch->used;
    SL_ASSERT(m->spec.ffn[layer] == SL_FFN_MOE && b->first[0] == 0);
    bool once = b->n_rows && b->n_rows <= pairs && !(m->spec.gate_input && b->gate);
    for (uint32_t g = 0; once && g < b->n_groups; g++) {
        if (b->first[g] == b->first[g + 1]) continue;
        const sl_expert_weights *e = expert_of(m, layer, b->expert[g]);
        kinds |= sl_act_kinds(ex, &e->gate) | sl_act_kinds(ex, &e->up);
    }
    sl_act act = sl_take_act(ex, kinds, b->x, NULL, b->n_rows, m->spec.d_model, NULL, scratch);
    run_slices(m, ex, layer, b, once ? &act : NULL, scratch);
    scratch->used = level;
}
