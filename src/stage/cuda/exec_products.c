/* Which kernels compute products, in what tiles: jobs of one type and one way go together in as few
 * launches as their argument has room for. */
#include "stage/cuda/exec_products.h"

#include "stage/cuda/exec_products_int.h"
#include "stage/cuda/graph.h"
#include "stage/cuda/product_room.h"

#define MOST_FEW      32u                   /* rows of a job that count as few ... */
#define MOST_FEW_INT8 8u                    /* ... and of rounded ones */
#define LONGEST       256u                  /* values of a block of weights or of x */
#define TYPES         (SL_DTYPE_COUNT + 1u) /* with F8_E4M3 */
#define NO_KERNEL     SL_CUDA_KERNEL_COUNT

/* By sl_dtype; those of numerics fast are chosen elsewhere. */
static const sl_cuda_kernel_id kernel_of[SL_WAY_FAST_FEW][TYPES] = {
#define OF_F32(way)                                                                                \
    {                                                                                              \
        SL_CUDA_sl_k_##way##_f32, SL_CUDA_sl_k_##way##_f16, SL_CUDA_sl_k_##way##_bf16,             \
            SL_CUDA_sl_k_##way##_q8_0, SL_CUDA_sl_k_##way##_q4_0, SL_CUDA_sl_k_##way##_mxfp4,      \
            SL_CUDA_sl_k_##way##_q4_k, SL_CUDA_sl_k_##way##_q5_k, SL_CUDA_sl_k_##way##_q6_k,       \
            SL_CUDA_sl_k_##way##_f8                                                                \
    }
#define OF_INT8(way)                                                                               \
    {                                                                                              \
        NO_KERNEL, NO_KERNEL, NO_KERNEL, SL_CUDA_sl_k_##way##_q8_0, SL_CUDA_sl_k_##way##_q4_0,     \
            SL_CUDA_sl_k_##way##_mxfp4, SL_CUDA_sl_k_##way##_q4_k, SL_CUDA_sl_k_##way##_q5_k,      \
            SL_CUDA_sl_k_##way##_q6_k, NO_KERNEL                                                   \
    }
    [SL_WAY_FEW] = OF_F32(few),
    [SL_WAY_MANY] = OF_F32(many),
    [SL_WAY_FEW_INT8] = OF_INT8(few_int8),
    [SL_WAY_INT8] = OF_INT8(int8),
#undef OF_F32
#undef OF_INT8
};

/* Rows of x of a tile. */
static const uint32_t tile_rows[SL_WAY_FAST_FEW] = {
    [SL_WAY_FEW] = SL_FEW_ROWS,
    [SL_WAY_MANY] = SL_MANY_ROWS,
    [SL_WAY_FEW_INT8] = SL_FEW_ROWS,
    [SL_WAY_INT8] = SL_INT8_ROWS,
};

/* ---- what can be computed ---- */

/* The kind of rounded rows that a job brings for a matrix, or SL_ACT_NONE. */
static sl_act_kind kind_for(const sl_gemm_job *j, const sl_mat *w) {
    const sl_act_kind kind = sl_act_kind_of(w->dtype);
    return kind != SL_ACT_NONE && j->act.row[kind] ? kind : SL_ACT_NONE;
}

/* Bytes that rows of weights begin at a multiple of. */
static uint32_t alignment_of(sl_dtype t) {
    return t == SL_F32 ? 4 : t == SL_MXFP4 || t == SL_F8_E4M3 ? 1 : 2;
}

static bool mat_fits(sl_cuda *c, const sl_mat *w) {
    const uint32_t apart = alignment_of(w->dtype);
    if (w->segments)
        sl_cuda_fail(c, SL_ERR_UNSUPPORTED, "cuda: products in segments");
    else if (((uintptr_t)w->data | sl_mat_stride(w)) % apart)
        sl_cuda_fail(c, SL_ERR_UNSUPPORTED, "cuda: weights of %s at other than multiples of %u",
                     sl_dtype_name(w->dtype), apart);
    else if (w->dtype == SL_F8_E4M3 && w->scale_col % 4)
        sl_cuda_fail(c, SL_ERR_UNSUPPORTED, "cuda: F8_E4M3 from column %u on, no multiple of 4",
                     w->scale_col);
    else
        return true;
    return false;
}

