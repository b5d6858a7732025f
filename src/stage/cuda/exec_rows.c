/* Norms, element-wise steps, rotations, copies and sums of rows on the GPU: lists and launches. */
#include "stage/cuda/exec_rows.h"

#include "stage/cuda/context.h"
#include "stage/cuda/exec_products.h"
#include "stage/cuda/kernels/args_rows.h"

#include <string.h>

#define SMALL_NORM     512u  /* values of a vector that half a warp takes */
#define MANY_THREADS   2048u /* values from which on a norm takes as many threads as it may */
#define VEC_BLOCKS     4096u
#define MIN_LANES      3u /* 8 threads share a row at least... */
#define MAX_LANES      8u /* ...and a block at most */
#define NOBODY         UINT32_MAX
#define THREADS_LOG2   8u
#define WARP_LOG2      5u
#define FAST_NORM_ROWS 64u /* from which on numerics fast has a kernel for many */

_Static_assert(SL_CUDA_ROW_THREADS == 1u << THREADS_LOG2, "threads of a block");
_Static_assert(SL_ACT_KINDS == 3, "rounded rows in sl_k_norm_args");

static uint32_t blocks_for(uint64_t n, uint32_t each) {
    const uint64_t blocks = (n + each - 1) / each;
    SL_ASSERT(blocks <= INT32_MAX);
    return (uint32_t)blocks;
}

/* The logarithm of how many threads share a row of so many steps. */
static uint32_t lanes_for(uint32_t steps) {
    uint32_t log = MIN_LANES;
    while (log < MAX_LANES && 1u << log < steps) log++;
    return log;
}

static uint32_t blocks_of_rows(uint32_t rows, uint32_t lanes_log) {
    return blocks_for((uint64_t)rows << lanes_log, SL_CUDA_ROW_THREADS);
}

/* ---- norms ---- */

/* Rows that the kernel of many takes. */
static bool many_rows(const sl_k_norm_args *a) {
    return a->n_rows >= FAST_NORM_ROWS && a->wide && a->n % 8 == 0 && a->n <= SL_FAST_NORM_MOST;
}

/* In numerics fast very few rows are normalised by the product that reads them, if there is one;
 * many are rounded for it. */
static void launch_norm(sl_cuda *c, const sl_k_norm_args *a, bool rounds) {
    sl_cuda_held h = {.what = SL_CUDA_HELD_NORM,
                      .kernel = SL_CUDA_sl_k_norm,
                      .blocks = a->n_rows,
                      .threads =
                          a->n > MANY_THREADS ? SL_CUDA_NORM_THREADS : SL_CUDA_NORM_THREADS / 2,
                      .args.norm = *a};
    const float *end = a->x + (size_t)a->n_rows * a->n;
    const bool apart = end <= a->y || a->y + (size_t)a->n_rows * a->n <= a->x;
    const bool fast = !rounds && a->y && sl_cuda_numerics_of(c) == SL_NUMERICS_FAST;
    const bool many = fast && c->many && many_rows(a);
    if (many) h.kernel = SL_CUDA_sl_k_fast_norm, h.threads = SL_FAST_NORM_THREADS;
    sl_cuda_hold(c, &h);
    if (!fast || !apart || (a->n_rows > SL_VEC_ROWS && !many)) sl_cuda_settle(c);
}

