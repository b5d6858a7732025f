/* Attention on the GPU: how rows and heads are cut into walks over pages, and launches. How work is
 * cut never changes a bit: a query's chain over its pages is whole in one block, or in numerics
 * exact cut where its parts end. */
#include "stage/cuda/exec_rows.h"

#include "stage/cuda/kernels/args_exact_attention.h"

#include <string.h>

typedef struct attn_form {
    sl_cuda_kernel_id kernel;
    uint32_t threads, queries, columns; /* of a block: values of a head at most */
    bool staged;
} attn_form;

#define FORM(name, NAME, staged)                                                                   \
    {                                                                                              \
        SL_CUDA_sl_k_attention_##name, SL_CUDA_ATTN_##NAME##_THREADS,                              \
            SL_CUDA_ATTN_##NAME##_THREADS / 32 * SL_CUDA_ATTN_##NAME##_MINE,                       \
            SL_CUDA_ATTN_##NAME##_THREADS *SL_CUDA_ATTN_##NAME##_COLUMNS, staged                   \
    }
static const attn_form forms[SL_CUDA_ATTN_FORMS] = {
    [SL_CUDA_ATTN_FAR] = {SL_CUDA_sl_k_attention_far, SL_CUDA_ATTN_FAR_THREADS,
                          SL_CUDA_ATTN_FAR_QUERIES, SL_CUDA_ATTN_FAR_WARPS * 32, true},
    [SL_CUDA_ATTN_FEW] = FORM(few, FEW, true),
    [SL_CUDA_ATTN_MANY] = FORM(many, MANY, true),
    [SL_CUDA_ATTN_WIDE] = FORM(wide, WIDE, true),
    [SL_CUDA_ATTN_ANY] = FORM(any, ANY, false),
};

static uint32_t room_bytes(sl_cuda_attn_form form, const sl_cuda_heads *h) {
    const attn_form *f = &forms[form];
    const uint32_t floats =
        form == SL_CUDA_ATTN_FAR
            ? sl_cuda_far_room_of(h->dim, h->v_dim).floats
            : sl_cuda_attention_room_of(h->dim, f->queries, f->staged, h->apart).floats;
    return floats * (uint32_t)sizeof(float);
}

/* Whether rows that are widened have room until then; values of the far form have all of theirs. */
static bool rows_fit(sl_cuda_attn_form form, const sl_cuda_heads *h) {
    const uint32_t row = (uint32_t)sl_kv_row_of(h->type, h->v_dim, h->dim);
    const sl_cuda_far_room room = sl_cuda_far_room_of(h->dim, h->v_dim);
    if (h->type == SL_KV_F32 || !forms[form].staged) return true;
    return sl_cuda_rows_fit(row, room.apart) &&
           (form != SL_CUDA_ATTN_FAR || sl_cuda_rows_fit(row, 2 * room.v_apart));
}

bool sl_cuda_attn_can(const sl_cuda *c, sl_cuda_attn_form form, const sl_cuda_heads *h) {
    return h->v_dim <= forms[form].columns && (h->apart || form != SL_CUDA_ATTN_FAR) &&
           rows_fit(form, h) && room_bytes(form, h) <= sl_cuda_info_of(c)->shared_bytes;
}

/* What is launched: queries of a kv head, of which `heads` of a row go into a block. */
typedef struct attn_plan {
    sl_cuda_attn_form form;
    uint32_t heads; /* 0: as many as it takes */
} attn_plan;

/* So few heads of a block that every multiprocessor has one. */
static uint32_t spread(uint64_t rows, uint32_t group, uint32_t most, uint32_t sms) {
    uint32_t heads = 1;
    while (heads < most && rows * ((group + heads - 1) / heads) > sms) heads *= 2;
    return heads;
}

/* Few queries of a block make more blocks, which a GPU wants first; many read pages less often.
 * rows: of kv heads; together: queries that walk the same pages. */
