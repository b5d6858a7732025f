/* Stages that move, round and add rows where memory is the host's: the one order of additions. */
#include "stage/stage_int.h"

#include "base/mem.h"

#include <string.h>

sl_status sl_host_take(sl_device *d, size_t bytes, sl_mem *out, sl_err *err) {
    (void)d;
    void *p = sl_alloc(bytes, 1);
    if (!p) return sl_fail(err, SL_ERR_NOMEM, "%zu bytes of rows", bytes);
    *out = sl_mem_host(p, bytes);
    return SL_OK;
}

void sl_host_give(sl_device *d, sl_mem m) {
    (void)d;
    sl_free(sl_mem_ptr(m));
}

/* A row to the wire and from it, by kernels where they have the format: fp8's loops in wire_rows.c
 * are vector code as they stand. The bits are those of wire_rows.c. */
static void round_row(const sl_exec *ex, sl_wire_format wire, const float *row, uint32_t d,
                      uint8_t *to) {
    if (wire == SL_WIRE_BF16)
        sl_to_bf16(ex, row, d, (uint16_t *)(void *)to);
    else
        sl_wire_pack(wire, row, 1, d, to);
}

static void widen_row(const sl_exec *ex, sl_wire_format wire, const uint8_t *from, uint32_t d,
                      float *row) {
    if (wire == SL_WIRE_BF16)
        sl_widen(ex, from, SL_BF16, d, row);
    else
        sl_wire_unpack(wire, from, 1, d, row);
}

static void pack(const sl_exec *ex, const sl_stage_pack *p, uint32_t d) {
    const float *rows = sl_mem_ptr(p->rows);
    for (uint32_t i = 0; i < p->n; i++) {
        if (!p->at[i]) continue;
        round_row(ex, p->wire, rows + (size_t)(p->row ? p->row[i] : i) * d, d, p->at[i]);
    }
}

static void unpack(const sl_exec *ex, const sl_stage_pack *p, uint32_t d) {
    float *rows = sl_mem_ptr(p->rows);
    for (uint32_t i = 0; i < p->n; i++)
        widen_row(ex, p->wire, p->at[i], d, rows + (size_t)(p->row ? p->row[i] : i) * d);
}

static void move(const sl_stage_move *m, size_t d) {
    const float *from = sl_mem_ptr(m->from);
    float *to = sl_mem_ptr(m->to);
    for (uint32_t i = 0; i < m->n; i++) {
        size_t a = m->from_row ? m->from_row[i] : i, b = m->to_row ? m->to_row[i] : i;
        memcpy(to + b * d, from + a * d, d * sizeof *to);
    }
}

/* sum = the pieces of a row that there are, in order. */
static void add_pieces(const sl_exec *ex, uint32_t d, uint32_t k, sl_wire_format wire,
                       const uint8_t *const *piece, float *sum, float *wide) {
    bool any = false;
    for (uint32_t j = 0; j < k; j++) {
        if (!piece[j]) continue;
        widen_row(ex, wire, piece[j], d, any ? wide : sum);
        if (any) sl_vec_add(ex, sum, wide, d);
        any = true;
    }
    if (!any) memset(sum, 0, d * sizeof *sum);
}

static void merge(const sl_exec *ex, const sl_model_spec *spec, const sl_stage_call *c,
                  float *sum) {
    const sl_stage_merge *m = &c->merge;
    size_t d = spec->d_model, k = spec->top_k;
    float *to = sl_mem_ptr(c->rows.x);
    const float *x = sl_mem_ptr(m->x), *shared = sl_mem_ptr(m->shared);
    for (size_t i = 0; i < c->rows.n; i++) {
        size_t r = m->from ? m->from[i] : i;
        if (to + i * d != x + r * d) memcpy(to + i * d, x + r * d, d * sizeof *to);
        add_pieces(ex, spec->d_model, spec->top_k, m->wire, m->piece + i * k, sum, sum + d);
        if (shared) sl_vec_add(ex, sum, shared + r * d, d);
        sl_vec_add(ex, to + i * d, sum, d);
    }
}

bool sl_stage_run_rows(const sl_exec *ex, const sl_model_spec *m, const sl_stage_call *c,
                       float *sum) {
    if (c->op == SL_OP_PACK)
        pack(ex, &c->pack, m->d_model);
    else if (c->op == SL_OP_UNPACK)
        unpack(ex, &c->pack, m->d_model);
    else if (c->op == SL_OP_MOVE)
        move(&c->move, m->d_model);
    else if (c->op == SL_OP_MERGE)
        merge(ex, m, c, sum);
    else
        return false;
    return true;
}
