/* What travels between ranks on machines, as bytes. */
#include "stage/gang/parcel.h"

#include "base/mem.h"

#include <string.h>

/* In front of a job: it, where what it points to lies, and how much that is; then that, then each
 * input, a range and its bytes. */
typedef struct head {
    gang_job job;
    uint32_t area, n_inputs;
    uint64_t filled; /* bytes of the area */
} head;

typedef struct range {
    uint32_t block, none;
    uint64_t at, bytes;
} range;

void gang_parcel_free(gang_parcel *p) {
    sl_free(p->data);
    *p = (gang_parcel){0};
}

/* Room for n more bytes; NULL: no memory. */
static uint8_t *more(gang_parcel *p, size_t n) {
    if (p->len + n > p->cap) {
        const size_t cap = SL_MAX(p->len + n, p->cap * 2);
        uint8_t *data = sl_grow(p->data, p->cap, cap, 1);
        if (!data) return NULL;
        p->data = data;
        p->cap = cap;
    }
    p->len += n;
    return p->data + p->len - n;
}

static bool put(gang_parcel *p, const void *from, size_t n) {
    uint8_t *to = more(p, n);
    if (to && n) memcpy(to, from, n);
    return to;
}

/* ---- jobs ---- */

typedef struct filling {
    gang_parcel *p;
    const gang_memory *m;
    gang_kept *kept;
    size_t row; /* bytes */
    uint32_t n;
    range last; /* is at the end of the parcel still, and may grow */
    size_t last_at;
    bool ok;
} filling;

static range range_of(const gang_memory *m, const uint8_t *what, size_t bytes) {
    uint32_t block = 0;
    uint64_t at = 0;
    const bool found = gang_memory_find(m, what, &block, &at);
    SL_ASSERT(found); /* rows of a gang of machines lie in memory of the device's */
    SL_ASSERT(bytes <= m->block[block].bytes - at);
    return (range){.block = block, .at = at, .bytes = bytes};
}

/* Rows that follow each other are one range. */
static void add_range(filling *f, range r, const uint8_t *what) {
    if (!f->ok) return;
    if (f->n && f->last.block == r.block && f->last.at + f->last.bytes == r.at) {
        f->ok = put(f->p, what, r.bytes);
        f->last.bytes += r.bytes;
    } else {
        f->last_at = f->p->len;
        f->last = r;
        f->n++;
        f->ok = put(f->p, &r, sizeof r) && put(f->p, what, r.bytes);
    }
    if (f->ok) memcpy(f->p->data + f->last_at, &f->last, sizeof f->last);
}

/* Rows that ranks have stay; what is carried they have from here on. */
static void add_input(void *ctx, const uint8_t *what, size_t bytes) {
    filling *f = ctx;
    const range r = range_of(f->m, what, bytes);
    if (!f->kept) {
        add_range(f, r, what);
        return;
    }
    for (size_t done = 0; done < bytes; done += f->row) {
        const range one = {.block = r.block, .at = r.at + done, .bytes = f->row};
        if (gang_kept_has(f->kept, one.block, one.at, f->row)) continue;
        add_range(f, one, what + done);
        gang_kept_note(f->kept, f->m, one.block, one.at, f->row, f->row, true);
    }
}

sl_status gang_parcel_fill(gang_parcel *p, const gang_memory *m, const gang_board *board,
                           const gang_job *j, const sl_model_spec *spec, gang_marks *marks,
                           gang_kept *kept, sl_err *err) {
    const size_t filled = gang_job_has_lists(j->kind) ? gang_job_filled(j, spec) : 0;
    head h = {
        .job = board->job, .area = gang_job_has_lists(j->kind) ? board->area : 0, .filled = filled};
    filling f = {.p = p, .m = m, .kept = kept, .row = spec ? spec->d_model * sizeof(float) : 0};
    p->len = 0;
    f.ok = put(p, &h, sizeof h) && put(p, filled ? m->block[board->area].at : NULL, filled);
    sl_status st = gang_each_input(j, spec, marks, add_input, &f, err);
    if (st != SL_OK) return st;
    if (!f.ok) return sl_fail(err, SL_ERR_NOMEM, "a job of %zu bytes", p->len);
    memcpy(p->data + offsetof(head, n_inputs), &f.n, sizeof f.n);
    return SL_OK;
}