static bool product_fits(sl_cuda *c, const sl_gemm_job *j, const sl_mat *w) {
    const sl_act_kind kind = kind_for(j, w);
    if (!mat_fits(c, w)) return false;
    if (kind == SL_ACT_BF16)
        sl_cuda_fail(c, SL_ERR_UNSUPPORTED, "cuda: products of BF16 rows (--activations bf16)");
    else if (kind != SL_ACT_NONE && (uintptr_t)j->act.row[kind] % 16)
        sl_cuda_fail(c, SL_ERR_ARG, "cuda: rounded rows at other than multiples of 16");
    else
        return true;
    return false;
}

/* ---- one launch ---- */

/* The stages of shared memory with so many columns and values of a row. */
static sl_product_room room_of(const sl_product_launch *l, uint32_t cols, uint32_t chunk) {
    const uint32_t rows = SL_MIN(tile_rows[l->way], l->n_rows);
    return sl_product_room_of(l->type, l->kind,
                              l->way == SL_WAY_INT8 ? (rows + 15) / 16 * 16 : rows, cols, chunk);
}

/* Narrow tiles where there are fewer than multiprocessors, with longer rows, so that as much is
 * under way. */
static void shape_few(sl_product_launch *l) {
    const sl_cuda_info *info = sl_cuda_info_of(l->c);
    const uint32_t least = l->way == SL_WAY_FEW_INT8 ? 16 : 8;
    uint32_t cols = SL_FEW_COLS, chunk = LONGEST;
    while (cols > least && sl_product_tiles(l, cols, SL_FEW_ROWS) < info->sms)
        cols /= 2, chunk *= 2;
    sl_product_room room = room_of(l, cols, chunk);
    while (SL_FEW_STAGES * room.stage > info->shared_bytes && (cols > least || chunk > LONGEST)) {
        if (chunk > LONGEST)
            chunk /= 2;
        else
            cols /= 2;
        room = room_of(l, cols, chunk);
    }
    l->args.shape.cols = cols;
    l->args.shape.room = room;
    l->threads = l->way == SL_WAY_FEW_INT8 ? 2 * cols : SL_FEW_THREADS; /* a warp has 16 */
    l->shared = SL_MIN(SL_FEW_STAGES, SL_MAX(1, (l->k + chunk - 1) / chunk)) * room.stage;
}

static void shape_int8(sl_product_launch *l) {
    const sl_cuda_info *info = sl_cuda_info_of(l->c);
    uint32_t cols = SL_INT8_COLS;
    while (cols > 16 && sl_product_tiles(l, cols, SL_INT8_ROWS) < info->sms) cols /= 2;
    l->args.shape.cols = cols;
    l->args.shape.room = room_of(l, cols, LONGEST);
    l->threads = cols * 4; /* a warp has eight */
    l->shared = SL_INT8_STAGES * l->args.shape.room.stage;
}

static void shape_many(sl_product_launch *l) {
    l->args.shape.cols = SL_MANY_COLS;
    l->threads = SL_MANY_THREADS;
    l->shared = 2 * (SL_MANY_X_WORDS + SL_MANY_W_WORDS) * (uint32_t)sizeof(float);
}

static void shape_launch(sl_product_launch *l) {
    if (l->way >= SL_WAY_FAST_FEW) {
        sl_cuda_fast_shape(l);
        return;
    }
    l->kernel = kernel_of[l->way][l->type];
    l->rows = tile_rows[l->way];
    l->parts = 1;
    if (l->way == SL_WAY_INT8)
        shape_int8(l);
    else if (l->way == SL_WAY_MANY)
        shape_many(l);
    else
        shape_few(l);
}

static void run_launch(sl_product_launch *l) {
    sl_product_args *a = &l->args;
    uint32_t tiles = 0;
    if (a->n_jobs == 0) return;
    if (l->way == SL_WAY_FAST_VEC) {
        sl_cuda_vec_run(l);
    } else if ((l->way != SL_WAY_FAST && l->way != SL_WAY_FAST_WHOLE) || !sl_cuda_fast_wide(l)) {
        if (l->way == SL_WAY_FAST_WHOLE) l->way = SL_WAY_MANY;
        shape_launch(l);
        for (uint32_t i = 0; i < a->n_jobs; i++) {
            a->job[i].first = tiles;
            tiles += sl_product_job_tiles(&a->job[i], a->shape.cols, l->rows);
        }
        sl_cuda_launch(l->c, l->kernel, tiles, l->parts, 1, l->threads, l->shared, a);
    }
    a->n_jobs = 0;
    l->k = l->n_rows = 0;
}

