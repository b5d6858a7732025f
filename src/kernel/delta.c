/* Linear attention where memory is the host's: rows of a request one after the other, requests and
 * key heads side by side. */
#include "kernel/delta.h"

#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"

#include <math.h>
#include <string.h>

#define L2_EPS 1e-6f /* of the lengths of queries and keys */

/* ---- rows of products ---- */

sl_delta_lie sl_delta_lie_of(const sl_model_spec *m, bool by_parts, sl_delta_part part) {
    const uint32_t heads = m->delta_v_heads / m->delta_k_heads, values = heads * m->delta_v_dim;
    const uint32_t n[] = {m->delta_k_dim, m->delta_k_dim, values, values, heads, heads};
    const bool small = part >= SL_DELTA_BETA;
    const uint32_t begin = small ? SL_DELTA_BETA : 0, end = small ? SL_DELTA_PARTS : SL_DELTA_BETA;
    uint32_t before = 0, all = 0;
    for (uint32_t i = begin; i < end; i++) {
        before += i < part ? n[i] : 0;
        all += n[i];
    }
    if (by_parts && !small) return (sl_delta_lie){before * m->delta_k_heads, n[part], n[part]};
    return (sl_delta_lie){before, all, n[part]};
}

uint32_t sl_delta_by_heads(const sl_model_spec *m, uint32_t at) {
    for (sl_delta_part i = SL_DELTA_QUERY;; i++) {
        const sl_delta_lie from = sl_delta_lie_of(m, true, i), to = sl_delta_lie_of(m, false, i);
        const uint32_t rest = at - from.first;
        SL_ASSERT(i < SL_DELTA_BETA);
        if (rest < from.n * m->delta_k_heads)
            return to.first + rest / from.n * to.step + rest % from.n;
    }
}

/* ---- states ---- */

static size_t windows(const sl_model_spec *m) {
    return sl_model_delta(m).window;
}

static size_t block_floats(const sl_model_spec *m) {
    return windows(m) + sl_model_delta(m).held;
}

size_t sl_states_bytes(const sl_model_spec *m, bool guesses) {
    return sl_delta_bytes(sl_model_delta(m), m->n_linear, guesses);
}

sl_status sl_states_open(const sl_model_spec *m, uint32_t requests, bool guesses, sl_states *out,
                         sl_err *err) {
    const size_t rows = (size_t)requests * m->n_linear * SL_DELTA_LOG;
    size_t bytes;
    *out = (sl_states){.m = m,
                       .n = 2 * requests,
                       .place = m->n_linear * block_floats(m),
                       .logged = sl_model_delta(m).logged};
    if (requests == 0 || requests > UINT32_MAX / 2 ||
        __builtin_mul_overflow((size_t)requests, sl_states_bytes(m, guesses), &bytes))
        return sl_fail(err, SL_ERR_LIMIT, "states of %u requests", requests);
    out->at = sl_alloc(out->n, m->n_linear * sizeof *out->at);
    out->base = sl_reserve(out->n, out->place * sizeof(float)); /* memory where it is written */
    if (guesses) {
        out->log_at = sl_alloc(rows, sizeof *out->log_at);
        out->log = sl_reserve(rows, out->logged * sizeof(float));
    }
    if (out->at && out->base && (!guesses || (out->log && out->log_at))) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "%zu bytes for states of %u requests", bytes, requests);
}

void sl_states_close(sl_states *s) {
    const size_t rows = s->m ? (size_t)s->n / 2 * s->m->n_linear * SL_DELTA_LOG : 0;
    sl_free(s->at);
    sl_free(s->log_at);
    if (s->base) sl_release(s->base, s->n, s->place * sizeof(float));
    if (s->log) sl_release(s->log, rows, s->logged * sizeof(float));
    *s = (sl_states){0};
}

static float *block_at(const sl_states *s, uint32_t place, uint32_t block) {
    return s->base + place * s->place + block * block_floats(s->m);
}

static size_t log_row(const sl_states *s, uint32_t place, uint32_t block, uint32_t pos) {
    return ((size_t)place / 2 * s->m->n_linear + block) * SL_DELTA_LOG + pos % SL_DELTA_LOG;
}

