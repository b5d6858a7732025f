/* What is asked of a GPU that is open: launches, waiting for all, and the first failure. */
#include "stage/cuda/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define SL_CUDA_KERNEL(name, args) #name,
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL
};

const char *sl_cuda_kernel_name(uint32_t k) {
    return names[k];
}

sl_status sl_cuda_enter(const sl_cuda *c, sl_err *err) {
    return SL_CU_DO(c->d, err, cuCtxSetCurrent, c->context);
}

void sl_cuda_adopt(sl_cuda *c) {
    SL_CUDA_DO(c, cuCtxSetCurrent, c->context);
}

/* While launches are recorded nothing is a failure: without a graph it will be tried again, and be
 * one then. */
void sl_cuda_refuse(sl_cuda *c, const char *fmt, ...) {
    va_list args;
    if (!c->recording.on || c->recording.why[0]) return;
    va_start(args, fmt);
    vsnprintf(c->recording.why, sizeof c->recording.why, fmt, args);
    va_end(args);
}

bool sl_cuda_refuses(sl_cuda *c, const char *why) {
    sl_cuda_refuse(c, "%s", why);
    return c->recording.on;
}

/* The first failure. */

sl_status sl_cuda_failed(const sl_cuda *c, sl_err *err) {
    return c->failed ? sl_fail(err, c->failure.code, "%s", c->failure.msg) : SL_OK;
}

void sl_cuda_fail(sl_cuda *c, sl_status code, const char *fmt, ...) {
    char text[400];
    va_list args;
    if (c->failed) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->recording.on) {
        sl_cuda_refuse(c, "%s", text);
        return;
    }
    c->failed = sl_fail(&c->failure, code, "%s", text) != SL_OK;
}

bool sl_cuda_did(sl_cuda *c, const char *call, sl_cu_result r) {
    sl_err err;
    if (r == SL_CU_OK) return true;
    if (c->recording.on) {
        (void)!sl_cu_check(c->d, call, r, &err);
        sl_cuda_refuse(c, "%s", err.msg);
        return false;
    }
    if (!c->failed) c->failed = sl_cu_check(c->d, call, r, &c->failure) != SL_OK;
    return false;
}

/* Launches. */

/* More dynamic shared memory than this kernel had so far: what it may have by itself depends on how
 * much is static, so it is asked for every time. */
static bool allow_shared(sl_cuda *c, uint32_t k, uint32_t bytes) {
    if (bytes <= c->dynamic[k]) return true;
    if (bytes > c->info.shared_bytes) {
        sl_cuda_fail(c, SL_ERR_LIMIT, "kernel %s wants %u bytes of shared memory, a block has %u",
                     names[k], bytes, c->info.shared_bytes);
        return false;
    }
    c->dynamic[k] = bytes;
    return SL_CUDA_DO(c, cuFuncSetAttribute, c->kernels[k], SL_CU_FUNCTION_DYNAMIC_SHARED,
                      (int)bytes);
}

static const bool is_early[] = {
#define SL_CUDA_KERNEL(name, args) false,
#define SL_CUDA_EARLY(name, args)  true,
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL
};

static sl_cu_result start(const sl_cuda *c, sl_cuda_kernel_id k, const uint32_t grid[3],
                          uint32_t threads, uint32_t shared, void **list) {
    sl_cu_launch_attribute early = {.id = SL_CU_LAUNCH_EARLY, .value.allowed = 1};
    const sl_cu_launch_config how = {.grid = {grid[0], grid[1], grid[2]},
                                     .block = {threads, 1, 1},
                                     .shared = shared,
                                     .stream = c->stream,
                                     .attributes = &early,
                                     .n_attributes = 1};
    if (c->d->cuLaunchKernelEx && c->info.major >= 9 && is_early[k])
        return c->d->cuLaunchKernelEx(&how, c->kernels[k], list, NULL);
    return c->d->cuLaunchKernel(c->kernels[k], grid[0], grid[1], grid[2], threads, 1, 1, shared,
                                c->stream, list, NULL);
}

/* Whether a graph with this launch is given up; says for which kernel's sake. */
static bool given_up(sl_cuda *c, sl_cuda_kernel_id k) {
    sl_cuda_recording *r = &c->recording;
    if (!r->on || !r->why[0]) return false;
    const size_t n = strlen(r->why);
    if (!r->named) snprintf(r->why + n, sizeof r->why - n, " (%s)", names[k]);
    r->named = true;
    return true;
}

static void launch(sl_cuda *c, sl_cuda_kernel_id k, const uint32_t grid[3], uint32_t threads,
                   uint32_t dynamic_shared, const void *args) {
    const uint32_t grid_x = grid[0], grid_y = grid[1], grid_z = grid[2];
    if (c->failed || !grid_x || !grid_y || !grid_z || given_up(c, k)) return;
    if (!allow_shared(c, k, dynamic_shared)) return;
    void *list[] = {(void *)(uintptr_t)args};
    if (sl_cuda_did(c, "cuLaunchKernel", start(c, k, grid, threads, dynamic_shared, list))) return;
    if (c->recording.on) return;
    (void)sl_err_prefix(&c->failure, "kernel %s, %u x %u x %u blocks of %u threads", names[k],
                        grid_x, grid_y, grid_z, threads);
}

void sl_cuda_launch(sl_cuda *c, sl_cuda_kernel_id k, uint32_t grid_x, uint32_t grid_y,
                    uint32_t grid_z, uint32_t threads, uint32_t dynamic_shared, const void *args) {
    sl_cuda_settle(c);
    launch(c, k, (const uint32_t[]){grid_x, grid_y, grid_z}, threads, dynamic_shared, args);
}

/* What is held back. */

void sl_cuda_hold(sl_cuda *c, const sl_cuda_held *h) {
    sl_cuda_settle(c);
    c->held = *h;
}

sl_k_norm_args *sl_cuda_held_norm(sl_cuda *c) {
    return c->held.what == SL_CUDA_HELD_NORM ? &c->held.args.norm : NULL;
}

sl_vec_args *sl_cuda_held_vec(sl_cuda *c) {
    return c->held.what == SL_CUDA_HELD_VEC ? &c->held.args.vec : NULL;
}

void sl_cuda_drop_held(sl_cuda *c) {
    c->held.what = SL_CUDA_HELD_NONE;
}

void sl_cuda_settle(sl_cuda *c) {
    c->asked++;
    const sl_cuda_held *h = &c->held;
    if (h->what == SL_CUDA_HELD_NONE) return;
    sl_cuda_drop_held(c);
    launch(c, h->kernel, (const uint32_t[]){h->blocks, 1, 1}, h->threads, h->shared, &h->args);
}

void sl_cuda_drain(sl_cuda *c) {
    sl_cuda_settle(c);
    if (!c->failed) SL_CUDA_DO(c, cuStreamSynchronize, c->stream);
}
