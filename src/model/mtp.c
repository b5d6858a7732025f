/* The block behind the last, which predicts a further token (multi-token prediction, DeepSeek-V3,
 * arXiv:2412.19437 sec. 2.2, eq. 21 to 23): of position i, with h_i what the last block and the
 * final norm made of it and t_(i+1) the token behind it,
 *
 *   x_i = W_in [norm_e(E t_(i+1)); norm_h(h_i)]      y_i = Block(x)_i      logits =
 * head(norm_s(y_i))
 *
 * are those of token i+2. The block is a routed one of the model's own kind, its attention goes
 * over the x of all positions up to i. For a token further on it is used again, with y_i and what
 * was guessed in the place of h_i and t_(i+1); Qwen3-Next's goes on from norm_s(y_i). Embedding and
 * head are the model's: files may store them again beside the block, with the same values. */
#include "model/block_int.h"

sl_status sl_mtp_take(sl_model *m, sl_err *err) {
    const uint32_t block = sl_mtp_block(&m->stored);
    if (!sl_arch_tensor_of(m->arch, SL_ROLE_MTP_IN) || m->stored.n_mtp == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: %s has no block that predicts a further token "
                       "(num_nextn_predict_layers)",
                       m->folder, m->stored.arch);
    if (block >= SL_MAX_LAYERS)
        return sl_fail(err, SL_ERR_LIMIT, "%s: block %u, limit %u", m->folder, block,
                       SL_MAX_LAYERS - 1);
    m->mtp = true;
    sl_model_spec *const specs[] = {&m->spec, &m->stored};
    for (size_t i = 0; i < SL_LEN(specs); i++) {
        specs[i]->ffn[block] = SL_FFN_MOE;
        specs[i]->sight[block] = SL_SIGHT_ALL;
        specs[i]->moe_index[block] = (uint16_t)specs[i]->n_moe;
        specs[i]->moe_layer[specs[i]->n_moe] = (uint16_t)block;
    }
    return SL_OK;
}

size_t sl_mtp_scratch_bytes(const sl_model_spec *s, uint32_t max_rows) {
    return sl_scratch_floats(max_rows, s->d_model) + sl_scratch_floats(max_rows, 2 * s->d_model) +
           sl_scratch_act(max_rows, 2 * (size_t)s->d_model);
}

void sl_mtp_enter(const sl_model *m, const sl_exec *ex, const uint32_t *id, const float *x,
                  const uint32_t *row, uint32_t n, bool again, float *y, sl_arena *scratch) {
    const sl_mat *w = m->block[sl_mtp_block(&m->spec)].mat;
    const sl_mat in = sl_rank_gives(m, &w[SL_ROLE_MTP_IN]);
    const uint32_t d = m->spec.d_model;
    const size_t level = scratch->used;
    SL_ASSERT(m->mtp && w[SL_ROLE_MTP_IN].data != NULL);
    if (n == 0) return;
    float *part = sl_take_rows(scratch, n, d), *both = sl_take_rows(scratch, n, 2 * (size_t)d);
    sl_model_embed(m, ex, id, n, part);
    sl_norm(m, ex, &w[SL_ROLE_MTP_TOKEN_NORM], part, n, part);
    sl_copy_rows(ex, part, d, n, d, both, 2 * d);
    sl_pick_rows(ex, x, row, NULL, n, d, part);
    const bool normed = !again || m->arch->mtp_normed;
    const sl_mat *norm = again ? &w[SL_ROLE_MTP_NORM] : &m->whole.mat[SL_ROLE_FINAL_NORM];
    if (normed) sl_norm(m, ex, norm, part, n, part);
    sl_norm(m, ex, &w[SL_ROLE_MTP_STATE_NORM], part, n, part);
    sl_copy_rows(ex, part, d, n, d, both + d, 2 * d);
    sl_project_to(ex, &in, both, n, y + sl_model_columns(m).first, d, scratch);
    sl_model_wrote(m, y, n);
    scratch->used = level;
}

void sl_mtp_head_rows(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                      uint32_t n, float *h) {
    if (n == 0) return;
    sl_pick_rows(ex, x, row, NULL, n, m->spec.d_model, h);
    sl_norm(m, ex, &m->block[sl_mtp_block(&m->spec)].mat[SL_ROLE_MTP_NORM], h, n, h);
}