static attn_plan choose(const sl_cuda *c, const sl_cuda_heads *h, uint64_t rows, uint32_t group,
                        uint32_t together) {
    const uint32_t sms = sl_cuda_info_of(c)->sms;
    attn_plan plan = {.form = SL_CUDA_ATTN_FEW};
    if (together == group && sl_cuda_attn_can(c, SL_CUDA_ATTN_FAR, h)) {
        plan.heads = spread(rows, group, forms[SL_CUDA_ATTN_FAR].queries, sms);
        if (rows * ((group + plan.heads - 1) / plan.heads) <= 2 * sms) {
            plan.form = SL_CUDA_ATTN_FAR;
            return plan;
        }
        plan.heads = 0;
    }
    if (together > forms[SL_CUDA_ATTN_FEW].queries &&
        rows * group / forms[SL_CUDA_ATTN_MANY].queries >= 2 * sms)
        plan.form = SL_CUDA_ATTN_MANY;
    while (plan.form < SL_CUDA_ATTN_ANY && !sl_cuda_attn_can(c, plan.form, h)) plan.form++;
    if (plan.form == SL_CUDA_ATTN_WIDE && together == group)
        plan.heads = spread(rows, group, forms[plan.form].queries, sms);
    return plan;
}

/* The lists of a launch, in one room: what the host fills and where the GPU reads it. */
typedef struct attn_lists {
    uint32_t *pos, *low, *page; /* of rows; of rows; of pages */
    sl_cuda_walk *walk;
    uint32_t walks, pages; /* filled */
} attn_lists;

static attn_lists make_room(sl_cuda *c, uint32_t rows, uint32_t walks, size_t pages,
                            sl_k_attention_args *k) {
    const void *at;
    const size_t low = rows * sizeof(uint32_t), walk = 2 * low;
    const size_t page = walk + walks * sizeof(sl_cuda_walk);
    uint8_t *room = sl_cuda_list_room(c, page + pages * sizeof(uint32_t), &at);
    k->pos = at;
    k->low = (const uint32_t *)((uintptr_t)at + low);
    k->walk = (const sl_cuda_walk *)((uintptr_t)at + walk);
    if (pages) k->page = (const uint32_t *)((uintptr_t)at + page);
    return (attn_lists){.pos = (uint32_t *)(void *)room,
                        .low = (uint32_t *)(void *)(room + low),
                        .walk = (sl_cuda_walk *)(void *)(room + walk),
                        .page = (uint32_t *)(void *)(room + page)};
}

/* Rows r .. end - 1, which share pages, as walks of `each` rows. */
static void add_walks(attn_lists *l, uint32_t r, uint32_t end, uint32_t each) {
    for (; r < end; r += each) {
        sl_cuda_walk w = {.row = r, .n = SL_MIN(each, end - r), .from = UINT32_MAX};
        w.even_to = UINT32_MAX;
        for (uint32_t i = r; i < r + w.n; i++) {
            w.from = SL_MIN(w.from, l->low[i]);
            w.to = SL_MAX(w.to, l->pos[i]);
            w.even_from = SL_MAX(w.even_from, l->low[i]);
            w.even_to = SL_MIN(w.even_to, l->pos[i]);
        }
        w.first = w.from / SL_KV_PAGE_TOKENS;
        w.last = w.to / SL_KV_PAGE_TOKENS;
        l->walk[l->walks++] = w;
    }
}

/* Rows of one list of pages, and pages that any of them sees. */
typedef struct page_run {
    uint32_t end, first, last;
} page_run;

static page_run run_from(const sl_attn_args *a, uint32_t r) {
    page_run run = {.end = r, .first = UINT32_MAX};
    for (; run.end < a->n_rows && a->pages[run.end] == a->pages[r]; run.end++) {
        const uint32_t pos = a->pos[run.end];
        run.first = SL_MIN(run.first, sl_sight_first(a->m, a->layer, pos) / SL_KV_PAGE_TOKENS);
        run.last = SL_MAX(run.last, pos / SL_KV_PAGE_TOKENS);
    }
    return run;
}

/* Of all rows the longest run, and how many pages all runs see. */
static uint32_t measure_runs(const sl_attn_args *a, size_t *pages) {
    uint32_t most = 0;
    *pages = 0;
    for (uint32_t r = 0; r < a->n_rows;) {
        const page_run run = run_from(a, r);
        *pages += run.last - run.first + 1;
        most = SL_MAX(most, run.end - r);
        r = run.end;
    }
    return most;
}

/* The logarithm of how many threads copy a row of so many values, a warp at most. */
static uint32_t copy_log(uint32_t width, bool wide) {
    uint32_t log = 0;
    while (log < 5 && (wide ? 4u : 1u) << log < width) log++;
    return log;
}

