/* For tests of the GPU's products: matrices and rows here and there, jobs with them. */
#ifndef SL_TESTS_CUDA_PRODUCTS_TEST_H
#define SL_TESTS_CUDA_PRODUCTS_TEST_H

#include "kernel/ops.h"
#include "stage/cuda/exec_products.h"
#include "sanitized.h"
#include "unit/kernel_int8_test.h"

#define F8     SL_F8_E4M3
#define MOST   512u        /* allocations of a case */
#define UNTOLD 0x7fc12345u /* what lies where nothing is stored */

static sl_cuda *gpu;
static uint64_t on_gpu[MOST];
static uint32_t n_on_gpu;
static void *on_host[MOST];
static uint32_t n_on_host;

static inline int open_gpu_for(sl_numerics numerics) {
    sl_err err = {0};
    if (sl_cuda_open(0, numerics, &gpu, &err) == SL_OK) return 0;
    print_message("%s\n", err.msg);
    return 1;
}

static inline int close_gpu(void **state) {
    (void)state;
    sl_cuda_close(gpu);
    return 0;
}

static inline const sl_exec *processors(void) {
    static sl_exec ex;
    ex.k = sl_kernels_base();
    return &ex;
}

static inline void *host(size_t bytes) {
    assert_true(n_on_host < MOST);
    void *p = sl_alloc(bytes + 1, 1);
    assert_non_null(p);
    on_host[n_on_host++] = p;
    return p;
}

static inline void *device(size_t bytes) {
    sl_err err;
    assert_true(n_on_gpu < MOST);
    assert_int_equal(sl_cuda_alloc(gpu, bytes + 64, &on_gpu[n_on_gpu], &err), SL_OK);
    return (void *)(uintptr_t)on_gpu[n_on_gpu++];
}

/* A copy on the GPU, `past` bytes behind a multiple of 256. */
static inline void *upload(const void *p, size_t bytes, uint32_t past) {
    sl_err err;
    uint8_t *to = (uint8_t *)device(bytes) + past;
    assert_int_equal(sl_cuda_copy_in(gpu, (uintptr_t)to, p, bytes, &err), SL_OK);
    return to;
}

static inline void download(void *to, const void *from, size_t bytes) {
    sl_err err = {0};
    const sl_status st = sl_cuda_copy_out(gpu, to, (uintptr_t)from, bytes, &err);
    if (st != SL_OK) fail_msg("%s", err.msg);
}

static inline void forget(void) {
    sl_err err = {0};
    sl_cuda_settle(gpu);
    if (sl_cuda_failed(gpu, &err) != SL_OK) fail_msg("%s", err.msg);
    while (n_on_gpu) sl_cuda_free(gpu, on_gpu[--n_on_gpu]);
    while (n_on_host) sl_free(on_host[--n_on_host]);
}

/* A matrix here and its copy there. */
typedef struct twin {
    sl_mat host, gpu;
} twin;

static inline void fill(sl_dtype t, size_t n, uint8_t *p) {
    void *base;
    if (t == F8) {
        for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(kt_bits() % 127 + (kt_bits() & 128));
        return;
    }
    void *w = kt_weights(t, n, false, &base);
    memcpy(p, w, sl_dtype_row_bytes(t, n));
    sl_free(base);
}

static inline void add_scales(twin *m) {
    const uint32_t n = m->host.n, k = m->host.k;
    m->host.scale_row = kt_below(200);
    m->host.scale_col = 4 * kt_below(50);
    m->host.scale_k = m->host.scale_col + k + kt_below(300);
    const size_t across = (m->host.scale_k + 127) / 128;
    const size_t many = across * ((m->host.scale_row + n + 127) / 128 + 1);
    float *scale = host(many * sizeof *scale);
    for (size_t i = 0; i < many; i++) scale[i] = kt_value() + 1.5f;
    m->gpu = m->host;
    m->host.scale = scale;
    m->gpu.scale = upload(scale, many * sizeof *scale, 0);
}

