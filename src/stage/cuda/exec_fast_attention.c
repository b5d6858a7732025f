/* Attention in numerics fast: which rows go to which kernel, and how positions are split. */
#include "stage/cuda/exec_rows.h"

#include "stage/cuda/graph.h"
#include "stage/cuda/kernels/args_fast_attention.h"

#include <math.h>

#define PROMPT_ROWS 16u /* of one request, from which on they walk its pages together */
#define LEAST_PAGES 2u  /* of a part */
#define BLOCKS      4u  /* of a multiprocessor, that a launch should have */
#define COUNTERS    65536u
#define LOG2E       1.4426950408889634

static uint32_t row_pages(const sl_attn_args *a, uint32_t r) {
    const uint32_t low = sl_sight_first(a->m, a->layer, a->pos[r]);
    return a->pos[r] / SL_KV_PAGE_TOKENS - low / SL_KV_PAGE_TOKENS + 1;
}

static bool can(const sl_attn_args *a) {
    const sl_model_spec *m = a->m;
    const bool aligned = ((uintptr_t)a->q | (uintptr_t)a->o) % 16 == 0 &&
                         (uintptr_t)a->kv.base % SL_CUDA_PAGES_ALIGN == 0;
    return !m->kv_lora && (m->head_dim == 64 || m->head_dim == 128) && aligned &&
           a->q_stride % 4 == 0 && a->o_stride % 4 == 0 && a->kv.page % 16 == 0;
}

/* Rows r .. r + n - 1 alone. */
static sl_attn_args part_of(const sl_attn_args *a, uint32_t r, uint32_t n) {
    sl_attn_args part = *a;
    part.n_rows = n;
    part.q += (size_t)r * a->q_stride;
    part.o += (size_t)r * a->o_stride;
    part.pos += r;
    part.pages += r;
    return part;
}

/* Pages of a part: as few as make enough blocks, but a row has no more parts than are merged. */
static uint32_t pages_of_part(const sl_cuda *c, const sl_attn_args *a, uint32_t columns) {
    uint64_t all = 0;
    uint32_t most = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const uint32_t n = row_pages(a, r);
        all += (uint64_t)n * columns;
        most = SL_MAX(most, n);
    }
    const uint64_t blocks = (uint64_t)BLOCKS * sl_cuda_info_of(c)->sms;
    const uint32_t fair = (uint32_t)SL_MIN((all + blocks - 1) / blocks, (uint64_t)UINT32_MAX);
    return SL_MAX(SL_MAX(fair, LEAST_PAGES),
                  (most + SL_FAST_ATTN_SPLITS - 1) / SL_FAST_ATTN_SPLITS);
}

static uint32_t columns_of(const sl_attn_args *a) {
    const uint32_t group = sl_attn_group(a);
    return a->m->n_kv_heads * ((group + SL_FAST_ATTN_HEADS - 1) / SL_FAST_ATTN_HEADS);
}

size_t sl_cuda_split_pages(const sl_attn_args *a) {
    size_t n = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) n += row_pages(a, r);
    return n;
}

void sl_cuda_split(const sl_cuda *c, const sl_attn_args *a, uint32_t at, uint32_t *page,
                   sl_fast_attn_list *out) {
    out->per = pages_of_part(c, a, columns_of(a));
    out->blocks = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const uint32_t low = sl_sight_first(a->m, a->layer, a->pos[r]), pages = row_pages(a, r);
        out->row[r] = (sl_fast_attn_row){
            .first_block = out->blocks, .row = r, .low = low, .pos = a->pos[r], .pages = at};
        for (uint32_t i = 0; i < pages; i++) page[at++] = a->pages[r][low / SL_KV_PAGE_TOKENS + i];
        out->blocks += (pages + out->per - 1) / out->per;
    }
}

/* Rows and numbers of their pages: of a launch that is recorded they come with the step. */
static void fill_rows(sl_cuda *c, const sl_attn_args *a, sl_fast_attn_args *k) {
    const sl_cuda_step *s = sl_cuda_step_with(c, a->pos, a->n_rows);
    const uint32_t sight = a->m->sight[a->layer];
    const void *list;
    k->n_rows = a->n_rows;
    if (s) {
        k->page = s->page_at;
        k->list = s->list_at[sight];
        k->of.blocks = s->blocks[sight];
        return;
    }
    uint32_t *page = sl_cuda_list_room(c, sl_cuda_split_pages(a) * sizeof *page, &list);
    k->page = list;
    sl_cuda_split(c, a, 0, page, &k->of);
}