void sl_cuda_norm(sl_cuda *c, const float *x, const sl_mat *w, float eps, bool centred,
                  uint32_t n_rows, uint32_t n, const sl_norm_out *out) {
    sl_k_norm_args a = {.x = x,
                        .w = w->data,
                        .y = out->y,
                        .n_rows = n_rows,
                        .n = n,
                        .dtype = (uint32_t)w->dtype,
                        .centred = centred,
                        .wide = sl_cuda_is_wide(x, n) && sl_cuda_is_wide(out->y, n),
                        .eps = eps};
    bool rounds = false;
    SL_ASSERT(sl_dtype_is_plain(w->dtype));
    for (sl_act_kind kind = 0; kind < SL_ACT_KINDS; kind++) {
        if (!out->act[kind]) continue;
        rounds = true;
        a.act[kind] = out->act[kind];
        a.act_bytes[kind] = (uint32_t)sl_act_row_bytes(kind, n);
    }
    if (!rounds && n <= SMALL_NORM)
        sl_cuda_launch(c, SL_CUDA_sl_k_norm_small,
                       blocks_for((uint64_t)n_rows * SL_DOT_LANES, SL_CUDA_SMALL_THREADS), 1, 1,
                       SL_CUDA_SMALL_THREADS, 0, &a);
    else
        launch_norm(c, &a, rounds);
}

/* ---- element by element ---- */

