/* What draws seek of logits: lists and launches. */
#include "stage/cuda/exec_draws.h"

#include "base/mem.h"
#include "model/draw_rule.h"
#include "stage/cuda/kernels/args_draws.h"

_Static_assert(SL_CUDA_SEEK_IDS > SL_SEEK_MOST, "tokens of a row in a run");
_Static_assert(SL_SEEK_LIST <= SL_CUDA_DRAW_PART, "a list in a part");
_Static_assert((SL_SEEK_LIST & (SL_SEEK_LIST - 1)) == 0, "lists are powers of two");

static uint32_t parts_of(uint32_t vocab) {
    return (vocab - 1) / SL_CUDA_DRAW_PART + 1;
}

static uint32_t blocks_of(uint32_t vocab) {
    return (vocab - 1) / SL_PEAK_BLOCK + 1;
}

/* Of a row: keys, sums of blocks, the largest logit. */
static size_t key_bytes(uint32_t vocab) {
    return (size_t)parts_of(vocab) * SL_SEEK_LIST * sizeof(uint64_t);
}

static size_t row_bytes(uint32_t vocab) {
    return key_bytes(vocab) + blocks_of(vocab) * sizeof(double) + sizeof(double);
}

size_t sl_cuda_seek_bytes(uint32_t rows, uint32_t vocab) {
    return SL_MIN(rows, SL_CUDA_SEEK_ROWS) * row_bytes(vocab);
}

static void seek_some(sl_cuda *c, const float *logits, uint32_t rows, uint32_t vocab,
                      const sl_sought *sought, uint64_t scratch, sl_found *found) {
    uint32_t list = 1;
    sl_k_seek_args a = {.logits = logits, .found = found, .vocab = vocab, .parts = parts_of(vocab)};
    sl_k_sums_args s = {.logits = logits, .found = found, .vocab = vocab};
    for (uint32_t i = 0; i < rows; i++) {
        if (sought[i].all) continue;
        list = SL_MAX(list, sought[i].n_list);
        a.seeks |= 1u << i;
        s.sums |= (uint32_t)sought[i].sum << i;
        s.masses |= (uint32_t)(sought[i].mass.kind != SL_MASS_NONE) << i;
    }
    SL_ASSERT(list <= SL_SEEK_LIST && list <= vocab);
    if (!a.seeks) return;
    while (1u << a.list_log < list) a.list_log++;
    a.sought = s.sought = sl_cuda_list(c, sought, rows * sizeof *sought);
    a.key = (uint64_t *)(uintptr_t)scratch;
    s.block = (double *)(uintptr_t)(scratch + rows * key_bytes(vocab));
    a.top = (float *)(s.block + (size_t)rows * blocks_of(vocab));
    s.top = a.top;
    sl_cuda_launch(c, SL_CUDA_sl_k_seek_part, a.parts, rows, 1, SL_CUDA_DRAW_THREADS, 0, &a);
    sl_cuda_launch(c, SL_CUDA_sl_k_seek, rows, 1, 1, SL_CUDA_DRAW_THREADS, 0, &a);
    if (s.sums || s.masses)
        sl_cuda_launch(c, SL_CUDA_sl_k_seek_sums, rows, 2, 1, SL_CUDA_SUM_THREADS, 0, &s);
}

void sl_cuda_seek(sl_cuda *c, const float *logits, uint32_t rows, uint32_t vocab,
                  const sl_sought *sought, uint64_t scratch, sl_found *found) {
    for (uint32_t i = 0; i < rows; i += SL_CUDA_SEEK_ROWS)
        seek_some(c, logits + (size_t)i * vocab, SL_MIN(rows - i, SL_CUDA_SEEK_ROWS), vocab,
                  sought + i, scratch, found + i);
}