/* ---- a request's rows ---- */

/* Consecutive rows of a request in a call, and the versions that they go between. */
typedef struct run {
    uint32_t first, n, pos; /* rows of the call; position of the first of them */
    uint32_t from, to;      /* places; the same: rows go on where those before them ended */
    bool fresh;             /* from nothing */
    uint32_t lost, upto;    /* `from` is ahead and made again from its other version: positions */
} run;

typedef struct ctx {
    const sl_kernels *k;
    const sl_delta_args *a;
    const run *run;
    uint32_t n_runs, block;
    bool apart; /* no request has two runs: they may pass side by side */
} ctx;

/* A key head's part of a row. */
typedef struct piece {
    const float *x[3]; /* queries and keys [k_dim], values */
    const float *gate, *beta, *a;
    float *o; /* NULL: its state alone counts */
} piece;

/* Where a key head's channels of the convolution are among all. */
typedef struct shares {
    uint32_t heads, values; /* value heads, and their values */
    uint32_t at[3], n[3];   /* queries, keys, values */
} shares;

static shares shares_of(const sl_model_spec *m, uint32_t head) {
    shares s = {.heads = m->delta_v_heads / m->delta_k_heads};
    for (uint32_t i = 0; i < 3; i++) {
        const sl_delta_lie lie = sl_delta_lie_of(m, true, (sl_delta_part)i);
        s.at[i] = lie.first + head * lie.step;
        s.n[i] = lie.n;
    }
    s.values = s.n[SL_DELTA_VALUE];
    return s;
}

static piece piece_of(const ctx *c, const shares *s, uint32_t head, uint32_t row) {
    const sl_model_spec *m = c->a->m;
    const size_t width = sl_delta_channels(m) + sl_delta_out(m);
    const float *in = c->a->in + row * width;
    const float *small = c->a->small + (size_t)row * 2 * m->delta_v_heads, *at[SL_DELTA_PARTS];
    for (sl_delta_part i = 0; i < SL_DELTA_PARTS; i++)
        at[i] = (i < SL_DELTA_BETA ? in : small) + c->a->lie[i].first + head * c->a->lie[i].step;
    return (piece){.x = {at[SL_DELTA_QUERY], at[SL_DELTA_KEY], at[SL_DELTA_VALUE]},
                   .gate = at[SL_DELTA_GATE],
                   .beta = at[SL_DELTA_BETA],
                   .a = at[SL_DELTA_DECAY],
                   .o = c->a->o + (size_t)row * sl_delta_out(m) + (size_t)head * s->values};
}

/* The log has a key head's queries, keys and values one behind the other, then beta and decay. */
static float *log_of(const ctx *c, const shares *s, uint32_t head, uint32_t place, uint32_t pos) {
    const sl_states *st = c->a->states;
    const size_t part = 2 * (size_t)c->a->m->delta_k_dim + s->values + 2 * s->heads;
    return st->log + log_row(st, place, c->block, pos) * st->logged + head * part;
}

static piece piece_of_log(const ctx *c, const shares *s, uint32_t head, uint32_t place,
                          uint32_t pos) {
    const float *key = log_of(c, s, head, place, pos) + s->n[0], *value = key + s->n[1];
    const float *beta = value + s->n[2];
    return (piece){.x = {key - s->n[0], key, value}, .beta = beta, .a = beta + s->heads};
}

static void write_log(const ctx *c, const shares *s, uint32_t head, uint32_t place, uint32_t pos,
                      const piece *p) {
    float *row = log_of(c, s, head, place, pos);
    for (int i = 0; i < 3; row += s->n[i++]) memcpy(row, p->x[i], s->n[i] * sizeof *row);
    memcpy(row, p->beta, s->heads * sizeof *row);
    memcpy(row + s->heads, p->a, s->heads * sizeof *row);
}

/* What passes from row to row of a key head, in a version: windows are its rows before. */
typedef struct passing {
    const shares *s;
    uint32_t head;
    float *window; /* [taps - 1][channels] */
    float *state;  /* of its first value head */
} passing;

