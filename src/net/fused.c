/* Fused dispatch and combine of one node's rank: passes, their rows, sums in order. */
#include "net/fused_int.h"

#include <string.h>

#include "base/mem.h"

/* ---- life ---- */

static sl_status check_opts(const sl_fused_opts *o, sl_err *err) {
    if (!o->net || !o->send) return sl_fail(err, SL_ERR_ARG, "fused: a net and a way to send");
    if (o->n_nodes == 0 || o->n_nodes > SL_FUSED_MAX_NODES || o->n_tp == 0 ||
        o->n_tp > SL_FUSED_MAX_TP)
        return sl_fail(err, SL_ERR_ARG, "fused: %u nodes of %u ranks, limits %u and %u", o->n_nodes,
                       o->n_tp, SL_FUSED_MAX_NODES, SL_FUSED_MAX_TP);
    if (o->node >= o->n_nodes || o->tp >= o->n_tp)
        return sl_fail(err, SL_ERR_ARG, "fused: rank %u of node %u, there are %u of %u", o->tp,
                       o->node, o->n_tp, o->n_nodes);
    if (o->d_model == 0 || o->d_model % o->n_tp)
        return sl_fail(err, SL_ERR_ARG, "fused: rows of %u values in %u parts", o->d_model,
                       o->n_tp);
    uint64_t bytes = (uint64_t)o->max_rows * o->d_model * sizeof(float);
    if (o->max_rows == 0 || o->max_rows > SL_WIRE_MAX_ROWS || bytes > SL_NET_MAX_PAYLOAD ||
        o->max_control > SL_NET_MAX_PAYLOAD)
        return sl_fail(err, SL_ERR_ARG, "fused: %u rows of %u values and %u bytes of control",
                       o->max_rows, o->d_model, o->max_control);
    return SL_OK;
}

sl_status sl_fused_create(const sl_fused_opts *o, sl_fused **out, sl_err *err) {
    sl_status st = check_opts(o, err);
    if (st != SL_OK) return st;
    sl_fused *f = sl_alloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_ERR_NOMEM, "fused collectives");
    f->o = *o;
    f->part = o->d_model / o->n_tp;
    f->all_parts = o->n_tp == 64 ? UINT64_MAX : (1ull << o->n_tp) - 1;
    size_t rows = o->max_rows;
    f->arrays =
        sl_alloc_arrays(SL_TABLE(f->x, rows * o->n_nodes, o->d_model),
                        SL_TABLE(f->y, rows, f->part), SL_TABLE(f->result, rows, o->d_model));
    if (!f->arrays) {
        sl_fused_free(f);
        return sl_fail(err, SL_ERR_NOMEM, "fused: buffers of %u rows from %u nodes", o->max_rows,
                       o->n_nodes);
    }
    for (uint32_t v = 0; v < o->n_nodes; v++) f->in[v].x = f->x + rows * o->d_model * v;
    *out = f;
    return SL_OK;
}

static void forget(sl_fused *f, sl_buf **b) {
    sl_net_buf_give(f->o.net, *b);
    *b = NULL;
}

/* Drops what the last pass left. */
static void clear_pass(sl_fused *f) {
    for (uint32_t v = 0; v < f->o.n_nodes; v++) {
        fused_in *in = &f->in[v];
        forget(f, &in->control);
        for (uint32_t t = 0; t < f->o.n_tp; t++) forget(f, &in->partial[t]);
        forget(f, &f->back[v].sums);
        *in = (fused_in){.x = in->x};
        f->back[v] = (fused_back){0};
    }
    f->n_added = 0;
    f->finals = 0;
}

void sl_fused_free(sl_fused *f) {
    if (!f) return;
    clear_pass(f);
    while (f->early) {
        fused_early *e = f->early;
        f->early = e->next;
        sl_net_buf_give(f->o.net, e->payload);
        sl_free(e);
    }
    sl_free(f->arrays);
    sl_free(f);
}

sl_fused_stats sl_fused_stats_of(const sl_fused *f) {
    return f->n;
}

/* ---- dispatch ---- */