static sl_product_side side_of(const sl_mat *w) {
    const uint32_t k = w->scale_k ? w->scale_k : w->k;
    return (sl_product_side){.w = w->data,
                             .scale = w->scale,
                             .stride = sl_mat_stride(w),
                             .scale_row = w->scale_row,
                             .scale_col = w->scale_col,
                             .across = (k + SL_F8_BLOCK - 1) / SL_F8_BLOCK};
}

/* Whether rows begin at multiples of 16, and so do their values 256, 512 and so on. */
static bool is_aligned(const sl_mat *w) {
    return ((uintptr_t)w->data | sl_mat_stride(w) | sl_dtype_row_bytes(w->dtype, LONGEST)) % 16 ==
           0;
}

/* The product of a job with w, or with both w and `other`. */
static void add_job(sl_product_launch *l, const sl_gemm_job *j, const sl_mat *w,
                    const sl_mat *other, sl_product_end end) {
    const bool rounded = l->kind != SL_ACT_NONE;
    const uint32_t *row = rounded ? j->act_row : j->row;
    if (l->args.n_jobs == SL_PRODUCT_JOBS) run_launch(l);
    sl_product_job *to = &l->args.job[l->args.n_jobs++];
    *to = (sl_product_job){.side = {side_of(w), side_of(other ? other : w)},
                           .x = (const uint8_t *)j->x,
                           .y = j->y,
                           .x_stride = (uint64_t)j->x_stride * sizeof(float),
                           .n = w->n,
                           .k = w->k,
                           .n_rows = j->n_rows,
                           .y_stride = j->y_stride,
                           .end = (uint8_t)end};
    if (rounded) to->x = j->act.row[l->kind], to->x_stride = sl_act_row_bytes(l->kind, w->k);
    to->listed = row && j->n_rows <= SL_PRODUCT_LISTED;
    for (uint32_t i = 0; to->listed && i < j->n_rows; i++) to->few[i] = row[i];
    if (row && !to->listed) to->row = sl_cuda_list(l->c, row, j->n_rows * sizeof *row);
    to->w_aligned = is_aligned(w) && (!other || is_aligned(other));
    to->x_aligned = ((uintptr_t)to->x | to->x_stride) % 16 == 0;
    l->k = SL_MAX(l->k, w->k);
    l->n_rows = SL_MAX(l->n_rows, j->n_rows);
}

/* ---- all of them ---- */

static sl_product_way way_of(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w) {
    if (sl_cuda_vec_fits(c, j, w)) return SL_WAY_FAST_VEC;
    if (sl_cuda_fast_fits(c, j, w))
        return sl_cuda_fast_is_few(c, j) ? SL_WAY_FAST_FEW : SL_WAY_FAST;
    if (sl_cuda_fast_is_whole(c, j, w)) return SL_WAY_FAST_WHOLE;
    if (kind_for(j, w) != SL_ACT_NONE)
        return j->n_rows > MOST_FEW_INT8 ? SL_WAY_INT8 : SL_WAY_FEW_INT8;
    return j->n_rows > MOST_FEW ? SL_WAY_MANY : SL_WAY_FEW;
}

/* Products with gate and up go together where both are of one type and of a way that can; else
 * those with up follow when the others have been stored. */
static bool is_fused(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *up) {
    const sl_product_way way = way_of(c, j, j->w);
    return way != SL_WAY_MANY && way != SL_WAY_INT8 && up->dtype == j->w->dtype &&
           way_of(c, j, up) == way;
}

/* The matrix of job i in pass 0 or 1, NULL: none. */
static const sl_mat *mat_of(const sl_cuda *c, const sl_gemm_job *jobs, const sl_mat *const *up,
                            uint32_t i, uint32_t pass) {
    if (jobs[i].n_rows == 0 || jobs[i].w->n == 0) return NULL;
    if (pass == 0) return jobs[i].w;
    return is_fused(c, &jobs[i], up[i]) ? NULL : up[i];
}

