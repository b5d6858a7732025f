/* Products of many rows in numerics fast on sm_90a (fast_wide.cu): rows rounded once, what the copy
 * engine is told, one launch. */
#include "base/mem.h"
#include "stage/cuda/context.h"
#include "stage/cuda/exec_products.h"
#include "stage/cuda/exec_products_int.h"
#include "stage/cuda/exec_wide.h"
#include "stage/cuda/wide_plan.h"

#define LEAST_ROWS 64u /* of a job */
#define ALIGN      256u

bool sl_cuda_is_wide_gpu(const sl_cuda *c) {
    return c->many && c->info.major == 9 && c->d->cuTensorMapEncodeTiled;
}

bool sl_cuda_wide_map(sl_cuda *c, const void *at, uint32_t rows, uint32_t values, uint64_t stride,
                      uint32_t box_rows, sl_wide_map *out) {
    const uint64_t dim[2] = {values, rows}, apart[1] = {stride};
    const uint32_t box[2] = {SL_WIDE_K, box_rows}, step[2] = {1, 1};
    return SL_CUDA_DO(c, cuTensorMapEncodeTiled, out, SL_CU_MAP_BF16, 2, (uint64_t)(uintptr_t)at,
                      dim, apart, box, step, 0, SL_CU_MAP_SWIZZLE_128, SL_CU_MAP_FETCH_256, 0);
}

/* Whether two jobs have the same rows. */
static bool same_rows(const sl_product_job *a, const sl_product_job *b) {
    return a->x == b->x && a->row == b->row && a->x_stride == b->x_stride && a->k == b->k &&
           a->n_rows == b->n_rows;
}

/* The first job with a job's rows. */
static uint32_t first_with(const sl_product_launch *l, uint32_t i) {
    uint32_t j = 0;
    while (!same_rows(&l->args.job[j], &l->args.job[i])) j++;
    return j;
}

static uint32_t parts_of(const sl_product_launch *l) {
    return l->way == SL_WAY_FAST_WHOLE ? SL_WIDE_PARTS : 1;
}

static size_t rows_bytes(const sl_product_launch *l, const sl_product_job *j) {
    return ((size_t)parts_of(l) * j->n_rows * j->k * 2 + ALIGN - 1) / ALIGN * ALIGN;
}

uint64_t sl_cuda_asked(const sl_cuda *c) {
    return c->asked;
}

uint64_t sl_cuda_rounded_rows(const sl_cuda *c, const float *x, uint32_t n_rows, uint32_t n,
                              uint64_t since) {
    const sl_cuda_rounded *r = &c->rounded;
    const bool there = r->x && r->x == x && r->n_rows == n_rows && r->n == n;
    return there && r->asked >= since ? r->at : 0;
}

void sl_cuda_have_rounded(sl_cuda *c, const float *x, uint32_t n_rows, uint32_t n, uint64_t at) {
    c->rounded = (sl_cuda_rounded){x, n_rows, n, at, c->asked};
}

uint64_t sl_cuda_wide_room(sl_cuda *c, size_t bytes) {
    sl_err err;
    c->rounded.x = NULL;
    if (bytes <= c->wide_bytes) return c->wide;
    if (sl_cuda_refuses(c, "memory of rounded rows grows")) return 0;
    sl_cuda_free(c, c->wide);
    c->wide = c->wide_bytes = 0;
    if (sl_cuda_alloc(c, bytes, &c->wide, &err) != SL_OK) return 0;
    c->wide_bytes = bytes;
    return c->wide;
}

/* A norm that is held and makes these rows rounds them, too. */
static bool norm_rounds(const sl_product_launch *l, const sl_product_job *j, uint64_t to) {
    sl_k_norm_args *n = sl_cuda_held_norm(l->c);
    if (!n || l->c->held.kernel != SL_CUDA_sl_k_fast_norm || j->row) return false;
    if ((const void *)n->y != j->x || n->n != j->k || j->x_stride != n->n * sizeof(float) ||
        n->n_rows != j->n_rows)
        return false;
    n->parts = (uint16_t *)(uintptr_t)to;
    n->n_parts = parts_of(l);
    sl_cuda_settle(l->c);
    return true;
}

static void round_rows(const sl_product_launch *l, const sl_product_job *j, uint64_t to) {
    const sl_wide_rows_args a = {.x = (const float *)(const void *)j->x,
                                 .row = j->row,
                                 .y = (uint16_t *)(uintptr_t)to,
                                 .x_stride = j->x_stride / sizeof(float),
                                 .n_rows = j->n_rows,
                                 .k = j->k,
                                 .parts = parts_of(l)};
    sl_cuda_launch(l->c, SL_CUDA_sl_k_fast_wide_rows,
                   (j->k / 8 + SL_WIDE_ROWS_THREADS - 1) / SL_WIDE_ROWS_THREADS, j->n_rows, 1,
                   SL_WIDE_ROWS_THREADS, 0, &a);
}

static bool can(const sl_product_launch *l) {
    if (!sl_cuda_is_wide_gpu(l->c) || l->args.n_jobs > SL_WIDE_JOBS) return false;
    for (uint32_t i = 0; i < l->args.n_jobs; i++) {
        const sl_product_job *j = &l->args.job[i];
        if (j->listed || j->n_rows < LEAST_ROWS || j->n_rows > UINT16_MAX) return false;
    }
    return true;
}

