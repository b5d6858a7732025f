/* Products in numerics fast and exact: which jobs there are kernels for, and in what tiles. */
#include "base/mem.h"
#include "stage/cuda/context.h"
#include "stage/cuda/exec_products_int.h"

#define CHUNK          64u /* values of k that a tile takes at a time */
#define LEAST_CHUNKS   4u  /* of a part of k */
#define BLOCKS_OF_SM   2u  /* that run at once */
#define MOST_ROWS      128u
#define LEAST_WHOLE    128u /* rows of a job that decides, from which on it is for tiles */
#define TILE_ROW_BYTES 128u

static bool fits(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w) {
    return sl_cuda_numerics_of(c) != SL_NUMERICS_CPU && w->dtype == SL_BF16 && w->k &&
           w->k % 8 == 0 && ((uintptr_t)w->data | sl_mat_stride(w)) % 16 == 0 &&
           (uintptr_t)j->x % 16 == 0 && j->x_stride % 4 == 0 && !w->segments &&
           !j->act.row[SL_ACT_BF16];
}

bool sl_cuda_fast_fits(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w) {
    return !j->decides && fits(c, j, w);
}

bool sl_cuda_fast_is_whole(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w) {
    return c->many && j->decides && j->n_rows >= LEAST_WHOLE && fits(c, j, w);
}

bool sl_cuda_fast_is_few(const sl_cuda *c, const sl_gemm_job *j) {
    return sl_cuda_numerics_of(c) == SL_NUMERICS_FAST && j->n_rows <= SL_FAST_FEW_ROWS;
}

static uint32_t blocks_at_once(const sl_cuda *c) {
    return BLOCKS_OF_SM * sl_cuda_info_of(c)->sms;
}

/* Narrow tiles as long as all of them run at once. */
static void shape_stream(sl_product_launch *l) {
    const uint32_t tiles = sl_product_tiles(l, 16, SL_FAST_FEW_ROWS);
    const bool wide =
        tiles > 2 * blocks_at_once(l->c) || (l->n_rows > 2 && tiles > blocks_at_once(l->c) / 2);
    l->args.shape.cols = wide ? 32 : 16;
    l->kernel = wide ? SL_CUDA_sl_k_fast_stream_32 : SL_CUDA_sl_k_fast_stream_16;
    l->rows = SL_FAST_FEW_ROWS;
    l->shared = 0;
}

/* Room for the parts of as many tiles as run at once, made when it is first needed. */
static bool parts_room(sl_cuda *c, sl_product_args *a) {
    const size_t tile = (size_t)MOST_ROWS * SL_FAST_TILE_COLS * sizeof(float);
    const size_t parts = blocks_at_once(c) * tile, counts = blocks_at_once(c) * sizeof(uint32_t);
    sl_err err;
    if (!c->parts) {
        if (sl_cuda_refuses(c, "memory of parts grows")) return false;
        if (sl_cuda_alloc(c, parts + counts, &c->parts, &err) != SL_OK) return false;
        sl_cuda_fill(c, c->parts + parts, 0, counts);
    }
    a->parts = (float *)(uintptr_t)c->parts;
    a->done = (uint32_t *)(uintptr_t)(c->parts + parts);
    return true;
}

static void shape_tiles(sl_product_launch *l) {
    const uint32_t chunks = (l->k + CHUNK - 1) / CHUNK;
    l->rows = l->n_rows <= 32 ? 32 : l->n_rows <= 64 ? 64 : MOST_ROWS;
    l->kernel = l->rows == 32   ? SL_CUDA_sl_k_fast_tile_32
                : l->rows == 64 ? SL_CUDA_sl_k_fast_tile_64
                                : SL_CUDA_sl_k_fast_tile_128;
    l->args.shape.cols = SL_FAST_TILE_COLS;
    l->shared = (SL_FAST_STAGES * SL_FAST_TILE_COLS + 2 * l->rows) * TILE_ROW_BYTES;
    const uint32_t tiles = sl_product_tiles(l, l->args.shape.cols, l->rows);
    const uint32_t fit = blocks_at_once(l->c) / SL_MAX(tiles, 1u);
    l->parts = SL_MAX(1u, SL_MIN(fit, chunks / LEAST_CHUNKS));
    if (l->parts > 1 && !parts_room(l->c, &l->args)) l->parts = 1;
}

/* Blocks that have a segment of k each where there are few, all of k where they are many: the same
 * sums. */
static void shape_exact(sl_product_launch *l) {
    const uint32_t chunks = (l->k + CHUNK - 1) / CHUNK;
    const uint32_t segments = (chunks + SL_EXACT_CHUNKS - 1) / SL_EXACT_CHUNKS;
    l->rows = l->n_rows <= 32 ? 32 : 64;
    l->kernel = l->rows == 32 ? SL_CUDA_sl_k_exact_tile_32 : SL_CUDA_sl_k_exact_tile_64;
    l->args.shape.cols = SL_FAST_TILE_COLS;
    l->shared = (SL_FAST_STAGES * SL_FAST_TILE_COLS + 2 * l->rows) * TILE_ROW_BYTES;
    const uint64_t tiles = sl_product_tiles(l, l->args.shape.cols, l->rows);
    const bool few = tiles * 2 <= blocks_at_once(l->c) &&
                     tiles * segments * l->rows <= (uint64_t)blocks_at_once(l->c) * MOST_ROWS;
    l->parts = few && segments > 1 && parts_room(l->c, &l->args) ? segments : 1;
}

void sl_cuda_fast_shape(sl_product_launch *l) {
    l->threads = SL_FAST_THREADS;
    l->parts = 1;
    if (sl_cuda_numerics_of(l->c) == SL_NUMERICS_EXACT)
        shape_exact(l);
    else if (l->way == SL_WAY_FAST_FEW)
        shape_stream(l);
    else
        shape_tiles(l);
}
