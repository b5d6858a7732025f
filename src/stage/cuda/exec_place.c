/* Queries, keys and values to where attention reads them, on the GPU in one launch. */
#include "stage/cuda/exec_rows.h"
#include "stage/cuda/graph.h"

#include "stage/cuda/kernels/args_rows.h"

/* The halves of what is rotated lie in the same threads: whole steps of 16 lanes. */
static bool can(const sl_qkv_place *p) {
    const sl_model_spec *m = p->m;
    const bool rotates = !m->unrotated[p->layer];
    for (uint32_t i = 0; i < 2; i++)
        if (p->norm[i] && p->norm[i]->k != m->head_dim) return false;
    return m->head_dim <= SL_CUDA_PLACE_DIM && (!rotates || m->rope_dim % (2 * SL_DOT_LANES) == 0);
}

static void take_mat(const sl_mat *m, const void **data, uint32_t *type) {
    if (!m) return;
    SL_ASSERT(sl_dtype_is_plain(m->dtype));
    *data = m->data;
    *type = (uint32_t)m->dtype;
}

/* Where rows go and which positions they have; in a launch that is recorded they come with the
 * step. */
static void take_lists(sl_cuda *c, const sl_qkv_place *p, sl_k_place_args *a) {
    const sl_cuda_step *s = sl_cuda_step_with(c, p->pos, p->n_rows);
    const void *list;
    if (s) {
        a->at = s->place_at;
        a->pos = s->pos_at;
        return;
    }
    uint64_t *at = sl_cuda_list_room(c, p->n_rows * sizeof *at, &list);
    for (uint32_t r = 0; r < p->n_rows; r++)
        at[r] = sl_kv_row_offset(p->m, &p->kv, p->pages[r], p->pos[r]);
    a->at = list;
    if (a->freq) a->pos = sl_cuda_list(c, p->pos, p->n_rows * sizeof *p->pos);
}

bool sl_cuda_place_qkv(sl_cuda *c, const sl_qkv_place *p) {
    const sl_model_spec *m = p->m;
    const bool rotates = !m->unrotated[p->layer];
    const size_t keys = sl_kv_tile_offset(m, p->layer, 0, 0);
    const uint32_t vectors = m->n_heads + 2 * m->n_kv_heads;
    const uint32_t each = SL_CUDA_PLACE_THREADS / SL_DOT_LANES;
    if (!can(p)) return false;
    sl_k_place_args a = {.q = p->q,
                         .k = p->k,
                         .v = p->v,
                         .freq = rotates ? p->freq : NULL,
                         .kv = p->kv.base + keys,
                         .tile = sl_kv_tile_bytes(m),
                         .values = sl_kv_tile_offset(m, p->layer, 1, 0) - keys,
                         .type = (uint32_t)m->kv_type,
                         .heads = m->n_heads,
                         .kv_heads = m->n_kv_heads,
                         .dim = m->head_dim,
                         .half = m->rope_dim / 2,
                         .centred = p->centred,
                         .pairs = m->rope_pairs && rotates,
                         .unit = m->qk_unit,
                         .clips = m->clip_qkv > 0,
                         .eps = m->rms_eps,
                         .clip = m->clip_qkv};
    for (uint32_t i = 0; i < 3; i++) take_mat(p->bias[i], &a.bias[i], &a.bias_type[i]);
    for (uint32_t i = 0; i < 2; i++) take_mat(p->norm[i], &a.norm[i], &a.norm_type[i]);
    take_lists(c, p, &a);
    if (!rotates && p->grow) a.grow = sl_cuda_list(c, p->grow, p->n_rows * sizeof *p->grow);
    sl_cuda_launch(c, SL_CUDA_sl_k_place, p->n_rows, (vectors + each - 1) / each, 1,
                   SL_CUDA_PLACE_THREADS, 0, &a);
    sl_cuda_fence(c);
    return true;
}