/* Where what all jobs read is there already. */
static uint64_t rows_there(const sl_product_launch *l) {
    const sl_product_job *j = &l->args.job[0];
    for (uint32_t i = 1; i < l->args.n_jobs; i++)
        if (first_with(l, i)) return 0;
    if (j->row || j->x_stride != j->k * sizeof(float) || parts_of(l) > 1) return 0;
    return sl_cuda_rounded_rows(l->c, (const float *)(const void *)j->x, j->n_rows, j->k,
                                l->c->asked);
}

/* Rounds what jobs read, and says where it is. */
static bool make_rows(sl_product_launch *l, uint64_t *at) {
    const uint64_t there = rows_there(l);
    size_t bytes = 0;
    for (uint32_t i = 0; i < l->args.n_jobs; i++) at[i] = there;
    if (there) return true;
    for (uint32_t i = 0; i < l->args.n_jobs; i++)
        if (first_with(l, i) == i) bytes += rows_bytes(l, &l->args.job[i]);
    uint64_t room = sl_cuda_wide_room(l->c, bytes);
    if (!room) return false;
    for (uint32_t i = 0; i < l->args.n_jobs; i++) {
        const uint32_t first = first_with(l, i);
        at[i] = first < i ? at[first] : room;
        if (first < i) continue;
        if (!norm_rounds(l, &l->args.job[i], room)) round_rows(l, &l->args.job[i], room);
        room += rows_bytes(l, &l->args.job[i]);
    }
    const sl_product_job *j = &l->args.job[0];
    if (!j->row && j->x_stride == j->k * sizeof(float))
        sl_cuda_have_rounded(l->c, (const float *)(const void *)j->x, j->n_rows, j->k, at[0]);
    return true;
}

static bool make_maps(sl_product_launch *l, const uint64_t *at, uint32_t rows, sl_wide_args *a) {
    for (uint32_t i = 0; i < a->n_jobs; i++) {
        const sl_product_job *j = &l->args.job[i];
        sl_wide_job *to = &a->job[i];
        const void *x = (const void *)(uintptr_t)at[i];
        for (uint32_t s = 0; s < (j->end == SL_PRODUCT_SWIGLU ? 2 : 1); s++)
            if (!sl_cuda_wide_map(l->c, j->side[s].w, j->n, j->k, j->side[s].stride, SL_WIDE_BOX,
                                  &to->w[s]))
                return false;
        if (!sl_cuda_wide_map(l->c, x, parts_of(l) * j->n_rows, j->k, (uint64_t)j->k * 2, rows / 2,
                              &to->x))
            return false;
    }
    return true;
}

/* Pairs, or each block by itself where the matrices are so few rows that many would have none. */
static uint32_t choose(sl_wide_args *a, uint32_t sms) {
    const uint32_t most = a->pair, best = sl_wide_choose(a, sms);
    const uint32_t cycles = sl_wide_cycles(a, best, sms);
    a->pair = 1;
    const uint32_t alone = sl_wide_choose(a, sms);
    if (sl_wide_cycles(a, alone, sms) < cycles / 4 * 3) return alone;
    a->pair = most;
    return best;
}

bool sl_cuda_fast_wide(sl_product_launch *l) {
    sl_wide_args a;
    uint64_t at[SL_WIDE_JOBS];
    if (!can(l)) return false;
    memset(&a, 0, sizeof a);
    a.n_jobs = l->args.n_jobs;
    a.pair = l->c->wide_alone ? 1 : 2;
    a.lead = 2;
    for (uint32_t i = 0; i < a.n_jobs; i++) {
        const sl_product_job *j = &l->args.job[i];
        sl_wide_job *to = &a.job[i];
        to->y = j->y;
        to->n = j->n, to->k = j->k, to->n_rows = j->n_rows;
        to->y_stride = j->y_stride;
        to->end = j->end;
        to->parts = parts_of(l);
    }
    const uint32_t sms = l->c->info.sms, asked = l->c->wide_shape;
    const uint32_t shape = asked ? asked - 1 : choose(&a, sms);
    if (sl_wide_cycles(&a, shape, sms) == UINT32_MAX) return false;
    if (!asked && !sl_wide_pays(&a, shape, sms)) return false;
    const sl_wide_shape *s = &sl_wide_shape_of[shape];
    if (!make_rows(l, at) || !make_maps(l, at, s->rows, &a)) return false;
    sl_wide_layout(&a, shape);
    /* Launches are of clusters of two, whether they work in pairs or not. */
    const uint32_t blocks = SL_MIN((a.tiles * a.pair + 1) / 2 * 2, sms / 2 * 2);
    sl_cuda_launch(l->c, s->kernel, blocks, 1, 1, SL_WIDE_THREADS, SL_WIDE_SHARED, &a);
    return true;
}

void sl_cuda_wide_as(sl_cuda *c, uint32_t shape, bool alone) {
    c->wide_shape = shape;
    c->wide_alone = alone;
}
