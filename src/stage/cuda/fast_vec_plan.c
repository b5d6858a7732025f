/* Plans of routed experts of very few rows (fast_vec.cu): each pair by itself, no lists. */
#include "stage/cuda/fast_experts.h"

#include <string.h>

#define TABLE 256u /* most experts whose table is copied to shared memory */

static uint32_t blocks_of(const sl_fast_moe *m, bool ring, uint32_t n) {
    const uint32_t blocks = (ring ? SL_VEC_RING_BLOCKS : SL_VEC_BLOCKS) * m->sms / m->n_rows;
    return SL_MAX(1u, SL_MIN(blocks, n));
}

static bool fits(const sl_fast_moe *m, uint32_t bytes) {
    return bytes <= SL_VEC_SHARED && (!m->most_shared || bytes <= m->most_shared);
}

static void fill(const sl_fast_moe *m, void *mid, sl_vec_moe_args *a) {
    memset(a, 0, sizeof *a);
    a->expert = m->expert;
    a->id = m->id;
    a->row_first = m->row_first;
    a->gate = m->gate;
    a->heard = m->heard;
    a->x = m->x;
    a->mid = mid;
    a->y = m->y;
    a->d_model = m->d_model;
    a->d_ff = m->d_ff;
    a->top_k = m->row_first ? m->n_pairs : m->top_k;
    a->n_experts = m->n_experts;
    a->add = m->add;
    a->limit = m->limit;
    a->fetch = m->few.fetch;
}

static void put(sl_fast_plan *p, sl_cuda_kernel_id kernel, uint32_t grid_x, uint32_t rows,
                uint32_t shared, const sl_vec_moe_args *a) {
    sl_fast_launch *l = &p->launch[p->n++];
    memset(l, 0, sizeof *l);
    l->kernel = kernel;
    l->grid_x = grid_x;
    l->grid_y = rows;
    l->threads = SL_VEC_THREADS;
    l->shared = shared;
    l->args.vec = *a;
}

bool sl_fast_vec_plan(const sl_fast_moe *m, bool ring, void *mid, sl_fast_plan *out) {
    sl_vec_moe_args up, down;
    if (!m->sms || m->n_rows == 0 || m->n_rows > SL_VEC_ROWS) return false;
    fill(m, mid, &up);
    if (up.top_k > SL_VEC_SETS) return false;
    down = up;
    const uint32_t up_blocks = blocks_of(m, ring, m->d_ff),
                   down_blocks = blocks_of(m, ring, m->d_model);
    up.most = (m->d_ff + up_blocks - 1) / up_blocks;
    up.table = m->n_experts <= TABLE;
    down.most = (m->d_model + down_blocks - 1) / down_blocks;
    const uint32_t up_room = sl_vec_room_of(ring, up.top_k * 2 * up.most, 1, m->d_model, 1).end +
                             (up.table ? m->n_experts * (uint32_t)sizeof(sl_fast_expert) : 0);
    const uint32_t down_room =
        sl_vec_room_of(ring, down.top_k * down.most, down.top_k, m->d_ff, 1).end;
    if (!fits(m, up_room) || !fits(m, down_room)) return false;
    if (!out) return true;
    out->n = 0;
    put(out, ring ? SL_CUDA_sl_k_fast_ring_up : SL_CUDA_sl_k_fast_vec_up, up_blocks, m->n_rows,
        up_room, &up);
    put(out, ring ? SL_CUDA_sl_k_fast_ring_down : SL_CUDA_sl_k_fast_vec_down, down_blocks,
        m->n_rows, down_room, &down);
    return true;
}
