/* What draws seek of logits: lists and launches. */
#include "stage/cuda/exec_draws.h"

#include "model/draw_rule.h"
#include "stage/cuda/kernels/args_draws.h"

_Static_assert(SL_CUDA_SEEK_IDS > SL_SEEK_MOST, "tokens of a row in a run");
_Static_assert(SL_SEEK_LIST <= SL_CUDA_DRAW_PART, "a list in a part");
_Static_assert(SL_CUDA_MASS_BLOCKS == SL_CUDA_DRAW_THREADS / SL_PEAK_LANES, "lanes of a block");
_Static_assert((SL_SEEK_LIST & (SL_SEEK_LIST - 1)) == 0, "lists are powers of two");

static uint32_t parts_of(uint32_t vocab) {
    return (vocab - 1) / SL_CUDA_DRAW_PART + 1;
}

/* Of a row: keys, masses of blocks, what kernels tell each other. */
static size_t key_bytes(uint32_t vocab) {
    return (size_t)parts_of(vocab) * SL_SEEK_LIST * sizeof(uint64_t);
}

static size_t row_bytes(uint32_t vocab) {
    return key_bytes(vocab) + sl_draw_blocks(vocab) * sizeof(double) + sizeof(sl_k_draw_row);
}

size_t sl_cuda_seek_bytes(uint32_t rows, uint32_t vocab) {
    return SL_MIN(rows, SL_CUDA_SEEK_ROWS) * row_bytes(vocab);
}

/* Which rows seek what. */
static void read_sought(sl_k_seek_args *a, const sl_sought *sought, uint32_t rows) {
    uint32_t list = 1;
    for (uint32_t i = 0; i < rows; i++) {
        const sl_sought *q = &sought[i];
        if (q->all) continue;
        SL_ASSERT(q->n_list > 0 && q->n_list <= SL_MIN(a->vocab, SL_SEEK_LIST));
        list = SL_MAX(list, q->n_list);
        a->seeks |= 1u << i;
        a->sums |= (uint32_t)q->sum << i;
        a->mass |= (uint32_t)(q->mass.kind != SL_MASS_NONE) << i;
        a->top |= (uint32_t)(q->mass.kind == SL_MASS_TOP) << i;
    }
    while (1u << a->list_log < list) a->list_log++;
}

static void launch_masses(sl_cuda *c, uint32_t rows, const sl_k_seek_args *a) {
    const uint32_t some = (sl_draw_blocks(a->vocab) - 1) / SL_CUDA_MASS_BLOCKS + 1;
    const uint32_t threads = SL_CUDA_DRAW_THREADS;
    if (a->mass) sl_cuda_launch(c, SL_CUDA_sl_k_seek_blocks, some, rows, 1, threads, 0, a);
    if (a->mass) sl_cuda_launch(c, SL_CUDA_sl_k_seek_mass, rows, 1, 1, threads, 0, a);
    if (a->top) sl_cuda_launch(c, SL_CUDA_sl_k_seek_least, some, rows, 1, threads, 0, a);
}

static void seek_some(sl_cuda *c, const float *logits, uint32_t rows, uint32_t vocab,
                      const sl_sought *sought, uint64_t scratch, sl_found *found) {
    const uint32_t threads = SL_CUDA_DRAW_THREADS;
    sl_k_seek_args a = {.logits = logits, .found = found, .vocab = vocab, .parts = parts_of(vocab)};
    read_sought(&a, sought, rows);
    if (!a.seeks) return;
    a.sought = sl_cuda_list(c, sought, rows * sizeof *sought);
    a.key = (uint64_t *)(uintptr_t)scratch;
    a.block = (double *)(uintptr_t)(scratch + rows * key_bytes(vocab));
    a.row = (sl_k_draw_row *)(a.block + (size_t)rows * sl_draw_blocks(vocab));
    sl_cuda_launch(c, SL_CUDA_sl_k_seek_part, a.parts, rows, 1, threads, 0, &a);
    sl_cuda_launch(c, SL_CUDA_sl_k_seek, rows, 1, 1, threads, 0, &a);
    if (a.sums || a.mass)
        sl_cuda_launch(c, SL_CUDA_sl_k_seek_sums, rows, 2, 1, SL_CUDA_SUM_THREADS, 0, &a);
    launch_masses(c, rows, &a);
}

void sl_cuda_seek(sl_cuda *c, const float *logits, uint32_t rows, uint32_t vocab,
                  const sl_sought *sought, uint64_t scratch, sl_found *found) {
    for (uint32_t i = 0; i < rows; i += SL_CUDA_SEEK_ROWS)
        seek_some(c, logits + (size_t)i * vocab, SL_MIN(rows - i, SL_CUDA_SEEK_ROWS), vocab,
                  sought + i, scratch, found + i);
}