/* What a form needs to know of a launch, but for lists and data. */
static void shape_of(sl_k_attention_args *k, const attn_form *f, uint32_t group, uint32_t heads) {
    k->group = group;
    k->heads = SL_MIN(SL_MIN(group, f->queries), heads ? heads : UINT32_MAX);
    k->slices = (group + k->heads - 1) / k->heads;
    k->k_log = copy_log(k->dim, k->wide);
    k->v_log = copy_log(k->v_dim, k->wide);
}

static void launch(sl_cuda *c, sl_cuda_attn_form form, uint32_t walks, uint32_t kv_heads,
                   const sl_k_attention_args *k) {
    const attn_form *f = &forms[form];
    const sl_cuda_heads h = {(sl_kv_type)k->type, k->dim, k->v_dim, k->k != k->v};
    sl_cuda_launch(c, f->kernel, walks, kv_heads * k->slices, 1, f->threads, room_bytes(form, &h),
                   k);
    sl_cuda_fence(c);
}

static void fill_lists(const sl_attn_args *a, uint32_t each, attn_lists *l) {
    for (uint32_t r = 0; r < a->n_rows; r++) {
        l->pos[r] = a->pos[r];
        l->low[r] = sl_sight_first(a->m, a->layer, a->pos[r]);
    }
    for (uint32_t r = 0; r < a->n_rows;) {
        const page_run run = run_from(a, r);
        uint32_t i = l->walks;
        add_walks(l, r, run.end, each);
        for (; i < l->walks; i++) l->walk[i].pages = l->pages + l->walk[i].first - run.first;
        for (uint32_t g = run.first; g <= run.last; g++) l->page[l->pages++] = a->pages[r][g];
        r = run.end;
    }
}

/* All but lists and what depends on the form. */
static sl_k_attention_args args_of(const sl_attn_args *a) {
    const sl_model_spec *m = a->m;
    return (sl_k_attention_args){.q = a->q,
                                 .o = a->o,
                                 .sink = a->sink,
                                 .k = sl_cuda_kv(a, 0),
                                 .v = sl_cuda_kv(a, 1),
                                 .page_bytes = a->kv.page,
                                 .head_bytes = sl_kv_tile_bytes(m),
                                 .type = (uint32_t)m->kv_type,
                                 .row = (uint32_t)sl_kv_row_bytes(m),
                                 .q_stride = a->q_stride,
                                 .o_stride = a->o_stride,
                                 .dim = m->head_dim,
                                 .v_dim = sl_kv_value_dim(m),
                                 .skip = a->skip,
                                 .n_heads = m->n_heads,
                                 .wide = sl_cuda_is_wide(a->kv.base, a->kv.page / sizeof(float)) &&
                                         m->head_dim % 4 == 0,
                                 .scale = a->scale};
}

void sl_cuda_attention_as(sl_cuda *c, const sl_attn_args *a, sl_cuda_attn_form form,
                          uint32_t heads) {
    const sl_model_spec *m = a->m;
    const uint32_t group = sl_attn_group(a);
    const sl_cuda_heads h = sl_cuda_heads_of(m);
    size_t pages;
    const uint32_t together = measure_runs(a, &pages);
    if (a->n_rows == 0) return;
    SL_ASSERT(m->kv_type == SL_KV_F32 || (uintptr_t)a->kv.base % SL_CUDA_PAGES_ALIGN == 0);
    sl_k_attention_args k = args_of(a);
    if (form >= SL_CUDA_ATTN_FORMS) {
        const attn_plan plan =
            choose(c, &h, (uint64_t)a->n_rows * m->n_kv_heads, group, group * together);
        form = plan.form;
        if (!heads) heads = plan.heads;
    }
    SL_ASSERT(sl_cuda_attn_can(c, form, &h));
    shape_of(&k, &forms[form], group, heads);
    attn_lists l = make_room(c, a->n_rows, a->n_rows, pages, &k);
    fill_lists(a, forms[form].queries / k.heads, &l);
    launch(c, form, l.walks, m->n_kv_heads, &k);
}

/* The longest walks first: rows of a prompt see more and more. */
static void turn_round(attn_lists *l) {
    for (uint32_t i = 0; i < l->walks / 2; i++) {
        const sl_cuda_walk w = l->walk[i];
        l->walk[i] = l->walk[l->walks - 1 - i];
        l->walk[l->walks - 1 - i] = w;
    }
}

