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

bool sl_copies_have(const sl_copies *c, const void *data) {
    uintptr_t at = (uintptr_t)data;
    for (size_t i = 0; i < c->n; i++)
        if (at - (uintptr_t)c->copy[i].at < c->copy[i].bytes) return true;
    return false;
}

/* dst[i][j] = src[j][first + i * step] of rows of `width` values; squares of 64 stay in a cache. */
static void transpose(const uint8_t *src, uint64_t first, uint32_t step, uint64_t width,
                      size_t size, const sl_mat *mat, uint8_t *dst) {
    for (size_t i0 = 0; i0 < mat->n; i0 += 64)
        for (size_t j0 = 0; j0 < mat->k; j0 += 64)
            for (size_t i = i0; i < SL_MIN(i0 + 64, mat->n); i++)
                for (size_t j = j0; j < SL_MIN(j0 + 64, mat->k); j++)
                    memcpy(dst + (i * mat->k + j) * size,
                           src + (j * width + first + i * step) * size, size);
}

sl_status sl_store_place(sl_model *m, const sl_arch_store *s, uint32_t expert, sl_span bytes,
                         sl_mat *mat, sl_err *err) {
    bool vector = mat->n == 1 && !s->transposed; /* a bias: its values are the rows */
    uint64_t n = vector ? mat->k : mat->n, first = sum_of(&m->stored, s->before) + s->phase;
    uint64_t rows = rows_of(&m->stored, s, n);
    size_t line =
        vector ? sl_dtype_row_bytes(mat->dtype, 1) : sl_dtype_row_bytes(mat->dtype, mat->k);
    size_t one =
        s->transposed ? (size_t)rows * mat->k * sl_dtype_bytes(mat->dtype) : (size_t)rows * line;
    const uint8_t *at = bytes.data + (s->stack == SL_STACK_NONE ? 0 : expert * one);
    SL_ASSERT((s->stack == SL_STACK_NONE ? 1 : expert + 1u) * one <= bytes.len);
    mat->data = at + first * line;
    if (!s->transposed && step_of(s) == 1) return SL_OK;
    uint8_t *copy = sl_model_own(m, (size_t)n * line);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "%s: copies of weights", m->folder);
    if (s->transposed)
        transpose(at, first, step_of(s), rows, sl_dtype_bytes(mat->dtype), mat, copy);
    else
        for (uint64_t i = 0; i < n; i++)
            memcpy(copy + i * line, at + (first + i * step_of(s)) * line, line);
    mat->data = copy;
    if (s->phase + 1u == step_of(s)) sl_map_drop((sl_span){at, one});
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
