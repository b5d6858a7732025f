/* The copy of a GGUF file whose weights lie in strips. */
#include "format/gguf_strips.h"

#include "base/mem.h"
#include "format/gguf_write.h"

#include <string.h>

#define LINE        64u
#define CHUNK_BYTES ((size_t)4 << 20) /* that are turned at once, if a strip is not more */

typedef struct copying {
    const sl_gguf *g;
    sl_gguf_out *w;
    const sl_gguf_strips_options *o;
    sl_gguf_strips_report *report;
    uint64_t done;
    sl_err *err;
} copying;

/* Tensors of which somebody takes rows, or columns (docs/formats.md). */
static bool taken_by_rows(const char *name) {
    static const char *const parts[] = {"token_embd.", ".attn_k_b.", ".attn_v_b.", ".attn_kv_b."};
    for (size_t i = 0; i < SL_LEN(parts); i++)
        if (strstr(name, parts[i])) return true;
    return false;
}

static bool goes_to_strips(const sl_gguf_tensor *t) {
    return t->usable && t->repack == SL_REPACK_NONE && t->n_dims > 1 && !taken_by_rows(t->name) &&
           sl_strips_fit(t->dtype, t->dim[t->n_dims - 2], t->dim[t->n_dims - 1]);
}

/* Strips first .. of a chunk of rows. */
typedef struct chunk {
    sl_dtype dtype;
    uint32_t k;
    const uint8_t *rows;
    uint8_t *strips;
} chunk;

static void turn(void *ctx, size_t begin, size_t end) {
    const chunk *c = ctx;
    const size_t bytes = SL_STRIP_ROWS * sl_dtype_row_bytes(c->dtype, c->k);
    for (size_t i = begin; i < end; i++)
        sl_strips_put(c->dtype, c->rows + i * bytes, c->k, c->strips + i * bytes);
}

static sl_status put_data(copying *c, const uint8_t *data, size_t n) {
    sl_status st = sl_gguf_out_data(c->w, data, n, c->err);
    c->done += n;
    if (c->o->progress) c->o->progress(c->o->ctx, c->done, c->report->bytes);
    return st;
}

static sl_status put_strips(copying *c, const sl_gguf_tensor *t, const uint8_t *data) {
    chunk k = {.dtype = t->dtype, .k = (uint32_t)t->dim[t->n_dims - 1], .rows = data};
    const size_t strip = SL_STRIP_ROWS * sl_dtype_row_bytes(t->dtype, k.k);
    const size_t all = (size_t)(t->end - t->begin) / strip, most = SL_MAX(1, CHUNK_BYTES / strip);
    sl_status st = SL_OK;
    k.strips = sl_alloc(SL_MIN(all, most), strip);
    if (!k.strips) return sl_fail(c->err, SL_ERR_NOMEM, "%zu bytes of strips", most * strip);
    for (size_t i = 0, n; st == SL_OK && i < all; i += n, k.rows += n * strip) {
        n = SL_MIN(all - i, most);
        if (c->o->pool)
            sl_pool_run(c->o->pool, n, 1, turn, &k);
        else
            turn(&k, 0, n);
        st = put_data(c, k.strips, n * strip);
    }
    sl_free(k.strips);
    return st;
}

static sl_status put_as_it_is(copying *c, const uint8_t *data, size_t bytes) {
    sl_status st = SL_OK;
    for (size_t at = 0, n; st == SL_OK && at < bytes; at += n) {
        n = SL_MIN(bytes - at, CHUNK_BYTES);
        st = put_data(c, data + at, n);
    }
    return st;
}

/* Keys that say how the file is cut and aligned are the copy's own. */
static bool is_kept(const sl_gguf_kv *kv) {
    static const char split[] = "split.", align[] = "general.alignment";
    const size_t n = sizeof split - 1;
    return !(kv->key.len >= n && memcmp(kv->key.data, split, n) == 0) &&
           !(kv->key.len == sizeof align - 1 && memcmp(kv->key.data, align, kv->key.len) == 0);
}

static sl_status announce(copying *c) {
    for (size_t i = 0; i < sl_gguf_keys(c->g); i++)
        if (is_kept(sl_gguf_key_at(c->g, i))) sl_gguf_out_kv(c->w, sl_gguf_key_at(c->g, i));
    sl_gguf_out_align(c->w, LINE);
    for (size_t i = 0; i < sl_gguf_tensors(c->g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(c->g, i);
        const bool strips = goes_to_strips(t);
        if (t->strips)
            return sl_fail(c->err, SL_ERR_UNSUPPORTED, "%s: weights lie in strips already",
                           sl_gguf_path(c->g));
        sl_gguf_out_copy(c->w, t, t->number + (strips ? SL_GGUF_STRIPS : 0));
        c->report->bytes += t->end - t->begin;
        c->report->in_strips += strips ? t->end - t->begin : 0;
        c->report->n_in_strips += strips;
        c->report->tensors++;
    }
    if (c->report->n_in_strips > 0) return SL_OK;
    return sl_fail(c->err, SL_ERR_ARG,
                   "%s: has no weights of Q8_0, Q4_0, Q4_K, Q5_K or Q6_K that strips (--repack) "
                   "are for",
                   sl_gguf_path(c->g));
}

static sl_status put_tensors(copying *c) {
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < sl_gguf_tensors(c->g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(c->g, i);
        const uint8_t *data = sl_gguf_bytes(c->g, t->part).data + t->begin;
        st = goes_to_strips(t) ? put_strips(c, t, data)
                               : put_as_it_is(c, data, (size_t)(t->end - t->begin));
    }
    return st;
}

sl_status sl_gguf_to_strips(const char *path, const char *out, const sl_gguf_strips_options *o,
                            sl_gguf_strips_report *report, sl_err *err) {
    sl_gguf *g = NULL;
    sl_gguf_strips_report own = {0};
    copying c = {.o = o, .report = report ? report : &own, .err = err};
    *c.report = own;
    sl_status st = sl_gguf_open(path, &g, err);
    c.g = g;
    if (st == SL_OK) st = sl_gguf_out_open(out, o->replace, &c.w, err);
    if (st == SL_OK) st = announce(&c);
    if (st == SL_OK) st = sl_gguf_out_begin(c.w, err);
    if (st == SL_OK) st = put_tensors(&c);
    if (st == SL_OK) st = sl_gguf_out_finish(c.w, err);
    sl_gguf_out_free(c.w);
    sl_gguf_close(g);
    return st;
}
