/* Batches of routed experts for the fast kernels. */
#include "stage/cuda/experts.h"

#include "base/mem.h"
#include "stage/cuda/exec_rows.h"
#include "stage/cuda/exec_wide.h"
#include "stage/cuda/fast_experts.h"

#include <string.h>

bool sl_cuda_experts_shaped(const sl_model_spec *s) {
    return !s->gate_input && s->d_model % 8 == 0 && s->d_ff_expert % 8 == 0 && s->n_moe > 0 &&
           s->n_experts <= SL_FAST_EXPERTS;
}

/* From its first row and column on, one row behind the other. */
static bool is_plain(const sl_mat *w) {
    return !w->stride && !w->strips && !w->scale_row && !w->scale_col &&
           (!w->scale_k || w->scale_k == w->k);
}

/* The limit of gpt-oss's SwiGLU, the only one that adds biases to gate and up. */
static float limit_of(const sl_model *m) {
    return sl_model_spec_of(m)->glu_limit;
}

/* As numerics `cpu` multiplies with a type; BF16 has tensor cores or that, not both. */
static bool is_kind(sl_dtype t, sl_cuda_kinds kinds) {
    if (t == SL_BF16 && kinds.bf16) return false;
    return sl_fast_is_float(t) ? kinds.floats : kinds.ints;
}

static bool can_grouped(const sl_model *m, const sl_expert_mats *e, sl_cuda_kinds kinds) {
    const sl_fast_types t = {e->gate->dtype, e->down->dtype};
    if (!is_kind(t.up, kinds) || !is_kind(t.down, kinds)) return false;
    if ((e->gate_bias || e->up_bias) && limit_of(m) <= 0) return false;
    return sl_fast_groups_fit(e->gate->k, e->down->k, t) &&
           ((uintptr_t)e->gate->data | (uintptr_t)e->up->data | (uintptr_t)e->down->data) % 2 == 0;
}

static bool on_tensor_cores(const sl_expert_mats *e, sl_cuda_kinds kinds) {
    return kinds.bf16 && e->gate->dtype == SL_BF16 && e->down->dtype == SL_BF16;
}

/* One of a model of that shape. */
static bool can_expert(const sl_model *m, const sl_expert_mats *e, sl_cuda_kinds kinds) {
    if (!is_plain(e->gate) || !is_plain(e->up) || !is_plain(e->down)) return false;
    if (e->up->dtype != e->gate->dtype) return false;
    if (on_tensor_cores(e, kinds)) return !e->gate_bias && !e->up_bias && !e->down_bias;
    return can_grouped(m, e, kinds);
}

static bool same_types(const sl_expert_mats *a, const sl_expert_mats *b) {
    return a->gate->dtype == b->gate->dtype && a->down->dtype == b->down->dtype;
}

bool sl_cuda_experts_can(const sl_model *m, sl_cuda_kinds kinds) {
    const sl_model_spec *s = sl_model_spec_of(m);
    sl_expert_mats e, first;
    bool any = false;
    if (!sl_cuda_experts_shaped(s)) return false;
    for (uint32_t b = 0; b < s->n_moe; b++) {
        bool some = false;
        for (uint32_t i = 0; i < s->n_experts; i++) {
            if (!sl_model_expert(m, s->moe_layer[b], i, &e)) continue;
            if (!some) first = e;
            some = any = true;
            if (!can_expert(m, &e, kinds) || !same_types(&e, &first)) return false;
        }
    }
    return any;
}

/* Numerics exact and cpu: a pair's bits are a matter of its row and its expert alone, and pairs are
 * added in the order of those that travel. */
static bool owes_bits(const sl_cuda_experts *x) {
    return sl_cuda_numerics_of(x->c) != SL_NUMERICS_FAST;
}

sl_status sl_cuda_experts_create(sl_cuda *c, const sl_model *m, sl_cuda_kinds kinds,
                                 sl_cuda_slabs *memory, sl_cuda_experts *out, sl_err *err) {
    const sl_model_spec *s = sl_model_spec_of(m);
    const size_t n = (size_t)s->n_moe * s->n_experts;
    *out = (sl_cuda_experts){.c = c, .kinds = kinds, .model = m, .memory = memory};
    out->arrays = sl_alloc_arrays(SL_ARRAY(out->known, n), SL_ARRAY(out->at, n),
                                  SL_ARRAY(out->types, s->n_moe));
    if (!out->arrays) return sl_fail(err, SL_ERR_NOMEM, "tables of %zu experts", n);
    sl_status st = sl_cuda_slabs_grow(memory, n * sizeof(sl_fast_expert), "table of experts",
                                      &out->table, err);
    if (st == SL_OK && (kinds.ints || kinds.floats))
        st = sl_cuda_slabs_grow(memory, n * sizeof(sl_group_beside), "scales and biases",
                                &out->beside, err);
    if (st != SL_OK || sl_cuda_info_of(c)->major != 9) return st;
    return sl_cuda_slabs_grow(memory, n * SL_FAST_MAPS_BYTES, "tensor maps", &out->maps, err);
}