static sl_status check_rows(const sl_fused *f, uint32_t n_rows, const sl_fused_rows *to,
                            sl_err *err) {
    if (n_rows > f->o.max_rows)
        return sl_fail(err, SL_ERR_ARG, "fused: %u home rows, limit %u", n_rows, f->o.max_rows);
    for (uint32_t v = 0; v < f->o.n_nodes; v++) {
        if (to[v].control.len > f->o.max_control)
            return sl_fail(err, SL_ERR_ARG, "fused: %zu bytes of control for node %u, limit %u",
                           to[v].control.len, v, f->o.max_control);
        for (uint32_t i = 0; i < to[v].n; i++)
            if (to[v].row[i] >= n_rows || (i && to[v].row[i] <= to[v].row[i - 1]))
                return sl_fail(err, SL_ERR_ARG, "fused: row %u for node %u is %u of %u", i, v,
                               to[v].row[i], n_rows);
    }
    return SL_OK;
}

/* The rows that stay: no message carries them. */
static sl_status keep_local(sl_fused *f, const float *x, sl_err *err) {
    fused_in *in = &f->in[f->o.node];
    const sl_fused_rows *to = &f->to[f->o.node];
    size_t d = f->o.d_model;
    for (uint32_t i = 0; i < to->n; i++) memcpy(in->x + i * d, x + to->row[i] * d, d * sizeof *x);
    if (to->control.len) {
        in->control = sl_net_buf_take(f->o.net, to->control.len);
        if (!in->control)
            return sl_fail(err, SL_ERR_NOMEM, "fused: %zu bytes of control", to->control.len);
        memcpy(in->control->data, to->control.data, to->control.len);
    }
    in->n = to->n;
    in->known = in->has_control = in->own_part = in->forwarded = true;
    in->parts = f->all_parts;
    return SL_OK;
}

/* What came early is of this pass now. */
static sl_status replay_early(sl_fused *f, sl_err *err) {
    fused_early *e = f->early;
    sl_status st = SL_OK;
    f->early = NULL;
    f->n_early = 0;
    while (e) {
        fused_early *next = e->next;
        if (st == SL_OK)
            st = sl_fused_on_message(f, e->rank, &e->h, e->payload, err);
        else
            sl_net_buf_give(f->o.net, e->payload);
        sl_free(e);
        e = next;
    }
    return st;
}

sl_status sl_fused_dispatch(sl_fused *f, uint32_t layer, const float *x, uint32_t n_rows,
                            const sl_fused_rows *to, sl_err *err) {
    if (f->active)
        return sl_fail(err, SL_ERR_AGAIN, "fused: pass %llu has no result yet",
                       (unsigned long long)f->pass);
    sl_status st = check_rows(f, n_rows, to, err);
    if (st != SL_OK) return st;
    clear_pass(f);
    uint32_t n = f->o.n_nodes;
    memcpy(f->to, to, n * sizeof *to);
    f->pass++;
    f->layer = layer;
    f->n_rows = n_rows;
    f->active = true;
    memset(f->y, 0, (size_t)n_rows * f->part * sizeof *f->y);
    for (uint32_t i = 1; st == SL_OK && i < n; i++) {
        uint32_t u = (f->o.node + i) % n;
        st = sl_fused_send_control(f, u, err);
        if (st == SL_OK) st = sl_fused_send_part(f, u, x, err);
    }
    if (st == SL_OK) st = keep_local(f, x, err);
    if (st == SL_OK) st = replay_early(f, err);
    return st;
}

bool sl_fused_take(sl_fused *f, sl_fused_chunk *out) {
    for (uint32_t i = 1; f->active && i <= f->o.n_nodes; i++) {
        uint32_t w = (f->o.node + f->o.n_nodes - i) % f->o.n_nodes; /* the ring's order, own last */
        fused_in *in = &f->in[w];
        if (in->taken || in->parts != f->all_parts || !in->has_control) continue;
        in->taken = true;
        *out = (sl_fused_chunk){.node = w, .n = in->n, .x = in->x};
        if (in->control) out->control = (sl_span){in->control->data, in->control->len};
        return true;
    }
    return false;
}

/* ---- combine ---- */

sl_status sl_fused_give(sl_fused *f, uint32_t node, const float *partial, sl_err *err) {
    fused_in *in = node < f->o.n_nodes ? &f->in[node] : NULL;
    if (!in || !f->active || !in->taken || in->given)
        return sl_fail(err, SL_ERR_ARG, "fused: sums for node %u, whose rows were not taken", node);
    in->given = true;
    sl_buf *own = NULL;
    sl_status st = sl_fused_send_partial(f, node, partial, in->n, &own, err);
    in->partial[f->o.tp] = own;
    in->partials |= 1ull << f->o.tp;
    return st == SL_OK ? sl_fused_advance(f, err) : st;
}

