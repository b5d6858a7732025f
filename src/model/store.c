/* Matrices that share a tensor with others, or lie in it by columns. */
#include "format/map.h"
#include "model/model_int.h"

#include <string.h>

static uint64_t sum_of(const sl_model_spec *m, const sl_arch_dim dim[2]) {
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++)
        if (dim[i] != SL_DIM_NONE) sum += sl_arch_dim_value(m, dim[i]);
    return sum;
}

static uint32_t step_of(const sl_arch_store *s) {
    return s->step ? s->step : 1;
}

bool sl_store_scatters(const sl_arch_store *s) {
    return s && (s->transposed || step_of(s) > 1);
}

/* Rows of one expert's part of the tensor, those of other roles included. */
static uint64_t rows_of(const sl_model_spec *m, const sl_arch_store *s, uint64_t n) {
    return sum_of(m, s->before) + n * step_of(s) + sum_of(m, s->after);
}

uint32_t sl_store_shape(const sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                        uint64_t want[3]) {
    uint64_t rows = rows_of(&m->stored, s, sl_arch_dim_value(&m->stored, t->n));
    uint64_t k = sl_arch_dim_value(&m->stored, t->k);
    uint32_t n = 0, flat = s->stack == SL_STACK_ROWS ? m->stored.n_experts : 1;
    if (s->stack == SL_STACK_EXPERTS) want[n++] = m->stored.n_experts;
    if (s->stack == SL_STACK_HEADS) {
        want[n++] = m->stored.n_heads;
        rows /= m->stored.n_heads;
    }
    if (s->transposed)
        k *= flat;
    else
        rows *= flat;
    if (t->k == SL_DIM_NONE) {
        want[n++] = rows;
        return n;
    }
    if (s->stack == SL_STACK_CHANNELS) {
        want[n++] = rows;
        want[n++] = 1;
        want[n++] = k;
        return n;
    }
    want[n++] = s->transposed ? k : rows;
    want[n++] = s->transposed ? rows : k;
    return n;
}

void *sl_model_own(sl_model *m, size_t bytes) {
    sl_copies *c = &m->copies;
    if (c->n == c->cap) {
        size_t cap = SL_MAX(2 * c->cap, (size_t)64);
        sl_copy *copy = sl_grow(c->copy, c->cap, cap, sizeof *copy);
        if (!copy) return NULL;
        c->copy = copy;
        c->cap = cap;
    }
    void *p = sl_alloc(bytes, 1);
    if (p) c->copy[c->n++] = (sl_copy){p, bytes, c->expert};
    return p;
}

void sl_copies_free(sl_copies *c) {
    for (size_t i = 0; i < c->n; i++) sl_free(c->copy[i].at);
    sl_free(c->copy);
    *c = (sl_copies){0};
}

void sl_copies_drop(sl_copies *c, size_t expert) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (c->copy[i].expert == expert)
            sl_free(c->copy[i].at);
        else
            c->copy[n++] = c->copy[i];
    }
    c->n = n;
}

uint64_t sl_model_copied(const sl_model *m) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < m->copies.n; i++) bytes += m->copies.copy[i].bytes;
    return bytes;
}

bool sl_copies_have(const sl_copies *c, const void *data) {
    uintptr_t at = (uintptr_t)data;
    for (size_t i = 0; i < c->n; i++)
        if (at - (uintptr_t)c->copy[i].at < c->copy[i].bytes) return true;
    return false;
}

/* ---- where a matrix lies ---- */

sl_lie sl_store_lie(const sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                    uint32_t expert, const sl_mat *mat) {
    const bool bias = t->k == SL_DIM_NONE; /* its values are the rows */
    const size_t k = bias ? 1 : mat->k, n = bias ? mat->k : mat->n;
    if (!s) return (sl_lie){sl_ckpt_gguf(m->ckpt) ? expert * n * k : 0, mat->k, 1};
    const size_t rows = (size_t)rows_of(&m->stored, s, n), step = step_of(s);
    const size_t others = s->stack == SL_STACK_NONE ? 0 : expert * rows * k;
    const size_t before = (size_t)sum_of(&m->stored, s->before) + s->phase;
    if (s->transposed) return (sl_lie){others + before, step, rows};
    return (sl_lie){others + before * k, step * k, bias ? step : 1};
}

/* dst[i][j] = src[i * row + j * value], n rows of k values; squares of 64 stay in a cache. */
static void gather(const uint8_t *src, const sl_lie *at, size_t size, uint32_t n, uint32_t k,
                   uint8_t *dst) {
    for (size_t i0 = 0; i0 < n; i0 += 64)
        for (size_t j0 = 0; j0 < k; j0 += 64)
            for (size_t i = i0; i < SL_MIN(i0 + 64, n); i++)
                for (size_t j = j0; j < SL_MIN(j0 + 64, k); j++)
                    memcpy(dst + (i * k + j) * size, src + (i * at->row + j * at->value) * size,
                           size);
}

/* Once the last matrix that shares an expert's values there has been copied. */
static void let_go(const sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                   uint32_t expert, const sl_mat *mat, const uint8_t *bytes) {
    const bool bias = t->k == SL_DIM_NONE;
    const size_t one = (size_t)rows_of(&m->stored, s, bias ? mat->k : mat->n) *
                       (bias ? 1 : mat->k) * sl_dtype_bytes(mat->dtype);
    if (s->phase + 1u < step_of(s)) return;
    sl_map_drop((sl_span){bytes + (s->stack == SL_STACK_NONE ? 0 : expert * one), one});
}

sl_status sl_store_gather(sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                          uint32_t expert, sl_span bytes, sl_mat *mat, sl_err *err) {
    const sl_part p = sl_rank_part(m, t, mat);
    const sl_lie at = sl_store_lie(m, s, t, expert, mat);
    const size_t size = sl_dtype_bytes(mat->dtype);
    const size_t first = at.first + p.rows.first * at.row + p.columns.first * at.value;
    uint8_t *copy = sl_model_own(m, (size_t)p.rows.n * p.columns.n * size);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "%s: copies of weights", m->folder);
    SL_ASSERT(sl_dtype_is_plain(mat->dtype));
    SL_ASSERT((at.first + (mat->n - 1) * at.row + (mat->k - 1) * at.value + 1) * size <= bytes.len);
    gather(bytes.data + first * size, &at, size, p.rows.n, p.columns.n, copy);
    let_go(m, s, t, expert, mat, bytes.data);
    sl_rank_keep(m, t, &p, copy, mat);
    return SL_OK;
}

sl_status sl_model_missing(const sl_model *m, const char *name, sl_err *err) {
    const sl_checkpoint *c = m->ckpt;
    if (sl_ckpt_files(c) == 1)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is missing", sl_ckpt_path(c, 0),
                       name);
    return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is missing in all %u weight files",
                   m->folder, name, sl_ckpt_files(c));
}