void sl_cuda_experts_free(sl_cuda_experts *x) {
    const sl_cuda_piece all[] = {x->table, x->beside, x->maps, x->scratch,
                                 x->rows,  x->expert, x->gate, x->shared};
    if (!x->c) return;
    for (size_t i = 0; i < SL_LEN(all); i++)
        sl_cuda_slabs_return(x->memory, all[i].at, all[i].bytes);
    sl_free(x->arrays);
    *x = (sl_cuda_experts){0};
}

static sl_status take(sl_cuda_experts *x, size_t bytes, sl_cuda_piece *p, sl_err *err) {
    return sl_cuda_slabs_grow(x->memory, bytes, "scratch of experts", p, err);
}

/* Of those ways that a worker may take. */
static size_t scratch_for(const sl_model_spec *s, uint32_t pairs, bool fast, bool exact,
                          bool groups) {
    const uint32_t d = s->d_model, f = s->d_ff_expert, n = s->n_experts;
    const size_t by_fast = fast ? sl_fast_scratch_bytes(d, f, n, pairs, pairs) : 0;
    const size_t by_exact = exact ? sl_fast_exact_bytes(d, f, n, pairs, pairs) : 0;
    const size_t by_groups = groups ? sl_fast_groups_bytes(d, f, n, pairs, pairs) : 0;
    return SL_MAX(SL_MAX(by_fast, by_exact), by_groups);
}

static size_t rows_for(const sl_model_spec *s, uint32_t pairs) {
    return (size_t)pairs * s->d_model * sizeof(float);
}

static size_t scratch_bytes(const sl_cuda_experts *x, uint32_t max_pairs) {
    const bool bf16 = x->kinds.bf16, owes = owes_bits(x);
    return scratch_for(sl_model_spec_of(x->model), max_pairs, bf16 && !owes, bf16 && owes,
                       x->kinds.ints || x->kinds.floats);
}

static size_t rows_bytes(const sl_cuda_experts *x, uint32_t max_pairs) {
    return rows_for(sl_model_spec_of(x->model), max_pairs);
}

uint64_t sl_cuda_experts_bytes(const sl_model_spec *s, uint32_t max_pairs) {
    if (!sl_cuda_experts_shaped(s) || max_pairs == 0) return 0;
    return scratch_for(s, max_pairs, true, true, true) + rows_for(s, max_pairs);
}

/* The new one is there before the old one goes. */
uint64_t sl_cuda_experts_more(const sl_cuda_experts *x, uint32_t max_pairs) {
    const size_t scratch = scratch_bytes(x, max_pairs), rows = rows_bytes(x, max_pairs);
    return (scratch > x->scratch.bytes ? scratch : 0) + (rows > x->rows.bytes ? rows : 0);
}

sl_status sl_cuda_experts_reserve(sl_cuda_experts *x, uint32_t max_pairs, sl_err *err) {
    const uint64_t had = x->scratch.bytes;
    sl_status st = take(x, scratch_bytes(x, max_pairs), &x->scratch, err);
    if (st == SL_OK && x->scratch.bytes != had)
        sl_cuda_fill(x->c, x->scratch.at, 0, SL_FAST_ZEROED);
    return st == SL_OK ? take(x, rows_bytes(x, max_pairs), &x->rows, err) : st;
}

static sl_cuda_places places_of(const sl_expert_mats *e) {
    const sl_mat *const mat[] = {e->gate, e->up, e->down};
    const sl_mat *const bias[] = {e->gate_bias, e->up_bias, e->down_bias};
    sl_cuda_places at = {e->gate->data, e->up->data, e->down->data, {{NULL}, {NULL}, {0}, 0}};
    for (uint32_t i = 0; i < 3; i++) {
        at.beside.scale[i] = mat[i]->scale;
        if (!bias[i]) continue;
        SL_ASSERT(sl_dtype_is_plain(bias[i]->dtype));
        at.beside.bias[i] = bias[i]->data;
        at.beside.bias_type[i] = (uint32_t)bias[i]->dtype;
    }
    return at;
}