static passing at_version(const ctx *c, const shares *s, uint32_t head, uint32_t place) {
    const sl_model_spec *m = c->a->m;
    float *block = block_at(c->a->states, place, c->block);
    const size_t one = (size_t)m->delta_k_dim * m->delta_v_dim;
    return (passing){s, head, block, block + windows(m) + head * s->heads * one};
}

static void clear(const sl_model_spec *m, const passing *p) {
    const size_t one = (size_t)m->delta_k_dim * m->delta_v_dim;
    for (uint32_t j = 0; j + 1 < m->delta_taps; j++)
        for (int i = 0; i < 3; i++)
            memset(p->window + (size_t)j * sl_delta_channels(m) + p->s->at[i], 0,
                   p->s->n[i] * sizeof *p->window);
    memset(p->state, 0, p->s->heads * one * sizeof *p->state);
}

/* Queries, keys and values of the piece through the convolution, by the window before it, which
 * becomes the one behind it at `to`. */
static void convolve(const ctx *c, const passing *from, const passing *to, const piece *p,
                     float *out) {
    const sl_model_spec *m = c->a->m;
    const uint32_t taps = m->delta_taps, channels = sl_delta_channels(m);
    for (int i = 0; i < 3; i++) {
        const uint32_t at = from->s->at[i], n = from->s->n[i];
        sl_taps t = {.n_taps = taps, .n = n, .w = c->a->conv + at, .w_stride = channels, .y = out};
        for (uint32_t j = 0; j + 1 < taps; j++) t.x[j] = from->window + (size_t)j * channels + at;
        t.x[taps - 1] = p->x[i];
        c->k->taps(&t);
        for (uint32_t j = 0; j + 1 < taps; j++)
            memcpy(to->window + (size_t)j * channels + at, t.x[j + 1], n * sizeof *out);
        out += n;
    }
}

/* Of unit length, times `by`. */
static void to_length(const sl_kernels *k, float *x, uint32_t n, float by) {
    const float inv = k->rms_inverse(x, L2_EPS / (float)n, n);
    k->scale(x, x, inv * by, n);
}

static void pass_row(const ctx *c, const passing *from, const passing *to, const piece *p) {
    const sl_model_spec *m = c->a->m;
    const uint32_t dim = m->delta_k_dim, v_dim = m->delta_v_dim;
    const size_t one = (size_t)dim * v_dim;
    float row[2 * SL_DELTA_DIM + SL_DELTA_VALUES], gate[SL_DELTA_DIM];
    const float root = sqrtf((float)dim); /* of what rms_inverse divides the sum of squares by */
    convolve(c, from, to, p, row);
    to_length(c->k, row, dim, 1.0f / (float)dim); /* and queries once more */
    to_length(c->k, row + dim, dim, 1.0f / root);
    for (uint32_t h = 0; h < from->s->heads; h++) {
        const uint32_t v = from->head * from->s->heads + h;
        float *o = p->o ? p->o + (size_t)h * v_dim : NULL;
        c->k->delta(
            &(sl_delta_step){.k_dim = dim,
                             .v_dim = v_dim,
                             .from = from->state + h * one,
                             .to = to->state + h * one,
                             .q = row,
                             .k = row + dim,
                             .v = row + 2 * dim + (size_t)h * v_dim,
                             .decay = sl_decay_scalar(p->a[h], c->a->shift[v], c->a->rate[v]),
                             .beta = sl_sigmoid_scalar(p->beta[h]),
                             .o = o});
        if (!o) continue;
        c->k->rms_apply(o, c->a->norm, c->k->rms_inverse(o, m->rms_eps, v_dim), v_dim, o);
        memcpy(gate, p->gate + (size_t)h * v_dim, v_dim * sizeof *gate);
        c->k->swiglu(gate, o, v_dim);
        memcpy(o, gate, v_dim * sizeof *o);
    }
}

/* `from` again, from its other version and the log. */
static void restore(const ctx *c, const run *r, const shares *s, uint32_t head) {
    const passing to = at_version(c, s, head, r->from);
    passing from = at_version(c, s, head, r->from ^ 1);
    if (r->lost == 0) clear(c->a->m, &from);
    for (uint32_t pos = r->lost; pos < r->upto; pos++) {
        const piece p = piece_of_log(c, s, head, r->from, pos);
        pass_row(c, &from, &to, &p);
        from = to;
    }
}