static void run_way(sl_cuda *c, const sl_gemm_job *jobs, const sl_mat *const *up, uint32_t n_jobs,
                    uint32_t pass, sl_product_way way, sl_dtype type) {
    sl_product_launch l = {.c = c, .type = type, .way = way};
    const bool rounded = way == SL_WAY_FEW_INT8 || way == SL_WAY_INT8;
    l.kind = rounded ? sl_act_kind_of(type) : SL_ACT_NONE;
    for (uint32_t i = 0; i < n_jobs; i++) {
        const sl_mat *w = mat_of(c, jobs, up, i, pass);
        if (!w || w->dtype != type || way_of(c, &jobs[i], w) != way) continue;
        if (pass)
            add_job(&l, &jobs[i], w, NULL, SL_PRODUCT_GATE);
        else if (up && is_fused(c, &jobs[i], up[i]))
            add_job(&l, &jobs[i], w, up[i], SL_PRODUCT_SWIGLU);
        else
            add_job(&l, &jobs[i], w, NULL, SL_PRODUCT_STORE);
    }
    run_launch(&l);
}

void sl_cuda_gemm(sl_cuda *c, const sl_gemm_job *jobs, const sl_mat *const *up, uint32_t n_jobs) {
    for (uint32_t pass = 0; pass < (up ? 2 : 1); pass++) {
        uint32_t there[SL_WAY_COUNT] = {0}; /* bits of types */
        for (uint32_t i = 0; i < n_jobs; i++) {
            const sl_mat *w = mat_of(c, jobs, up, i, pass);
            if (!w) continue;
            if (!product_fits(c, &jobs[i], w) || (up && !product_fits(c, &jobs[i], up[i]))) return;
            there[way_of(c, &jobs[i], w)] |= 1u << w->dtype;
        }
        for (uint32_t i = 0; i < SL_WAY_COUNT * TYPES; i++)
            if (there[i / TYPES] >> i % TYPES & 1)
                run_way(c, jobs, up, n_jobs, pass, (sl_product_way)(i / TYPES),
                        (sl_dtype)(i % TYPES));
    }
    sl_cuda_fence(c);
}

/* ---- rows ---- */

#define WIDEN_THREADS 128u
#define WIDEN_VALUES  (WIDEN_THREADS * 8u) /* of a row by a block */

void sl_cuda_quantise(sl_cuda *c, const float *x, const uint32_t *row, uint32_t n_rows,
                      uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                      uint8_t *dst) {
    if (s || !sl_act_is_int8(kind)) {
        sl_cuda_fail(c, SL_ERR_UNSUPPORTED, "cuda: rows rounded %s",
                     s ? "in segments" : "to BF16 (--activations bf16)");
        return;
    }
    sl_quantise_args a = {.x = x,
                          .dst = dst,
                          .dst_stride = sl_act_row_bytes(kind, k),
                          .n_rows = n_rows,
                          .x_stride = x_stride,
                          .k = k,
                          .block = sl_act_block(kind)};
    if (row && n_rows) a.row = sl_cuda_list(c, row, n_rows * sizeof *row);
    a.aligned = (uintptr_t)x % 16 == 0 && x_stride % 4 == 0;
    sl_cuda_launch(c, SL_CUDA_sl_k_quantise, sl_quantise_blocks(n_rows, k), 1, 1,
                   SL_QUANTISE_THREADS, 0, &a);
    sl_cuda_fence(c);
}

void sl_cuda_embed(sl_cuda *c, const sl_mat *w, const uint32_t *ids, uint32_t n_rows, float *x) {
    const sl_cuda_step *s = sl_cuda_step_with(c, ids, n_rows);
    if (n_rows == 0 || !mat_fits(c, w)) return;
    const sl_widen_args a = {.side = side_of(w),
                             .id = s ? s->id_at : sl_cuda_list(c, ids, n_rows * sizeof *ids),
                             .x = x,
                             .n_rows = n_rows,
                             .k = w->k,
                             .type = w->dtype,
                             .aligned = is_aligned(w)};
    sl_cuda_launch(c, SL_CUDA_sl_k_widen, n_rows, (w->k + WIDEN_VALUES - 1) / WIDEN_VALUES, 1,
                   WIDEN_THREADS, 0, &a);
    sl_cuda_fence(c);
}