/* n rows of k values, in some cases parts of longer rows, or at places that are no multiples of 16.
 */
static inline twin matrix(sl_dtype t, uint32_t n, uint32_t k) {
    const uint32_t block = t == F8 ? 1 : sl_dtype_block(t);
    const uint32_t odd = t == F8 || t == SL_MXFP4 ? 1 : t == SL_F32 ? 4 : 2;
    const uint32_t apart = kt_below(3) ? k : k + block * (1 + kt_below(5));
    const size_t bytes = sl_dtype_row_bytes(t, (size_t)n * apart);
    uint8_t *p = host(bytes);
    fill(t, (size_t)n * apart, p);
    twin m = {.host = {.data = p, .n = n, .k = k, .dtype = t}};
    if (apart != k) m.host.stride = sl_dtype_row_bytes(t, apart);
    if (t == F8) add_scales(&m);
    const float *scale = m.gpu.scale;
    m.gpu = m.host;
    m.gpu.scale = scale;
    m.gpu.data = upload(p, bytes, kt_below(3) ? 0 : odd * kt_below(16 / odd));
    return m;
}

/* Rows of x in all forms, and jobs with them. */
typedef struct work {
    sl_act_kind kind; /* SL_ACT_NONE: products of f32 */
    uint32_t n_jobs, k, x_rows, x_stride;
    float *x, *gpu_x;
    uint8_t *act, *gpu_act;
    sl_gemm_job job[2][80];
    twin w[80], up[80];
    const sl_mat *up_mat[2][80];
    size_t y_floats[80];
} work;

static inline void draw_rows(work *w) {
    const uint32_t past = kt_below(4) ? 0 : 1 + kt_below(3);
    w->x_stride = kt_below(3) ? (w->k + 3) / 4 * 4 : w->k + kt_below(7);
    const size_t floats = (size_t)w->x_rows * w->x_stride;
    w->x = host(floats * sizeof(float));
    k8_values(w->x, (uint32_t)floats);
    w->gpu_x = upload(w->x, floats * sizeof(float), 4 * past);
    if (w->kind == SL_ACT_NONE) return;
    const size_t bytes = w->x_rows * sl_act_row_bytes(w->kind, w->k);
    w->act = host(bytes);
    memset(w->act, 0, bytes);
    sl_quantise(processors(), w->x, NULL, w->x_rows, w->x_stride, w->k, w->kind, w->act);
    w->gpu_act = upload(w->act, bytes, 0);
}

static inline void add_job(work *w, uint32_t rows, bool listed) {
    const uint32_t i = w->n_jobs++;
    const sl_mat *mat = &w->w[i].host;
    sl_gemm_job *j = &w->job[0][i];
    *j = (sl_gemm_job){.w = mat, .x = w->x, .n_rows = rows, .x_stride = w->x_stride};
    uint32_t *row = host(rows * sizeof *row);
    for (uint32_t r = 0; r < rows; r++) row[r] = kt_below(w->x_rows);
    if (listed) j->row = j->act_row = row;
    j->y_stride = mat->n + kt_below(3);
    w->y_floats[i] = (size_t)rows * j->y_stride + 1;
    uint32_t *y = host(w->y_floats[i] * sizeof *y);
    for (size_t v = 0; v < w->y_floats[i]; v++) y[v] = UNTOLD;
    j->y = (float *)y;
    if (w->kind != SL_ACT_NONE) j->act.row[w->kind] = w->act;
    w->job[1][i] = *j;
    w->job[1][i].w = &w->w[i].gpu;
    w->job[1][i].x = w->gpu_x;
    w->job[1][i].y = upload(y, w->y_floats[i] * sizeof *y, 0);
    if (w->kind != SL_ACT_NONE) w->job[1][i].act.row[w->kind] = w->gpu_act;
    w->up_mat[0][i] = &w->up[i].host;
    w->up_mat[1][i] = &w->up[i].gpu;
}

#endif
