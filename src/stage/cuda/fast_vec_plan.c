/* Plans of routed experts of very few rows (fast_vec.cu): each pair by itself, no lists. */
#include "stage/cuda/fast_experts.h"

#include <string.h>

#define BLOCKS      2u           /* of a multiprocessor: as many of the next kernel find room ... */
#define RING_BLOCKS 1u           /* ... or one, where weights lie in shared memory */
#define MOST_SHARED (200u << 10) /* of a block */
#define TABLE       256u         /* most experts whose table is copied to shared memory */

static uint32_t parts_of(uint32_t k) {
    return (k + SL_VEC_PART - 1) / SL_VEC_PART;
}

/* Pointers to `rows` rows of weights of each set, rows of x, sums of items. */
static size_t shared_of(const sl_vec_moe_args *a, uint32_t k, uint32_t rows, bool each) {
    const size_t parts = parts_of(k), pointers = (a->top_k * rows * sizeof(void *) + 15) / 16 * 16;
    const size_t x = (each ? a->top_k : 1) * parts * SL_VEC_PART * sizeof(float);
    return pointers + x + a->top_k * parts * rows * sizeof(float);
}

static uint32_t blocks_of(const sl_fast_moe *m, bool ring, uint32_t n) {
    const uint32_t blocks = (ring ? RING_BLOCKS : BLOCKS) * m->sms / m->n_rows;
    return SL_MAX(1u, SL_MIN(blocks, n));
}

static bool fits(const sl_fast_moe *m, size_t bytes) {
    return bytes <= MOST_SHARED && (!m->most_shared || bytes <= m->most_shared);
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
                size_t shared, const sl_vec_moe_args *a) {
    sl_fast_launch *l = &p->launch[p->n++];
    memset(l, 0, sizeof *l);
    l->kernel = kernel;
    l->grid_x = grid_x;
    l->grid_y = rows;
    l->threads = SL_VEC_THREADS;
    l->shared = (uint32_t)shared;
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
    const size_t table = up.table ? m->n_experts * sizeof(sl_fast_expert) + 16 : 0;
    const size_t own = ring ? SL_VEC_RING : 0;
    const size_t up_room = own + shared_of(&up, m->d_model, 2 * up.most, false) + table;
    const size_t down_room = own + shared_of(&down, m->d_ff, down.most, true);
    if (!fits(m, up_room) || !fits(m, down_room)) return false;
    if (!out) return true;
    out->n = 0;
    put(out, ring ? SL_CUDA_sl_k_fast_ring_up : SL_CUDA_sl_k_fast_vec_up, up_blocks, m->n_rows,
        up_room, &up);
    put(out, ring ? SL_CUDA_sl_k_fast_ring_down : SL_CUDA_sl_k_fast_vec_down, down_blocks,
        m->n_rows, down_room, &down);
    return true;
}