/* The table's word on an expert, written anew when its matrices have come to another place. */
static sl_status put_expert(sl_cuda_experts *x, uint32_t block, uint32_t expert,
                            const sl_expert_mats *e, sl_err *err) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    const size_t i = (size_t)block * s->n_experts + expert;
    const bool cores = on_tensor_cores(e, x->kinds);
    const uint64_t maps = x->maps.at && cores ? x->maps.at + i * SL_FAST_MAPS_BYTES : 0;
    const sl_cuda_places at = places_of(e);
    sl_fast_expert row;
    x->types[block] = cores ? (sl_fast_types){0} : (sl_fast_types){e->gate->dtype, e->down->dtype};
    if (x->known[i] && memcmp(&x->at[i], &at, sizeof at) == 0) return SL_OK;
    sl_status st = sl_cuda_fast_expert(x->c, e->gate->data, e->up->data, e->down->data, s->d_model,
                                       s->d_ff_expert, maps, &row, err);
    if (st == SL_OK)
        st = sl_cuda_copy_in(x->c, x->table.at + i * sizeof row, &row, sizeof row, err);
    if (st == SL_OK && x->beside.at)
        st = sl_cuda_copy_in(x->c, x->beside.at + i * sizeof at.beside, &at.beside,
                             sizeof at.beside, err);
    if (st != SL_OK) return st;
    x->known[i] = 1;
    x->at[i] = at;
    return SL_OK;
}

/* A block's part of a table with `bytes` of each expert; NULL: there is no such table. */
static const void *table_of(const sl_cuda_experts *x, const sl_cuda_piece *p, size_t bytes,
                            uint32_t layer) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    const size_t before = (size_t)s->moe_index[layer] * s->n_experts * bytes;
    return p->at ? (const void *)(uintptr_t)(p->at + before) : NULL;
}

/* What all batches of a block's experts have in common; pairs are the caller's to say. */
static sl_fast_moe batch_of(const sl_cuda_experts *x, uint32_t layer, const float *rows, float *y) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    return (sl_fast_moe){.d_model = s->d_model,
                         .d_ff = s->d_ff_expert,
                         .n_experts = s->n_experts,
                         .types = x->types[s->moe_index[layer]],
                         .expert = table_of(x, &x->table, sizeof(sl_fast_expert), layer),
                         .beside = table_of(x, &x->beside, sizeof(sl_group_beside), layer),
                         .limit = s->glu_limit,
                         .x = rows,
                         .y = y,
                         .scratch = (uint8_t *)(uintptr_t)x->scratch.at};
}

/* Which result a row of x becomes, if each becomes one: place[row]; UINT32_MAX: none. */
static bool find_places(const sl_stage_experts *e, uint32_t n_rows, uint32_t *place) {
    memset(place, 0xFF, n_rows * sizeof *place);
    for (uint32_t p = 0; p < e->first[e->n_groups]; p++) {
        uint32_t *at = &place[e->row[p]];
        if (*at == UINT32_MAX) *at = e->to[p];
        if (*at != e->to[p]) return false;
    }
    return true;
}

static bool same_places(const sl_stage_experts *e, uint32_t n_rows, const uint32_t *place) {
    if (e->n_parts != 1 || e->part[0].n != n_rows) return false;
    for (uint32_t r = 0; r < n_rows; r++)
        if (place[r] != r) return false;
    return true;
}

static uint32_t rows_of(const sl_stage_experts *e) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < e->first[e->n_groups]; p++) n = SL_MAX(n, e->row[p] + 1);
    return n;
}

#define NO_PLACE UINT32_MAX

/* Rows of results to the parts that they are for: row r to place[r] of them all, or nowhere. */
static void hand_out(sl_cuda_experts *x, const sl_stage_experts *e, uint32_t n_rows,
                     const uint32_t *place, uint32_t *list) {
    const uint32_t d = sl_model_spec_of(x->model)->d_model;
    const float *rows = (const float *)(uintptr_t)x->rows.at;
    for (uint32_t i = 0, begin = 0; i < e->n_parts; begin += e->part[i++].n) {
        uint32_t *from = list, *to = list + n_rows, n = 0;
        for (uint32_t r = 0; r < n_rows; r++) {
            if (place[r] < begin || place[r] - begin >= e->part[i].n) continue;
            from[n] = r;
            to[n++] = place[r] - begin;
        }
        if (n) sl_cuda_move_rows(x->c, rows, from, n, d, sl_mem_at(e->part[i].rows), to);
    }
}