static void vec(sl_cuda *c, sl_cuda_vec_op op, float *y, const float *x, float limit, size_t n) {
    const sl_k_vec_args a = {.y = y,
                             .x = x,
                             .n = n,
                             .a = limit,
                             .op = op,
                             .wide = c->many && sl_cuda_is_wide(y, n) && sl_cuda_is_wide(x, n)};
    const uint32_t each = SL_CUDA_ROW_THREADS * (a.wide ? 4 : 1);
    const uint64_t blocks = (n + each - 1) / each;
    sl_cuda_launch(c, SL_CUDA_sl_k_vec, (uint32_t)SL_MIN(blocks, VEC_BLOCKS), 1, 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
}

void sl_cuda_vec_add(sl_cuda *c, float *y, const float *x, size_t n) {
    if (sl_cuda_vec_adds(c, y, x, n)) return;
    vec(c, SL_CUDA_VEC_ADD, y, x, 0, n);
}

void sl_cuda_vec_clip(sl_cuda *c, float *y, float limit, size_t n) {
    vec(c, SL_CUDA_VEC_CLIP, y, y, limit, n);
}

void sl_cuda_swiglu_clamped(sl_cuda *c, float *gate, const float *up, float limit, size_t n) {
    vec(c, SL_CUDA_VEC_GLU, gate, up, limit, n);
}

void sl_cuda_bias_add(sl_cuda *c, float *y, const sl_mat *b, uint32_t n_rows) {
    const sl_k_bias_add_args a = {.y = y, .b = b->data, .dtype = (uint32_t)b->dtype, .n = b->k};
    SL_ASSERT(sl_dtype_is_plain(b->dtype));
    sl_cuda_launch(c, SL_CUDA_sl_k_bias_add, n_rows, blocks_for(b->k, 4 * SL_CUDA_ROW_THREADS), 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
}

void sl_cuda_gate_rows(sl_cuda *c, float *y, const float *gate, uint32_t n_rows, uint32_t n) {
    const sl_k_gate_rows_args a = {.y = y, .gate = gate, .n = n};
    sl_cuda_launch(c, SL_CUDA_sl_k_gate_rows, n_rows, blocks_for(n, 4 * SL_CUDA_ROW_THREADS), 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
}

/* ---- rotary embedding ---- */

void sl_cuda_rope(sl_cuda *c, float *x, const uint32_t *pos, const double *freq, uint32_t n_rows,
                  const sl_rope_shape *shape) {
    sl_k_rope_args a = {.x = x,
                        .freq = freq,
                        .n_heads = shape->n_heads,
                        .head_dim = shape->head_dim,
                        .half = shape->rope_dim / 2,
                        .x_stride = shape->x_stride};
    SL_ASSERT(shape->rope_dim <= SL_HEAD_DIM_MAX);
    a.lanes_log = lanes_for(a.half);
    a.pos = sl_cuda_list(c, pos, n_rows * sizeof *pos);
    sl_cuda_launch(c, SL_CUDA_sl_k_rope, n_rows, blocks_for(shape->n_heads, SL_CUDA_ROPE_HEADS), 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
    sl_cuda_fence(c);
}

void sl_cuda_split_pairs(sl_cuda *c, float *x, uint32_t n, uint32_t dim, size_t stride) {
    const sl_k_split_pairs_args a = {.x = x, .stride = stride, .n = n, .dim = dim};
    SL_ASSERT(dim <= SL_HEAD_DIM_MAX);
    sl_cuda_launch(c, SL_CUDA_sl_k_split_pairs, blocks_for(n, SL_CUDA_ROW_THREADS / 32), 1, 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
}

/* ---- copies ---- */

/* Launches what `a` says but for how its rows are shared among threads. */
static void copy(sl_cuda *c, sl_k_copy_rows_args a) {
    a.wide =
        sl_cuda_is_wide(a.x, a.x_stride) && sl_cuda_is_wide(a.y, a.y_stride) && a.width % 4 == 0;
    a.lanes_log = lanes_for(a.wide ? a.width / 4 : a.width);
    sl_cuda_launch(c, SL_CUDA_sl_k_copy_rows, blocks_of_rows(a.n_rows, a.lanes_log), 1, 1,
                   SL_CUDA_ROW_THREADS, 0, &a);
}

void sl_cuda_copy_rows(sl_cuda *c, const float *x, size_t x_stride, uint32_t n_rows, uint32_t width,
                       float *y, size_t y_stride) {
    copy(c, (sl_k_copy_rows_args){.x = x,
                                  .y = y,
                                  .x_stride = x_stride,
                                  .y_stride = y_stride,
                                  .n_rows = n_rows,
                                  .width = width});
}

void sl_cuda_pick_rows(sl_cuda *c, const float *x, const uint32_t *row, const float *factor,
                       uint32_t n_rows, uint32_t width, float *y) {
    sl_k_copy_rows_args a = {
        .x = x, .y = y, .x_stride = width, .y_stride = width, .n_rows = n_rows, .width = width};
    if (row) a.from_row = sl_cuda_list(c, row, n_rows * sizeof *row);
    if (factor) a.factor = sl_cuda_list(c, factor, n_rows * sizeof *factor);
    copy(c, a);
    sl_cuda_fence(c);
}

void sl_cuda_move_rows(sl_cuda *c, const float *from, const uint32_t *from_row, uint32_t n,
                       uint32_t d, float *to, const uint32_t *to_row) {
    sl_k_copy_rows_args a = {
        .x = from, .y = to, .x_stride = d, .y_stride = d, .n_rows = n, .width = d};
    if (from_row) a.from_row = sl_cuda_list(c, from_row, n * sizeof *from_row);
    if (to_row) a.to_row = sl_cuda_list(c, to_row, n * sizeof *to_row);
    copy(c, a);
    sl_cuda_fence(c);
}

void sl_cuda_scale_part(sl_cuda *c, float *x, size_t stride, uint32_t n, uint32_t width, float a) {
    copy(c, (sl_k_copy_rows_args){.x = x,
                                  .y = x,
                                  .x_stride = stride,
                                  .y_stride = stride,
                                  .n_rows = n,
                                  .width = width,
                                  .scales = 1,
                                  .a = a});
}

void sl_cuda_put_kv(sl_cuda *c, const sl_kv_put *p) {
    const sl_kv_type type = p->m->kv_type;
    const size_t part =
        sl_kv_tile_offset(p->m, p->layer, p->is_v, 0) + sl_kv_column_offset(p->m, p->column);
    const void *list;
    uint64_t *at = sl_cuda_list_room(c, p->n_rows * sizeof *at, &list);
    for (uint32_t r = 0; r < p->n_rows; r++)
        at[r] = sl_kv_row_offset(p->m, &p->kv, p->pages[r], p->pos[r]) + part;
    sl_k_put_kv_args a = {.x = p->x,
                          .base = p->kv.base,
                          .at = list,
                          .tile = sl_kv_tile_bytes(p->m),
                          .type = (uint32_t)type,
                          .n_rows = p->n_rows,
                          .n_tiles = p->n_tiles,
                          .width = p->width,
                          .x_stride = p->x_stride};
    a.wide = sl_cuda_is_wide(p->x, p->x_stride) &&
             sl_cuda_is_wide(p->kv.base, p->kv.page / sizeof(float)) && p->m->head_dim % 4 == 0 &&
             p->column % 4 == 0 && p->width % 4 == 0;
    a.lanes_log = type == SL_KV_F32 ? lanes_for(a.wide ? p->width / 4 : p->width) : WARP_LOG2;
    sl_cuda_launch(c, type == SL_KV_F32 ? SL_CUDA_sl_k_put_kv : SL_CUDA_sl_k_round_kv,
                   blocks_of_rows(p->n_rows * p->n_tiles, a.lanes_log), 1, 1, SL_CUDA_ROW_THREADS,
                   0, &a);
    sl_cuda_fence(c);
}

/* ---- sums of pairs ---- */

/* Places by address: open addressing over `mask` + 1 entries. */
typedef struct place_table {
    sl_cuda_pair_place *place;
    uint32_t *entry, mask, n;
} place_table;

static uint32_t place_of(place_table *t, float *to) {
    uint32_t at = (uint32_t)(((uintptr_t)to >> 4) * 0x9e3779b97f4a7c15u >> 32) & t->mask;
    while (t->entry[at] != NOBODY && t->place[t->entry[at]].to != to) at = (at + 1) & t->mask;
    if (t->entry[at] == NOBODY) {
        t->entry[at] = t->n;
        t->place[t->n++] = (sl_cuda_pair_place){.to = to};
    }
    return t->entry[at];
}

/* Pairs are sorted by place, those of one in their order: a block adds them up where nobody else
 * does. Lists and what makes them lie in one room. */
void sl_cuda_sum_pairs(sl_cuda *c, const sl_pair_sum *s) {
    const uint32_t n = s->n_pairs;
    uint32_t size = 16;
    const void *at;
    if (n == 0 || s->n == 0) return;
    while (size < 2 * n) size *= 2;
    const size_t items = n * sizeof(sl_cuda_pair_place);
    const size_t work = items + n * sizeof(sl_cuda_pair_item);
    uint8_t *room = sl_cuda_list_room(c, work + ((size_t)n + size) * sizeof(uint32_t), &at);
    place_table t = {.place = (sl_cuda_pair_place *)(void *)room, .mask = size - 1};
    sl_cuda_pair_item *item = (sl_cuda_pair_item *)(void *)(room + items);
    uint32_t *of = (uint32_t *)(void *)(room + work);
    t.entry = of + n;
    memset(t.entry, 0xff, size * sizeof *t.entry);
    for (uint32_t p = 0; p < n; p++) {
        of[p] = place_of(&t, s->to[p]);
        t.place[of[p]].n++;
    }
    for (uint32_t i = 0, first = 0; i < t.n; i++) {
        t.place[i].first = first;
        first += t.place[i].n;
        t.place[i].n = 0;
    }
    for (uint32_t p = 0; p < n; p++) {
        sl_cuda_pair_place *place = &t.place[of[p]];
        item[place->first + place->n++] =
            (sl_cuda_pair_item){.pair = p, .adds = s->adds[p], .gate = s->gate ? s->gate[p] : 1};
    }
    const sl_k_sum_pairs_args a = {.y = s->y,
                                   .place = at,
                                   .item = (const sl_cuda_pair_item *)((uintptr_t)at + items),
                                   .d = s->d,
                                   .first = s->first,
                                   .n = s->n,
                                   .weighs = s->gate != NULL};
    sl_cuda_launch(c, SL_CUDA_sl_k_sum_pairs, t.n, blocks_for(s->n, SL_CUDA_PAIR_COLUMNS), 1,
                   SL_CUDA_PAIR_THREADS, 0, &a);
    sl_cuda_fence(c);
}
