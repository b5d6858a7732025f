/* Which GPUs there are, by opening each. */
#include "stage/cuda.h"

#include "base/mem.h"
#include "stage/cuda/cuda_int.h"

#include <stdio.h>
#include <string.h>

void sl_cuda_kind_text(const sl_cuda_info *info, char out[SL_GPU_KIND_BYTES]) {
    memset(out, 0, SL_GPU_KIND_BYTES);
    snprintf(out, SL_GPU_KIND_BYTES, "%s, compute capability %u.%u", info->name, info->major % 100,
             info->minor % 100);
}

sl_status sl_cuda_kind(uint32_t index, char out[SL_GPU_KIND_BYTES], sl_err *err) {
    sl_cuda_info info;
    sl_status st = sl_cuda_identify(index, &info, err);
    if (st == SL_OK) sl_cuda_kind_text(&info, out);
    return st;
}

static void why(char out[256], const sl_err *err) {
    snprintf(out, 256, "%s", err->msg);
}

static void look(uint32_t index, sl_cuda_gpu *out, sl_cuda_gpus *all) {
    sl_cuda_info info;
    sl_cuda *c = NULL;
    sl_err err = {0};
    *out = (sl_cuda_gpu){.index = index, .name = "GPU"};
    sl_status st = sl_cuda_describe(index, &info, &err);
    if (st == SL_OK) {
        snprintf(out->name, sizeof out->name, "%s", info.name);
        out->major = info.major;
        out->minor = info.minor;
        out->sms = info.sms;
        out->memory_bytes = info.memory_bytes;
        out->free_bytes = info.free_bytes;
        all->driver_major = info.driver / 1000;
        all->driver_minor = info.driver % 1000 / 10;
        st = sl_cuda_open(index, SL_NUMERICS_CPU, &c, &err);
    }
    if (st != SL_OK) why(out->why, &err);
    sl_cuda_close(c);
}

void sl_cuda_list_devices(sl_cuda_gpus *out) {
    sl_err err = {0};
    uint32_t n = 0;
    *out = (sl_cuda_gpus){0};
    sl_status st = sl_cuda_count(&n, &err);
    if (st == SL_OK && n == 0) st = sl_fail(&err, SL_ERR_NOTFOUND, "the driver sees none");
    if (st == SL_OK && !(out->gpu = sl_alloc(n, sizeof *out->gpu)))
        st = sl_fail(&err, SL_ERR_NOMEM, "list of %u GPUs", n);
    if (st != SL_OK) {
        why(out->why, &err);
        return;
    }
    out->n = n;
    for (uint32_t i = 0; i < n; i++) look(i, &out->gpu[i], out);
}

void sl_cuda_gpus_free(sl_cuda_gpus *g) {
    sl_free(g->gpu);
    *g = (sl_cuda_gpus){0};
}