void sl_cuda_fast_prompt(sl_cuda *c, const sl_attn_args *a) {
    static const sl_cuda_kernel_id kernel[SL_KV_TYPES][2] = {SL_CUDA_OF_KV_TYPES(sl_k_fast_prompt)};
    const attn_form f = {kernel[a->m->kv_type][a->m->head_dim == 128], SL_CUDA_ATTN_PROMPT_THREADS,
                         SL_CUDA_ATTN_PROMPT_THREADS / 32 * 16, 128, true};
    size_t pages;
    measure_runs(a, &pages);
    if (a->n_rows == 0) return;
    sl_k_attention_args k = args_of(a);
    shape_of(&k, &f, sl_attn_group(a), 0);
    attn_lists l = make_room(c, a->n_rows, a->n_rows, pages, &k);
    fill_lists(a, f.queries / k.heads, &l);
    const bool wide = sl_cuda_prompt_can(c, a);
    if (wide) turn_round(&l);
    if (!wide || !sl_cuda_prompt_wide(c, a, &k, l.walks))
        sl_cuda_launch(c, f.kernel, l.walks, a->m->n_kv_heads * k.slices, 1, f.threads, 0, &k);
    sl_cuda_fence(c);
}

/* ---- numerics exact ---- */

#define EXACT_THREADS SL_CUDA_ATTN_PROMPT_THREADS
#define EXACT_QUERIES (EXACT_THREADS / 32 * 16)
#define EXACT_BLOCKS  4u /* of a multiprocessor: with as many no walk is cut */
#define EXACT_ROOM    ((uint64_t)256 << 20)

static uint32_t part_of_page(uint32_t g) {
    return g / SL_EXACT_ATTN_PAGES;
}

static uint32_t row_parts(const sl_attn_args *a, uint32_t r) {
    const uint32_t low = sl_sight_first(a->m, a->layer, a->pos[r]);
    return part_of_page(a->pos[r] / SL_KV_PAGE_TOKENS) - part_of_page(low / SL_KV_PAGE_TOKENS) + 1;
}

/* What cutting walks at parts makes of them. */
typedef struct exact_cut {
    uint32_t whole, walks, most; /* not cut; cut, at most; parts of a row */
    size_t slots;                /* parts of all rows */
} exact_cut;

static exact_cut count_walks(const sl_attn_args *a, uint32_t each) {
    exact_cut k = {.most = 1};
    for (uint32_t r = 0; r < a->n_rows;) {
        const page_run run = run_from(a, r);
        const uint32_t parts = part_of_page(run.last) - part_of_page(run.first) + 1;
        const uint32_t walks = (run.end - r + each - 1) / each;
        k.whole += walks;
        k.walks += walks * parts;
        for (; r < run.end; r++) {
            k.slots += row_parts(a, r);
            k.most = SL_MAX(k.most, row_parts(a, r));
        }
    }
    return k;
}

/* Every walk becomes one for each part of positions. */
static void cut_walks(attn_lists *l, const exact_cut *k) {
    uint32_t n = 0;
    sl_cuda_walk *from = l->walk + (k->walks - k->whole);
    memmove(from, l->walk, k->whole * sizeof *from);
    for (uint32_t i = 0; i < k->whole; i++) {
        const sl_cuda_walk w = from[i];
        for (uint32_t p = part_of_page(w.first); p <= part_of_page(w.last); p++) {
            sl_cuda_walk *to = &l->walk[n++];
            *to = w;
            to->first = SL_MAX(w.first, p * SL_EXACT_ATTN_PAGES);
            to->last = SL_MIN(w.last, (p + 1) * SL_EXACT_ATTN_PAGES - 1);
            to->pages = w.pages + to->first - w.first;
        }
    }
    l->walks = n;
}

/* Where blocks are few, and what they make is not too much. */
static bool cuts_pay(const sl_cuda *c, const sl_attn_args *a, const exact_cut *k,
                     uint32_t columns) {
    const uint64_t blocks = (uint64_t)EXACT_BLOCKS * sl_cuda_info_of(c)->sms;
    const uint64_t vector = (uint64_t)a->m->n_heads * (a->m->head_dim + 2) * sizeof(float);
    return k->most > 1 && (uint64_t)k->whole * columns < blocks && k->slots * vector <= EXACT_ROOM;
}

/* Room for what parts make; false: there is a failure. */
static bool part_room(sl_cuda *c, const sl_attn_args *a, sl_exact_attn_args *k) {
    uint32_t *slot = sl_cuda_list_room(c, a->n_rows * sizeof *slot, (const void **)&k->slot);
    const size_t heads = a->m->n_heads, dim = a->m->head_dim;
    size_t n = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        slot[r] = (uint32_t)n;
        n += row_parts(a, r);
    }
    const uint64_t at = sl_cuda_scratch(c, n * heads * (dim + 2) * sizeof(float));
    k->part = (float *)(uintptr_t)at;
    k->state = k->part + n * heads * dim;
    return at != 0;
}