/* Sums over the ranks, ascending, in the first rank's block. */
static sl_buf *reduce(sl_fused *f, fused_in *in) {
    sl_buf *sum = in->partial[0];
    size_t n = (size_t)in->n * f->part;
    in->partial[0] = NULL;
    for (uint32_t t = 1; t < f->o.n_tp; t++) {
        if (!in->partial[t]) continue; /* no rows */
        float *restrict a = (float *)(void *)sum->data;
        const float *restrict b = (const float *)(const void *)in->partial[t]->data;
        for (size_t i = 0; i < n; i++) a[i] += b[i];
        forget(f, &in->partial[t]);
    }
    return sum;
}

static bool all_reduced(const sl_fused *f) {
    for (uint32_t v = 0; v < f->o.n_nodes; v++)
        if (f->in[v].partials != f->all_parts) return false;
    return true;
}

static sl_status reply_where_reduced(sl_fused *f, sl_err *err) {
    if (f->o.unfused && !all_reduced(f)) return SL_OK;
    for (uint32_t i = 1; i <= f->o.n_nodes; i++) {
        uint32_t v = (f->o.node + i) % f->o.n_nodes;
        fused_in *in = &f->in[v];
        if (in->replied || in->partials != f->all_parts) continue;
        in->replied = true;
        sl_buf *sums = reduce(f, in);
        if (v == f->o.node) {
            f->back[v] = (fused_back){.sums = sums, .here = true};
            continue;
        }
        sl_status st = sl_fused_send_reply(f, v, in->n, sums, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* Others may still wait for this rank when its own result is there. */
static bool all_replied(const sl_fused *f) {
    for (uint32_t v = 0; v < f->o.n_nodes; v++)
        if (!f->in[v].replied) return false;
    return true;
}

static void add_replies(sl_fused *f) {
    for (; f->n_added < f->o.n_nodes && f->back[f->n_added].here; f->n_added++) {
        const sl_fused_rows *to = &f->to[f->n_added];
        sl_buf *b = f->back[f->n_added].sums;
        for (uint32_t i = 0; i < to->n; i++) {
            float *restrict y = f->y + (size_t)to->row[i] * f->part;
            const float *restrict z = (const float *)(const void *)b->data + (size_t)i * f->part;
            for (uint32_t j = 0; j < f->part; j++) y[j] += z[j];
        }
        forget(f, &f->back[f->n_added].sums);
    }
}

static sl_status finish(sl_fused *f, sl_err *err) {
    uint64_t own = 1ull << f->o.tp;
    if (f->n_added < f->o.n_nodes || (f->finals & own)) return SL_OK;
    for (uint32_t r = 0; r < f->n_rows; r++)
        memcpy(f->result + (size_t)r * f->o.d_model + (size_t)f->o.tp * f->part,
               f->y + (size_t)r * f->part, f->part * sizeof *f->y);
    f->finals |= own;
    return sl_fused_send_gather(f, FUSED_FINAL, f->o.node, f->result, f->n_rows, err);
}

/* ---- the pipeline ---- */

static bool all_parts_came(const sl_fused *f) {
    for (uint32_t w = 0; w < f->o.n_nodes; w++)
        if (!f->in[w].own_part) return false;
    return true;
}

static sl_status forward_parts(sl_fused *f, sl_err *err) {
    if (f->o.unfused && !all_parts_came(f)) return SL_OK;
    for (uint32_t i = 1; i < f->o.n_nodes; i++) {
        uint32_t w = (f->o.node + f->o.n_nodes - i) % f->o.n_nodes;
        fused_in *in = &f->in[w];
        if (!in->own_part || in->forwarded) continue;
        in->forwarded = true;
        sl_status st = sl_fused_send_gather(f, FUSED_GATHER, w, in->x, in->n, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

sl_status sl_fused_advance(sl_fused *f, sl_err *err) {
    sl_status st = forward_parts(f, err);
    if (st == SL_OK) st = reply_where_reduced(f, err);
    if (st != SL_OK) return st;
    add_replies(f);
    st = finish(f, err);
    if (f->finals == f->all_parts && all_replied(f)) f->active = false;
    return st;
}

const float *sl_fused_result(const sl_fused *f) {
    return !f->active && f->pass ? f->result : NULL;
}
