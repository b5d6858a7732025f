/* Experts in MXFP4 as Hugging Face folders hold them: NAME_blocks u8 [experts][rows][k / 32][16],
 * NAME_scales u8 [experts][rows][k / 32]; a byte of codes holds an even value in its low half and
 * the odd one after it. Kernels read 17 bytes a block, the scale first, the first 16 values in the
 * low halves, so matrices are copied when they are bound, of a rank its part. */
#include "format/map.h"
#include "model/model_int.h"

#include <stdio.h>
#include <string.h>

#define CODES       16u /* bytes of them in a block */
#define BLOCK_BYTES (1 + CODES)

static sl_status check_shape(const sl_model *m, sl_ckpt_tensor t, const uint64_t *want,
                             uint32_t n_dims, sl_err *err) {
    char has_text[128], want_text[96];
    const char *path = sl_ckpt_path(m->ckpt, t.file);
    if (strcmp(t.dtype_name, "U8") != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: tensor \"%s\": dtype %s, expected U8", path,
                       t.name, t.dtype_name);
    if (t.n_dims != n_dims || memcmp(t.dim, want, n_dims * sizeof want[0]) != 0)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tensor \"%s\": shape %s, expected %s by config.json", path, t.name,
                       sl_st_shape_text(t.dim, t.n_dims, has_text, sizeof has_text),
                       sl_st_shape_text(want, n_dims, want_text, sizeof want_text));
    return SL_OK;
}

sl_status sl_mxfp4_find(const sl_model *m, const char *name, size_t out[2], sl_err *err) {
    static const char *const parts[] = {"_blocks", "_scales"};
    for (size_t i = 0; i < SL_LEN(parts); i++) {
        char full[SL_ARCH_NAME_MAX + 16];
        snprintf(full, sizeof full, "%s%s", name, parts[i]);
        if (!sl_ckpt_find(m->ckpt, full, &out[i])) return sl_model_missing(m, full, err);
    }
    return SL_OK;
}

sl_status sl_mxfp4_check(const sl_model *m, const sl_arch_tensor *t, const char *name, sl_mat *out,
                         sl_err *err) {
    size_t at[2];
    const sl_arch_store *s = sl_arch_store_of(m->arch, t->role);
    uint64_t n = sl_arch_dim_value(&m->stored, t->n), k = sl_arch_dim_value(&m->stored, t->k);
    uint64_t want[4] = {m->stored.n_experts, n * SL_MAX(s->step, 1), k / 32, CODES};
    sl_status st = sl_mxfp4_find(m, name, at, err);
    for (uint32_t i = 0; st == SL_OK && i < 2; i++)
        st = check_shape(m, sl_ckpt_at(m->ckpt, at[i]), want, 4 - i, err);
    *out = (sl_mat){.n = (uint32_t)n, .k = (uint32_t)k, .dtype = SL_MXFP4};
    return st;
}

/* Values 2i and 2i + 1 of byte i become values i and i + 16. */
static void repack(const uint8_t *codes, uint8_t scale, uint8_t *out) {
    *out++ = scale;
    for (uint32_t i = 0; i < CODES; i++) {
        uint32_t low = codes[i / 2], high = codes[8 + i / 2], shift = i % 2 * 4;
        out[i] = (uint8_t)((low >> shift & 15) | (high >> shift & 15) << 4);
    }
}

sl_status sl_mxfp4_place(sl_model *m, const sl_arch_tensor *t, const char *name, uint32_t expert,
                         sl_mat *out, sl_err *err) {
    size_t at[2];
    sl_span bytes[2];
    const sl_arch_store *s = sl_arch_store_of(m->arch, t->role);
    sl_status st = sl_mxfp4_check(m, t, name, out, err);
    if (st == SL_OK) st = sl_mxfp4_find(m, name, at, err);
    for (int i = 0; st == SL_OK && i < 2; i++)
        st = sl_ckpt_data(m->ckpt, sl_ckpt_at(m->ckpt, at[i]), &bytes[i], err);
    if (st != SL_OK) return st;
    const sl_part p = sl_rank_part(m, t, out);
    const size_t step = SL_MAX(s->step, 1), blocks = out->k / 32, all = out->n * step * blocks;
    const size_t skip = p.columns.first / 32, kept = p.columns.n / 32;
    const uint8_t *codes = bytes[0].data + expert * all * CODES;
    const uint8_t *scales = bytes[1].data + expert * all;
    uint8_t *copy = sl_model_own(m, p.rows.n * kept * BLOCK_BYTES);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "%s: copies of weights", m->folder);
    sl_rank_keep(m, t, &p, copy, out);
    for (size_t r = p.rows.first; r < p.rows.first + p.rows.n; r++)
        for (size_t b = 0, from = (r * step + s->phase) * blocks + skip; b < kept; b++, from++) {
            repack(codes + from * CODES, scales[from], copy);
            copy += BLOCK_BYTES;
        }
    if (s->phase + 1u == step) sl_map_drop((sl_span){codes, all * CODES});
    return SL_OK;
}