void sl_cuda_exact_attention(sl_cuda *c, const sl_attn_args *a) {
    const sl_model_spec *m = a->m;
    static const sl_cuda_kernel_id kernel[SL_KV_TYPES][2] = {SL_CUDA_OF_KV_TYPES(sl_k_exact_attn)};
    const attn_form f = {kernel[m->kv_type][m->head_dim == 128], EXACT_THREADS, EXACT_QUERIES, 128,
                         true};
    sl_exact_attn_args k = {.of = args_of(a)};
    size_t pages;
    measure_runs(a, &pages);
    if (a->n_rows == 0) return;
    shape_of(&k.of, &f, sl_attn_group(a), 0);
    const uint32_t each = f.queries / k.of.heads, columns = m->n_kv_heads * k.of.slices;
    const exact_cut cut = count_walks(a, each);
    const bool cuts = cuts_pay(c, a, &cut, columns);
    if (cuts && !part_room(c, a, &k)) return;
    attn_lists l = make_room(c, a->n_rows, cuts ? cut.walks : cut.whole, pages, &k.of);
    fill_lists(a, each, &l);
    if (cuts) cut_walks(&l, &cut);
    sl_cuda_launch(c, f.kernel, l.walks, columns, 1, f.threads,
                   cuts ? 0 : EXACT_THREADS * m->head_dim / 2 * (uint32_t)sizeof(float), &k);
    if (cuts)
        sl_cuda_launch(c, SL_CUDA_sl_k_exact_merge, a->n_rows,
                       (m->n_heads + SL_EXACT_ATTN_HEADS - 1) / SL_EXACT_ATTN_HEADS, 1,
                       SL_EXACT_ATTN_HEADS * 32, 0, &k);
    sl_cuda_fence(c);
}

/* Keys and values of page g of head h are at h * span + g * SL_KV_PAGE_TOKENS - first, so addresses
 * count from where position 0 would be. */
void sl_cuda_attention_span(sl_cuda *c, const sl_attn_span *a) {
    const uint64_t before = (uint64_t)a->first * a->dim * sizeof(float);
    if (a->n_rows == 0) return;
    sl_k_attention_args k = {.q = a->q,
                             .o = a->o,
                             .k = (const uint8_t *)((uintptr_t)a->k - before),
                             .v = (const uint8_t *)((uintptr_t)a->v - before),
                             .max = a->max,
                             .sum = a->sum,
                             .page_bytes = (uint64_t)SL_KV_PAGE_TOKENS * a->dim * sizeof(float),
                             .head_bytes = (uint64_t)a->span * a->dim * sizeof(float),
                             .type = SL_KV_F32,
                             .row = a->dim * (uint32_t)sizeof(float),
                             .goes_on = a->first > 0,
                             .more = !a->last,
                             .q_stride = a->q_stride,
                             .o_stride = a->o_stride,
                             .dim = a->dim,
                             .v_dim = a->v_dim,
                             .n_heads = a->n_heads,
                             .wide = sl_cuda_is_wide(a->k, a->dim) && sl_cuda_is_wide(a->v, a->dim),
                             .scale = a->scale};
    const sl_cuda_heads h = {SL_KV_F32, a->dim, a->v_dim, true};
    const sl_cuda_attn_form form =
        choose(c, &h, (uint64_t)a->n_rows * a->n_heads, 1, SL_MAX(a->n_rows, 2u)).form;
    const attn_form *f = &forms[form];
    shape_of(&k, f, 1, 0);
    attn_lists l = make_room(c, a->n_rows, a->n_rows, 0, &k);
    for (uint32_t r = 0; r < a->n_rows; r++) {
        l.pos[r] = a->pos[r];
        l.low[r] = 0;
    }
    add_walks(&l, 0, a->n_rows, f->queries);
    for (uint32_t i = 0; i < l.walks; i++) {
        sl_cuda_walk *w = &l.walk[i];
        w->first = a->first / SL_KV_PAGE_TOKENS;
        w->last = SL_MIN(w->last, (a->first + a->span) / SL_KV_PAGE_TOKENS - 1);
    }
    launch(c, form, l.walks, a->n_heads, &k);
}