static sl_status is_none(sl_err *err, const char *what) {
    return sl_fail(err, SL_ERR_PROTOCOL, "a job of a gang: %s", what);
}

/* Inputs to where they belong, which is not where lists lie; all of the parcel is them. */
static sl_status take_inputs(const gang_memory *m, uint32_t area, uint32_t n, const uint8_t *data,
                             size_t len, sl_err *err) {
    for (uint32_t i = 0; i < n; i++) {
        range r;
        if (len < sizeof r) return is_none(err, "its rows are cut short");
        memcpy(&r, data, sizeof r);
        data += sizeof r;
        len -= sizeof r;
        const bool other = r.block < GANG_MAX_BLOCKS && r.block != area;
        const gang_block *b = other ? &m->block[r.block] : NULL;
        if (!b || !b->at || r.at > b->bytes || r.bytes > b->bytes - r.at || r.bytes > len)
            return is_none(err, "rows for memory that is not there");
        memcpy(b->at + r.at, data, r.bytes);
        data += r.bytes;
        len -= r.bytes;
    }
    return len == 0 ? SL_OK : is_none(err, "more bytes than it has rows");
}

bool gang_parcel_carries(const uint8_t *data, size_t len) {
    head h;
    if (len < sizeof h) return false;
    memcpy(&h, data, sizeof h);
    return h.n_inputs > 0;
}

sl_status gang_parcel_take(const gang_memory *m, gang_board *board, const gang_bounds *b,
                           const uint8_t *data, size_t len, sl_err *err) {
    head h;
    if (len < sizeof h) return is_none(err, "it is cut short");
    memcpy(&h, data, sizeof h);
    const gang_block *area = h.area < GANG_MAX_BLOCKS ? &m->block[h.area] : NULL;
    const size_t there = area && area->at ? area->bytes : 0;
    if (h.filled > len - sizeof h || h.filled > there)
        return is_none(err, "what it points to is not there");
    if (h.filled) memcpy(area->at, data + sizeof h, h.filled);
    sl_status st = gang_job_check(m, h.area, h.filled, &h.job, b, err);
    if (st != SL_OK) return st;
    board->job = h.job;
    board->area = h.area;
    const size_t at = sizeof h + h.filled;
    return take_inputs(m, h.area, h.n_inputs, data + at, len - at, err);
}

/* ---- rows from rank to rank ---- */

sl_status gang_rows_take(const gang_job *own, const sl_model_spec *spec, const gang_inbound *rows,
                         sl_err *err) {
    const sl_rowset *r = &own->run.call.rows;
    const size_t bytes = r->n * spec->d_model * sizeof(float);
    if (rows->number != own->run.before || rows->len != bytes)
        return sl_fail(err, SL_ERR_PROTOCOL, "%zu bytes of job %llu's rows, %zu of %llu's are due",
                       rows->len, (unsigned long long)rows->number, bytes,
                       (unsigned long long)own->run.before);
    memcpy(sl_mem_ptr(r->x), rows->data, bytes);
    return SL_OK;
}

/* ---- answers ---- */

static void add_result(void *ctx, float *at, size_t n) {
    filling *f = ctx;
    f->ok = f->ok && put(f->p, at, n * sizeof *at);
}

sl_status gang_answer_fill(gang_parcel *p, const gang_board *board, const gang_share *who,
                           const gang_job *own, const sl_model_spec *spec, gang_marks *marks,
                           sl_err *err) {
    const gang_report *report = &board->report[who->is.index];
    filling f = {.p = p};
    p->len = 0;
    f.ok = put(p, report, sizeof *report);
    sl_status st =
        report->ok && spec ? gang_each_result(own, spec, who, marks, add_result, &f, err) : SL_OK;
    if (st == SL_OK && !f.ok) st = sl_fail(err, SL_ERR_NOMEM, "an answer of %zu bytes", p->len);
    return st;
}

