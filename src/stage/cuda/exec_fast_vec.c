/* Products of very few rows in numerics fast (fast_vec.cu): which jobs they are for, and what goes
 * into one launch with them: a norm in front, a sum behind. */
#include "stage/cuda/context.h"
#include "stage/cuda/exec_products.h"
#include "stage/cuda/exec_products_int.h"

#define OUTPUTS 64u /* of a block at most: more blocks where there are more of them */

/* Rows of x that the kernel for so many has. */
static uint32_t rows_of(uint32_t n) {
    return n <= 2 ? n : SL_VEC_ROWS;
}

static uint32_t shared_of(uint32_t k, uint32_t n_rows, uint32_t weights, bool ring) {
    return sl_vec_room_of(ring, weights, rows_of(n_rows), k, rows_of(n_rows)).end;
}

bool sl_cuda_vec_fits(const sl_cuda *c, const sl_gemm_job *j, const sl_mat *w) {
    return c->numerics == SL_NUMERICS_FAST && c->info.major == 9 && j->n_rows &&
           j->n_rows <= SL_VEC_ROWS && !j->row && w->dtype == SL_BF16 && w->k && w->k % 8 == 0 &&
           !w->segments && ((uintptr_t)w->data | sl_mat_stride(w)) % 16 == 0 &&
           (uintptr_t)j->x % 16 == 0 && j->x_stride % 4 == 0 && !j->act.row[SL_ACT_BF16] &&
           shared_of(w->k, j->n_rows, 2 * OUTPUTS, c->few.ring) <=
               SL_MIN(SL_VEC_SHARED, c->info.shared_bytes);
}

/* Whether a norm that is held makes the rows that these jobs read. */
static bool norm_goes_in(const sl_k_norm_args *n, const sl_vec_args *a) {
    return n && n->wide && n->y == a->x && n->n == a->k && n->n == a->x_stride &&
           n->n_rows == a->n_rows;
}

static void take_norm(sl_cuda *c, sl_vec_args *a) {
    const sl_k_norm_args *n = sl_cuda_held_norm(c);
    if (!norm_goes_in(n, a)) return;
    a->x = n->x;
    a->norm = n->w;
    a->norm_type = n->dtype;
    a->centred = n->centred;
    a->eps = n->eps;
    a->h = n->y;
    a->h_stride = n->n;
    sl_cuda_drop_held(c);
}

static sl_cuda_kernel_id kernel_of(uint32_t n_rows, bool ring) {
    static const sl_cuda_kernel_id kernels[2][3] = {
        {SL_CUDA_sl_k_fast_vec_1, SL_CUDA_sl_k_fast_vec_2, SL_CUDA_sl_k_fast_vec_4},
        {SL_CUDA_sl_k_fast_ring_1, SL_CUDA_sl_k_fast_ring_2, SL_CUDA_sl_k_fast_ring_4}};
    return kernels[ring][SL_MIN(n_rows, 3u) - 1];
}

static void launch(sl_cuda *c, sl_vec_args *a) {
    const bool ring = c->few.ring;
    const uint32_t blocks = (ring ? SL_VEC_RING_BLOCKS : SL_VEC_BLOCKS) * c->info.sms;
    a->most = SL_MIN((a->outputs + blocks - 1) / blocks, OUTPUTS);
    a->fetch = c->few.fetch;
    take_norm(c, a);
    const sl_cuda_held h = {.what = SL_CUDA_HELD_VEC,
                            .kernel = kernel_of(a->n_rows, ring),
                            .blocks = (a->outputs + a->most - 1) / a->most,
                            .threads = SL_VEC_THREADS,
                            .shared = shared_of(a->k, a->n_rows, a->most * a->sides, ring),
                            .args.vec = *a};
    sl_cuda_hold(c, &h);
}

static void add_job(sl_vec_args *a, const sl_product_job *j) {
    sl_vec_job *to = &a->job[a->n_jobs++];
    *to = (sl_vec_job){.y = j->y,
                       .n = j->n,
                       .y_stride = j->y_stride,
                       .first = a->outputs,
                       .gate = j->end == SL_PRODUCT_GATE};
    for (uint32_t s = 0; s < a->sides; s++)
        to->w[s] = j->side[s].w, to->stride[s] = j->side[s].stride;
    a->outputs += j->n;
}

void sl_cuda_vec_run(sl_product_launch *l) {
    const sl_product_args *p = &l->args;
    for (uint32_t i = 0; i < p->n_jobs;) {
        const sl_product_job *first = &p->job[i];
        sl_vec_args a = {.x = (const float *)(const void *)first->x,
                         .x_stride = (uint32_t)(first->x_stride / sizeof(float)),
                         .k = first->k,
                         .n_rows = first->n_rows,
                         .sides = first->end == SL_PRODUCT_SWIGLU ? 2 : 1};
        while (i < p->n_jobs && a.n_jobs < SL_VEC_JOBS && p->job[i].x == first->x &&
               p->job[i].x_stride == first->x_stride && p->job[i].k == first->k &&
               p->job[i].n_rows == first->n_rows && p->job[i].end == first->end)
            add_job(&a, &p->job[i++]);
        launch(l->c, &a);
    }
}

bool sl_cuda_vec_routes(sl_cuda *c, const sl_k_route_args *r, uint32_t n_rows) {
    sl_vec_args *a = sl_cuda_held_vec(c);
    const size_t room = n_rows * (size_t)sl_cuda_route_room(r->n);
    if (!a || a->n_jobs != 1 || a->job[0].y != r->logit || a->job[0].y_stride != r->n ||
        !c->few.routes || a->outputs != r->n || a->n_rows != n_rows || a->job[0].sum ||
        room > c->held.shared)
        return false;
    if (!c->vec_done) {
        sl_err err;
        if (sl_cuda_refuses(c, "a counter has no memory")) return false;
        if (sl_cuda_alloc(c, sizeof *a->done, &c->vec_done, &err) != SL_OK) return false;
        (void)SL_CUDA_DO(c, cuMemsetD8Async, c->vec_done, 0, sizeof *a->done, c->stream);
    }
    a->route = *r;
    a->done = (uint32_t *)(uintptr_t)c->vec_done;
    sl_cuda_settle(c);
    return true;
}

static bool apart(const void *p, size_t n, const void *q, size_t m) {
    const uintptr_t a = (uintptr_t)p, b = (uintptr_t)q;
    return a + n * sizeof(float) <= b || b + m * sizeof(float) <= a;
}

bool sl_cuda_vec_adds(sl_cuda *c, float *y, const float *x, size_t n) {
    sl_vec_args *a = sl_cuda_held_vec(c);
    if (!a || a->n_jobs != 1) return false;
    sl_vec_job *j = &a->job[0];
    const size_t read = (size_t)a->n_rows * a->x_stride;
    if (j->gate || j->y != x || j->y_stride != j->n || n != (size_t)a->n_rows * j->n || j->sum)
        return false;
    if (!apart(y, n, a->x, read) || !apart(y, n, x, n)) return false;
    if (a->norm && !apart(y, n, a->h, read)) return false;
    j->sum = y;
    j->sum_stride = j->n;
    sl_cuda_settle(c);
    return true;
}