/* Of the groups that `which` marks; NULL: of all. */
static bool put_experts(sl_cuda_experts *x, const sl_stage_call *c, const uint8_t *which) {
    const sl_stage_experts *e = &c->experts;
    const uint32_t block = sl_model_spec_of(x->model)->moe_index[c->layer];
    sl_expert_mats m;
    sl_err err;
    for (uint32_t g = 0; g < e->n_groups; g++) {
        if (e->first[g] == e->first[g + 1] || (which && !which[g])) continue;
        bool here = sl_model_expert(x->model, c->layer, e->expert[g], &m);
        SL_ASSERT(here);
        if (put_expert(x, block, e->expert[g], &m, &err) == SL_OK) continue;
        sl_cuda_fail(x->c, err.code, "%s", err.msg);
        return false;
    }
    return true;
}

/* Lists of a call's pairs that the GPU reads, to be filled. */
typedef struct pair_lists {
    uint32_t *id, *row, *first; /* [pairs], [pairs], [rows + 1] */
    float *gate;                /* [pairs] */
} pair_lists;

/* Room for them; b: where the GPU reads them. */
static pair_lists list_room(sl_cuda *c, uint32_t pairs, uint32_t rows, sl_fast_moe *b) {
    const size_t wide = ((size_t)pairs + 3) / 4 * 4;
    const void *at;
    uint32_t *id = sl_cuda_list_room(c, (3 * wide + rows + 1) * sizeof *id, &at);
    b->id = at;
    b->gate = (const float *)(b->id + wide);
    b->pair_row = b->id + 2 * wide;
    b->row_first = b->id + 3 * wide;
    b->n_pairs = pairs;
    return (pair_lists){
        .id = id, .gate = (float *)(id + wide), .row = id + 2 * wide, .first = id + 3 * wide};
}

/* Pairs in the order of rows, as lists that the GPU reads; next: room for a word a row. */
static void list_pairs(sl_cuda_experts *x, const sl_stage_experts *e, uint32_t n_rows,
                       uint32_t *next, sl_fast_moe *b) {
    const uint32_t pairs = e->first[e->n_groups];
    const pair_lists l = list_room(x->c, pairs, n_rows, b);
    memset(l.first, 0, ((size_t)n_rows + 1) * sizeof *l.first);
    for (uint32_t p = 0; p < pairs; p++) l.first[e->row[p] + 1]++;
    for (uint32_t r = 0; r < n_rows; r++) {
        next[r] = l.first[r];
        l.first[r + 1] += l.first[r];
    }
    for (uint32_t g = 0; g < e->n_groups; g++) {
        for (uint32_t p = e->first[g]; p < e->first[g + 1]; p++) {
            const uint32_t to = next[e->row[p]]++;
            l.id[to] = e->expert[g];
            l.gate[to] = e->gate[p];
            l.row[to] = e->row[p];
        }
    }
    b->n_rows = n_rows;
}

/* ---- numerics exact and cpu ---- */

/* Of a call: which of its groups have kernels, where pairs of a row of results begin in the list
 * that is sorted by these rows, and that list. */
typedef struct exact_call {
    const sl_stage_experts *e;
    uint8_t *ours;                   /* [groups] */
    uint32_t *first, *sorted, *each; /* [results + 1]; [pairs] numbers of pairs; [pairs] groups */
    uint32_t n_ours, n_rows, n_results;
} exact_call;

static uint32_t result_of(const sl_stage_experts *e, uint32_t p) {
    return e->to ? e->to[p] : p;
}

/* Those of one type, the first one's. */
static void choose_groups(const sl_cuda_experts *x, uint32_t layer, exact_call *k) {
    const sl_stage_experts *e = k->e;
    sl_expert_mats m, first = {0};
    for (uint32_t g = 0; g < e->n_groups; g++) {
        k->ours[g] =
            e->first[g] < e->first[g + 1] && sl_model_expert(x->model, layer, e->expert[g], &m) &&
            can_expert(x->model, &m, x->kinds) && (k->n_ours == 0 || same_types(&m, &first));
        if (k->ours[g] && k->n_ours == 0) first = m;
        if (k->ours[g]) k->n_ours += e->first[g + 1] - e->first[g];
    }
}