/* Behind counters: what parts make; then, from `state` bytes on, what they say of it. */
static size_t split_room(const sl_attn_args *a, uint32_t blocks, size_t *state) {
    const size_t vectors = (size_t)blocks * columns_of(a) * SL_FAST_ATTN_HEADS;
    *state = COUNTERS * sizeof(uint32_t) + vectors * a->m->head_dim * sizeof(float);
    return *state + vectors * 2 * sizeof(float);
}

bool sl_cuda_split_reserve(sl_cuda *c, const sl_attn_args *a, uint32_t blocks) {
    size_t state;
    return sl_cuda_scratch(c, split_room(a, blocks, &state)) != 0;
}

/* Of at most SL_FAST_ATTN_ROWS rows. */
static void split_rows(sl_cuda *c, const sl_attn_args *a) {
    static const sl_cuda_kernel_id kernel[SL_KV_TYPES][2] = {SL_CUDA_OF_KV_TYPES(sl_k_fast_attn)};
    const sl_model_spec *m = a->m;
    const uint32_t group = sl_attn_group(a), columns = columns_of(a),
                   slices = columns / m->n_kv_heads;
    sl_fast_attn_args k = {.q = a->q,
                           .o = a->o,
                           .sink = a->sink,
                           .k = sl_cuda_kv(a, 0),
                           .v = sl_cuda_kv(a, 1),
                           .page_bytes = a->kv.page,
                           .head_bytes = sl_kv_tile_bytes(m),
                           .q_stride = a->q_stride,
                           .o_stride = a->o_stride,
                           .group = group,
                           .skip = a->skip,
                           .n_heads = m->n_heads,
                           .heads = (group + slices - 1) / slices,
                           .slices = slices,
                           .scale = (float)((double)a->scale * LOG2E)};
    size_t state;
    fill_rows(c, a, &k);
    const uint64_t at = sl_cuda_scratch(c, split_room(a, k.of.blocks, &state));
    if (!at) return;
    k.done = (uint32_t *)(uintptr_t)at;
    k.part = (float *)(uintptr_t)(at + COUNTERS * sizeof(uint32_t));
    k.state = (float *)(uintptr_t)(at + state);
    sl_cuda_launch(c, kernel[m->kv_type][m->head_dim == 128], columns, k.of.blocks, 1,
                   SL_FAST_ATTN_WARPS * 32, 0, &k);
    sl_cuda_fence(c);
}

/* Consecutive rows of one request from r on. */
static uint32_t run_of(const sl_attn_args *a, uint32_t r) {
    uint32_t end = r + 1;
    while (end < a->n_rows && a->pages[end] == a->pages[r]) end++;
    return end - r;
}

/* Rows of a launch. */
static uint32_t most_rows(const sl_attn_args *a) {
    return SL_MIN(SL_FAST_ATTN_ROWS, COUNTERS / SL_MAX(columns_of(a), 1u));
}

bool sl_cuda_split_alone(const sl_attn_args *a) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < a->n_rows; r += n)
        if ((n = run_of(a, r)) >= PROMPT_ROWS) return false;
    return a->n_rows > 0 && a->n_rows <= most_rows(a);
}

bool sl_cuda_fast_attention(sl_cuda *c, const sl_attn_args *a) {
    const uint32_t most = most_rows(a);
    if (!can(a) || most == 0) return false;
    for (uint32_t r = 0; r < a->n_rows;) {
        uint32_t n = run_of(a, r);
        if (n >= PROMPT_ROWS) {
            const sl_attn_args part = part_of(a, r, n);
            sl_cuda_fast_prompt(c, &part);
            r += n;
            continue;
        }
        for (n = 0; r + n < a->n_rows && n < most; n++)
            if (run_of(a, r + n) >= PROMPT_ROWS) break;
        const sl_attn_args part = part_of(a, r, n);
        split_rows(c, &part);
        r += n;
    }
    return true;
}

void sl_cuda_attention(sl_cuda *c, const sl_attn_args *a) {
    if (sl_cuda_numerics_of(c) == SL_NUMERICS_FAST && sl_cuda_fast_attention(c, a)) return;
    if (sl_cuda_numerics_of(c) == SL_NUMERICS_EXACT && can(a))
        sl_cuda_exact_attention(c, a);
    else
        sl_cuda_attention_as(c, a, SL_CUDA_ATTN_FORMS, 0);
}
