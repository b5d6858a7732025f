/* Logits on the GPU, and what of them comes to the host. */
#include "stage/cuda/logits.h"

#include "base/log.h"
#include "stage/cuda/exec_draws.h"

#include <string.h>

#define RESULT_ALIGN 64u

static size_t row_bytes(uint32_t vocab) {
    return (size_t)vocab * sizeof(float);
}

/* Where scratch lies behind logits. */
static uint64_t scratch_at(uint32_t vocab, uint32_t rows) {
    return (rows * row_bytes(vocab) + 255) / 256 * 256;
}

uint64_t sl_cuda_logits_bytes(const sl_model_spec *m, uint32_t rows, bool finds) {
    if (!finds) return rows * row_bytes(m->vocab);
    return scratch_at(m->vocab, rows) + sl_cuda_seek_bytes(rows, m->vocab);
}

bool sl_cuda_logits_fit(const sl_cuda_logits *h, const sl_model_spec *m, uint32_t rows) {
    return sl_cuda_logits_bytes(m, rows, h->finds) <= h->at.bytes;
}

sl_status sl_cuda_logits_reserve(sl_cuda_logits *h, const sl_model_spec *m, uint32_t rows,
                                 sl_cuda_slabs *memory, sl_err *err) {
    h->vocab = m->vocab;
    if (sl_cuda_logits_fit(h, m, rows)) return SL_OK;
    sl_cuda_slabs_return(memory, h->at.at, h->at.bytes); /* first: room for more */
    h->at = (sl_cuda_piece){0};
    return sl_cuda_slabs_grow(memory, sl_cuda_logits_bytes(m, rows, h->finds), "logits", &h->at,
                              err);
}

/* ---- results: what was found of all rows, then the logits of those that seek all ---- */

static bool seeks_all(const sl_stage_head *call, uint32_t row) {
    return !call->sought || call->sought[row].all;
}

static size_t found_bytes(const sl_stage_head *call) {
    const size_t bytes = call->sought ? call->n * sizeof(sl_found) : 0;
    return (bytes + RESULT_ALIGN - 1) / RESULT_ALIGN * RESULT_ALIGN;
}

size_t sl_cuda_logits_result(const sl_cuda_logits *h, const sl_stage_head *call) {
    size_t n = 0;
    for (uint32_t i = 0; i < call->n; i++) n += seeks_all(call, i);
    const size_t bytes = found_bytes(call) + n * row_bytes(h->vocab);
    return (bytes + RESULT_ALIGN - 1) / RESULT_ALIGN * RESULT_ALIGN;
}

/* How many rows from `row` on, one at least, are all sought whole or all not. */
static uint32_t alike(const sl_stage_head *call, uint32_t row) {
    uint32_t n = 1;
    while (row + n < call->n && seeks_all(call, row + n) == seeks_all(call, row)) n++;
    return n;
}

void sl_cuda_logits_bring(sl_cuda_logits *h, const sl_stage_head *call, uint8_t *result,
                          uint64_t at) {
    const size_t row = row_bytes(h->vocab);
    if (call->sought)
        sl_cuda_seek(h->c, (const float *)(uintptr_t)h->at.at, call->n, h->vocab, call->sought,
                     h->at.at + scratch_at(h->vocab, call->n), (sl_found *)(uintptr_t)at);
    result += found_bytes(call);
    for (uint32_t i = 0, n; i < call->n; i += n) {
        n = alike(call, i);
        if (call->sought) *(seeks_all(call, i) ? &h->whole : &h->found) += n;
        if (!seeks_all(call, i)) continue;
        sl_cuda_copy_out_later(h->c, result, h->at.at + i * row, n * row);
        result += n * row;
    }
}

void sl_cuda_logits_give(const sl_cuda_logits *h, const sl_stage_head *call,
                         const uint8_t *result) {
    const size_t row = row_bytes(h->vocab);
    const uint8_t *whole = result + found_bytes(call);
    for (uint32_t i = 0, n; i < call->n; i += n) {
        n = alike(call, i);
        const bool all = seeks_all(call, i);
        if (all) memcpy(call->logits + (size_t)i * h->vocab, whole, n * row);
        if (all) whole += n * row;
        if (!all) memcpy(call->found + i, result + i * sizeof(sl_found), n * sizeof(sl_found));
        for (uint32_t j = i; call->sought && j < i + n; j++) call->found[j].all = all;
    }
}

sl_status sl_cuda_logits_read(sl_cuda_logits *h, uint32_t row, float *to, sl_err *err) {
    h->asked++;
    return sl_cuda_copy_out(h->c, to, h->at.at + row * row_bytes(h->vocab), row_bytes(h->vocab),
                            err);
}

void sl_cuda_logits_tell(const sl_cuda_logits *h) {
    if (!h->found) return;
    sl_log(SL_LOG_INFO, "cuda",
           "draws: %llu rows were found on the GPU, of which %llu came whole after all; %llu came "
           "whole at once",
           (unsigned long long)h->found, (unsigned long long)h->asked,
           (unsigned long long)h->whole);
}