/* Pairs by row of results, those of one row in the order in which they are added. */
static void sort_pairs(exact_call *k) {
    const sl_stage_experts *e = k->e;
    memset(k->first, 0, ((size_t)k->n_results + 2) * sizeof *k->first);
    for (uint32_t g = 0; g < e->n_groups; g++)
        for (uint32_t p = e->first[g]; k->ours[g] && p < e->first[g + 1]; p++)
            k->first[result_of(e, p) + 2]++;
    for (uint32_t r = 0; r < k->n_results; r++) k->first[r + 2] += k->first[r + 1];
    for (uint32_t g = 0; g < e->n_groups; g++)
        for (uint32_t p = e->first[g]; k->ours[g] && p < e->first[g + 1]; p++) {
            const uint32_t at = k->first[result_of(e, p) + 1]++;
            k->sorted[at] = p;
            k->each[at] = g;
        }
}

/* Rows of results from .. from + n - 1 into rows of y. */
static void run_results(sl_cuda_experts *x, const exact_call *k, uint32_t from, uint32_t n,
                        sl_fast_moe *b) {
    const uint32_t begin = k->first[from], pairs = k->first[from + n] - begin;
    const pair_lists l = list_room(x->c, pairs, n, b);
    for (uint32_t i = 0; i < pairs; i++) {
        const uint32_t p = k->sorted[begin + i];
        l.id[i] = k->e->expert[k->each[begin + i]];
        l.gate[i] = k->e->gate[p];
        l.row[i] = k->e->row[p];
    }
    for (uint32_t r = 0; r <= n; r++) l.first[r] = k->first[from + r] - begin;
    b->n_rows = k->n_rows;
    b->n_out = n;
    sl_cuda_fast_moe(x->c, b);
    sl_cuda_fence(x->c);
}

/* Rows of results that have pairs here to their parts; place: three words a row. */
static void hand_out_results(sl_cuda_experts *x, const exact_call *k, uint32_t *place) {
    for (uint32_t r = 0; r < k->n_results; r++)
        place[r] = k->first[r] < k->first[r + 1] ? r : NO_PLACE;
    hand_out(x, k->e, k->n_results, place, place + k->n_results);
}

/* What is left of the call: pairs of other groups, which are added to rows that there are now. */
static void leave_others(const exact_call *k, sl_stage_experts *e, sl_arena *lists) {
    const uint32_t pairs = e->first[e->n_groups];
    uint32_t *expert = sl_arena_take(lists, e->n_groups, sizeof *expert);
    uint32_t *first = sl_arena_take(lists, e->n_groups + 1, sizeof *first);
    uint32_t *row = sl_arena_take(lists, pairs, sizeof *row);
    uint32_t *to = sl_arena_take(lists, pairs, sizeof *to), n = 0, groups = 0;
    float *gate = sl_arena_take(lists, pairs, sizeof *gate);
    uint8_t *adds = sl_arena_take(lists, pairs, sizeof *adds);
    SL_ASSERT(expert && first && row && to && gate && adds);
    for (uint32_t g = 0; g < e->n_groups; g++) {
        if (k->ours[g] || e->first[g] == e->first[g + 1]) continue;
        expert[groups] = e->expert[g];
        first[groups++] = n;
        for (uint32_t p = e->first[g]; p < e->first[g + 1]; p++, n++) {
            const uint32_t r = result_of(e, p);
            const bool ours = r < k->n_results && k->first[r] < k->first[r + 1];
            row[n] = e->row[p];
            to[n] = r;
            gate[n] = e->gate[p];
            adds[n] = ours || (e->adds && e->adds[p]);
        }
    }
    first[groups] = n;
    e->n_groups = groups;
    e->expert = expert, e->first = first, e->row = row, e->gate = gate, e->to = to, e->adds = adds;
}

#define MOST_RESULTS 65535u /* blocks of a grid */

