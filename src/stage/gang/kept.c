/* Rows that ranks with memory of their own have alike. */
#include "stage/gang/kept.h"

#include "base/mem.h"

void gang_kept_free(gang_kept *k) {
    for (uint32_t i = 0; i < GANG_MAX_BLOCKS; i++) gang_kept_forget(k, i);
}

void gang_kept_forget(gang_kept *k, uint32_t block) {
    sl_free(k->bits[block]);
    k->bits[block] = NULL;
}

/* ---- rows ---- */

bool gang_kept_has(const gang_kept *k, uint32_t block, uint64_t at, size_t row) {
    const uint64_t *bits = k->bits[block];
    const uint64_t i = at / row;
    return bits && at % row == 0 && bits[i / 64] >> i % 64 & 1;
}

void gang_kept_note(gang_kept *k, const gang_memory *m, uint32_t block, uint64_t at, size_t bytes,
                    size_t row, bool kept) {
    const uint64_t rows = m->block[block].bytes / row, end = at + bytes;
    if (!k->bits[block] && kept) k->bits[block] = sl_alloc(rows / 64 + 1, sizeof **k->bits);
    uint64_t *bits = k->bits[block];
    if (!bits || bytes == 0) return;
    /* Part of a row is no row that could be kept, and ends one that was. */
    const uint64_t first = kept ? (at + row - 1) / row : at / row;
    const uint64_t last = SL_MIN(kept ? end / row : (end + row - 1) / row, rows);
    for (uint64_t i = first; i < last; i++) {
        const uint64_t bit = UINT64_C(1) << i % 64;
        bits[i / 64] = kept ? bits[i / 64] | bit : bits[i / 64] & ~bit;
    }
}

/* ---- calls ---- */

typedef struct noting {
    gang_kept *k;
    const gang_memory *m;
    size_t row;
} noting;

static void note(const noting *n, sl_mem rows, size_t first, size_t count, bool kept) {
    uint32_t block;
    uint64_t at;
    if (rows.bytes == 0 || count == 0) return;
    if (gang_memory_find(n->m, sl_mem_ptr(rows), &block, &at))
        gang_kept_note(n->k, n->m, block, at + first * n->row, count * n->row, n->row, kept);
}

/* Those named, or the first n. */
static void note_listed(const noting *n, sl_mem rows, const uint32_t *row, uint32_t count,
                        bool kept) {
    for (uint32_t i = 0; row && i < count; i++) note(n, rows, row[i], 1, kept);
    if (!row) note(n, rows, 0, count, kept);
}

/* What the call writes is what its ranks, or rank 0, have made: nobody else has it, but where it
 * ends with all of them having it. */
static void note_written(const noting *n, const sl_stage_call *c) {
    switch (c->op) {
    case SL_OP_EMBED:
    case SL_OP_ATTEND:
    case SL_OP_DENSE:
    case SL_OP_MERGE:
        note(n, c->rows.x, 0, c->rows.n, false);
        return;
    case SL_OP_ROUTE:
    case SL_OP_SHARED:
        note(n, c->rows.h, 0, c->rows.n, false);
        return;
    case SL_OP_INSIDE:
        note(n, c->rows.x, 0, c->rows.n, false);
        note(n, c->rows.h, 0, c->rows.n, false);
        return;
    case SL_OP_UNPACK:
        note_listed(n, c->pack.rows, c->pack.row, c->pack.n, false);
        return;
    case SL_OP_MOVE:
        note_listed(n, c->move.to, c->move.to_row, c->move.n, false);
        return;
    case SL_OP_EXPERTS:
        for (uint32_t i = 0; i < c->experts.n_parts; i++)
            note(n, c->experts.part[i].rows, 0, c->experts.part[i].n, false);
        return;
    case SL_OP_HEAD:
        note(n, c->head.h, 0, c->head.n, false);
        return;
    case SL_OP_MTP: /* each tells the others its columns */
        note(n, c->mtp.out, 0, c->rows.n, false);
        note_listed(n, c->mtp.out, c->mtp.last, c->mtp.n_last, true);
        note(n, c->mtp.h, 0, c->mtp.n_last, true);
        return;
    case SL_OP_PACK:
        return;
    }
}

/* All have gathered the rows, or tell each other their columns. */
static void note_spread(const noting *n, const gang_job *j) {
    if (j->spread.op == SL_OP_PACK) return;
    for (uint32_t i = 0; i < j->spread.n; i++)
        note(n, j->spread.rows, j->spread.row ? j->spread.row[i] : i, 1, true);
}

/* A router that all ranks are makes the same rows everywhere. */
static void note_step(const noting *n, const gang_job *j, const gang_step *s) {
    sl_stage_call c = j->run.call;
    c.op = s->op;
    note_written(n, &c);
    if (s->shares) note(n, c.rows.x, 0, c.rows.n, true);
    if (s->op == SL_OP_ROUTE) note(n, c.rows.h, 0, c.rows.n, true);
}

void gang_kept_after(gang_kept *k, const gang_memory *m, const sl_model_spec *spec,
                     const gang_job *j) {
    const noting n = {k, m, spec ? spec->d_model * sizeof(float) : 0};
    if (j->kind == GANG_MAP || j->kind == GANG_UNMAP) gang_kept_forget(k, j->map.id);
    if (j->kind == GANG_CALL) note_written(&n, &j->call);
    if (j->kind == GANG_SPREAD) note_spread(&n, j);
    for (uint32_t i = 0; j->kind == GANG_RUN && i < j->run.n_steps; i++)
        note_step(&n, j, &j->run.step[i]);
}

void gang_kept_alone(gang_kept *k, const gang_memory *m, const sl_model_spec *spec,
                     const sl_stage_call *c) {
    const noting n = {k, m, spec->d_model * sizeof(float)};
    note_written(&n, c);
}