static void pass_run(const ctx *c, const run *r, const shares *s, uint32_t head) {
    const passing to = at_version(c, s, head, r->to);
    passing from = at_version(c, s, head, r->from);
    if (r->lost < r->upto) restore(c, r, s, head);
    if (r->fresh) {
        clear(c->a->m, &to);
        from = to;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        const piece p = piece_of(c, s, head, r->first + i);
        pass_row(c, &from, &to, &p);
        if (c->a->states->log && r->n - i <= SL_DELTA_LOG)
            write_log(c, s, head, r->to, r->pos + i, &p);
        from = to;
    }
}

/* Items are key heads of runs, or key heads of all of them. */
static void items(void *arg, size_t begin, size_t end) {
    const ctx *c = arg;
    const uint32_t heads = c->a->m->delta_k_heads;
    for (size_t i = begin; i < end; i++) {
        const uint32_t head = (uint32_t)(i % heads);
        const shares s = shares_of(c->a->m, head);
        const uint32_t one = c->apart ? (uint32_t)(i / heads) : 0;
        for (uint32_t r = one; r < (c->apart ? one + 1 : c->n_runs); r++)
            pass_run(c, &c->run[r], &s, head);
    }
}

/* ---- a call ---- */

static uint32_t *taken(const sl_states *s, uint32_t place, uint32_t block) {
    return &s->at[(size_t)place * s->m->n_linear + block];
}

/* What rows of guesses that were dropped have left in the version that the run goes on from. */
static void find_lost(const ctx *c, run *r, uint32_t done) {
    const sl_states *s = c->a->states;
    uint32_t *has = taken(s, r->from, c->block);
    if (*has == done) return;
    r->lost = *taken(s, r->from ^ 1, c->block);
    r->upto = done;
    SL_ASSERT(s->log && *has > done && r->lost < done && done - r->lost <= SL_DELTA_LOG);
    for (uint32_t pos = r->lost; pos < done; pos++)
        SL_ASSERT(s->log_at[log_row(s, r->from, c->block, pos)] == pos + 1);
    *has = done;
}

static run run_from(const ctx *c, uint32_t first) {
    const sl_delta_args *a = c->a;
    const uint32_t done = a->done[first], pos = a->pos[first], state = a->state[first];
    const sl_states *s = a->states;
    run r = {.first = first, .n = 1, .pos = pos, .to = state ^ 1};
    SL_ASSERT(state < s->n && pos >= done);
    while (first + r.n < a->n_rows && a->state[first + r.n] == state) {
        SL_ASSERT(a->pos[first + r.n] == pos + r.n);
        r.n++;
    }
    r.from = pos == done ? state : r.to;
    r.fresh = pos == 0;
    if (r.fresh) *taken(s, state, c->block) = 0;
    if (!r.fresh && pos == done) find_lost(c, &r, done);
    SL_ASSERT(r.fresh || *taken(s, r.from, c->block) == pos);
    *taken(s, r.to, c->block) = pos + r.n;
    for (uint32_t i = 0; s->log && i < r.n; i++)
        s->log_at[log_row(s, state, c->block, pos + i)] = pos + i + 1;
    return r;
}

void sl_host_delta(const sl_exec *ex, const sl_delta_args *a) {
    enum { RUNS = 128 }; /* at a time */
    run of[RUNS];
    ctx c = {.k = ex->k, .a = a, .run = of, .block = a->m->linear_before[a->layer]};
    for (uint32_t at = 0; at < a->n_rows;) {
        c.n_runs = 0;
        c.apart = true;
        for (; at < a->n_rows && c.n_runs < RUNS && c.apart; at += of[c.n_runs++].n) {
            of[c.n_runs] = run_from(&c, at);
            for (uint32_t i = 0; i < c.n_runs; i++)
                c.apart = c.apart && of[i].to / 2 != of[c.n_runs].to / 2;
        }
        const size_t n = (size_t)a->m->delta_k_heads * (c.apart ? c.n_runs : 1);
        if (ex->pool)
            sl_pool_run(ex->pool, n, 1, items, &c);
        else
            items(&c, 0, n);
    }
}