/* A pair's bits are a matter of its row and its expert alone, and so is what computes it. */
static bool run_exact(sl_cuda_experts *x, sl_stage_call *c, sl_arena *lists) {
    sl_stage_experts *e = &c->experts;
    const sl_model_spec *s = sl_model_spec_of(x->model);
    const uint32_t pairs = e->first[e->n_groups];
    exact_call k = {.e = e, .n_rows = rows_of(e)};
    for (uint32_t i = 0; i < e->n_parts; i++) k.n_results += e->part[i].n;
    k.ours = sl_arena_take(lists, e->n_groups + 1, sizeof *k.ours);
    k.first = sl_arena_take(lists, (size_t)k.n_results + 2, sizeof *k.first);
    k.sorted = sl_arena_take(lists, 2 * (size_t)pairs, sizeof *k.sorted);
    uint32_t *place = sl_arena_take(lists, 3 * (size_t)k.n_results, sizeof *place);
    SL_ASSERT(k.ours && k.first && k.sorted && place);
    k.each = k.sorted + pairs;
    choose_groups(x, c->layer, &k);
    if (k.n_ours == 0) return pairs == 0;
    sort_pairs(&k);
    if (!put_experts(x, c, k.ours)) return true;
    for (uint32_t r = 0; r < k.n_results; r += MOST_RESULTS) {
        float *to = (float *)(uintptr_t)x->rows.at + (size_t)r * s->d_model;
        sl_fast_moe b = batch_of(x, c->layer, sl_mem_at(e->x), to);
        run_results(x, &k, r, SL_MIN(MOST_RESULTS, k.n_results - r), &b);
    }
    hand_out_results(x, &k, place);
    if (k.n_ours == pairs) return true;
    leave_others(&k, e, lists);
    return false;
}

/* ---- a call ---- */

bool sl_cuda_experts_run(sl_cuda_experts *x, sl_stage_call *c, sl_arena *lists) {
    const sl_stage_experts *e = &c->experts;
    const uint32_t pairs = e->first[e->n_groups], n_rows = rows_of(e);
    if (owes_bits(x)) return run_exact(x, c, lists);
    if (!e->to || pairs == 0) return pairs == 0;
    if (n_rows > UINT16_MAX) return false; /* blocks of a grid */
    uint32_t *place = sl_arena_take(lists, 3 * (size_t)n_rows, sizeof *place);
    SL_ASSERT(place);
    if (!find_places(e, n_rows, place)) return false;
    const bool direct = same_places(e, n_rows, place);
    if (!put_experts(x, c, NULL)) return true;
    sl_fast_moe b = batch_of(x, c->layer, sl_mem_at(e->x),
                             direct ? sl_mem_at(e->part[0].rows) : (float *)(uintptr_t)x->rows.at);
    list_pairs(x, e, n_rows, place + n_rows, &b);
    sl_cuda_fast_moe(x->c, &b);
    sl_cuda_fence(x->c);
    if (!direct) hand_out(x, e, n_rows, place, place + n_rows);
    return true;
}

/* ---- rows that stay inside ---- */

static sl_status fill_table(sl_cuda_experts *x, sl_err *err) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    sl_expert_mats m;
    sl_status st = SL_OK;
    for (uint32_t b = 0; st == SL_OK && b < s->n_moe; b++)
        for (uint32_t e = 0; st == SL_OK && e < s->n_experts; e++)
            if (sl_model_expert(x->model, s->moe_layer[b], e, &m))
                st = put_expert(x, b, e, &m, err);
    return st;
}

sl_status sl_cuda_experts_table(sl_cuda_experts *x, uint32_t max_rows, sl_err *err) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    const size_t pairs = (size_t)max_rows * s->top_k, wide = (size_t)s->d_model * sizeof(float);
    sl_status st = sl_cuda_experts_reserve(x, (uint32_t)pairs, err);
    if (st == SL_OK) st = take(x, pairs * sizeof(uint32_t), &x->expert, err);
    if (st == SL_OK) st = take(x, pairs * sizeof(float), &x->gate, err);
    if (st == SL_OK && s->d_ff_shared) st = take(x, max_rows * wide, &x->shared, err);
    return st == SL_OK ? fill_table(x, err) : st;
}

bool sl_cuda_experts_whole(const sl_cuda_experts *x, uint32_t n) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    const size_t all = (size_t)SL_MIN(n, s->n_moe) * s->n_experts;
    for (size_t i = 0; i < all; i++)
        if (!x->known[i]) return false;
    return true;
}

void sl_cuda_experts_inside(sl_cuda_experts *x, uint32_t layer, uint32_t n, const float *h,
                            uint64_t heard, float *y, bool add, uint64_t since) {
    const sl_model_spec *s = sl_model_spec_of(x->model);
    sl_fast_moe b = batch_of(x, layer, h, y);
    b.n_rows = n;
    b.n_pairs = n * s->top_k;
    b.top_k = s->top_k;
    b.id = (const uint32_t *)(uintptr_t)x->expert.at;
    b.gate = (const float *)(uintptr_t)x->gate.at;
    b.heard = (uint32_t *)(uintptr_t)heard;
    b.x16 = (const uint16_t *)(uintptr_t)sl_cuda_rounded_rows(x->c, h, n, s->d_model, since);
    b.add = add;
    sl_cuda_fast_moe(x->c, &b);
}