typedef struct taking {
    const uint8_t *data;
    size_t len;
    bool ok;
} taking;

static void take_result(void *ctx, float *at, size_t n) {
    taking *t = ctx;
    const size_t bytes = n * sizeof *at;
    t->ok = t->ok && bytes <= t->len;
    if (!t->ok) return;
    memcpy(at, t->data, bytes);
    t->data += bytes;
    t->len -= bytes;
}

/* Its columns and heads are of the model, and what they were when it opened. */
static bool is_sound(const gang_report *r, const gang_report *before, const gang_job *own,
                     const sl_model_spec *s) {
    const bool bools = gang_is_bool(&r->ok) && gang_is_bool(&r->idle.heads) &&
                       gang_is_bool(&r->idle.dense) && gang_is_bool(&r->idle.expert) &&
                       gang_is_bool(&r->idle.shared);
    if (!bools || (!r->ok && r->err.code == SL_OK) || !memchr(r->err.msg, 0, sizeof r->err.msg) ||
        (uint32_t)r->left > SL_HOSTING_WAITS)
        return false;
    if (own->kind == GANG_OPEN && !s) return true; /* rank 0 did not open: nobody goes on */
    if (own->kind != GANG_OPEN)
        return r->out.first == before->out.first && r->out.n == before->out.n &&
               r->kv_heads.first == before->kv_heads.first && r->kv_heads.n == before->kv_heads.n &&
               r->blocks.first == before->blocks.first && r->blocks.n == before->blocks.n;
    return r->out.first <= s->d_model && r->out.n <= s->d_model - r->out.first &&
           r->kv_heads.first <= s->n_kv_heads &&
           r->kv_heads.n <= s->n_kv_heads - r->kv_heads.first && r->blocks.first <= s->n_layers &&
           r->blocks.n <= s->n_layers - r->blocks.first;
}

static bool are_experts(const uint32_t *id, size_t n, const sl_model_spec *s) {
    for (size_t i = 0; i < n; i++)
        if (id[i] >= s->n_experts) return false;
    return true;
}

/* What routers elsewhere chose is looked up here; together with them rank 0 has chosen itself. */
static bool chose_experts(const gang_job *own, const sl_model_spec *s) {
    const sl_rowset *r = &own->run.call.rows;
    const size_t n = (size_t)r->n * s->top_k;
    if (own->run.together) return true;
    return are_experts(own->run.chosen, n * gang_run_inside(own), s) &&
           (!gang_run_chooses(own) || are_experts(r->expert, n, s));
}

sl_status gang_answer_take(gang_board *board, sl_rank rank, const gang_job *own,
                           const sl_model_spec *spec, const uint8_t *data, size_t len,
                           gang_marks *marks, sl_err *err) {
    gang_report *report = &board->report[rank.index], came;
    if (len < sizeof came) return sl_fail(err, SL_ERR_PROTOCOL, "an answer of %zu bytes", len);
    memcpy(&came, data, sizeof came);
    if (!is_sound(&came, report, own, spec))
        return sl_fail(err, SL_ERR_PROTOCOL, "an answer that is none");
    *report = came;
    const gang_share who = {rank, came.out, came.kv_heads, came.blocks};
    taking t = {data + sizeof came, len - sizeof came, true};
    sl_status st = SL_OK;
    if (came.ok && spec) st = gang_each_result(own, spec, &who, marks, take_result, &t, err);
    if (st == SL_OK && (!t.ok || t.len))
        st = sl_fail(err, SL_ERR_PROTOCOL, "results of another length than the job's");
    if (st == SL_OK && came.ok && spec && own->kind == GANG_RUN && !chose_experts(own, spec))
        st = sl_fail(err, SL_ERR_PROTOCOL, "a choice of experts that there are not");
    return st;
}
