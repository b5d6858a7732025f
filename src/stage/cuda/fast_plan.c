/* Plans of routed experts in numerics fast (fast_experts.h). */
#include "stage/cuda/fast_experts.h"

#include "base/status.h"
#include "stage/cuda/product_room.h"

#include <string.h>

#define ALIGN 256

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Most groups of at most cap pairs, and pieces of fast_big.cu or fast_lines.cu. */
static size_t most_groups(size_t pairs, uint32_t n_experts, uint32_t cap) {
    return least(pairs, n_experts + pairs / cap);
}

static size_t most_pieces(size_t pairs, uint32_t n_experts) {
    return 2 * least(pairs, n_experts + pairs / (2 * SL_FAST_LINES_WIDTH));
}

/* Blocks that sort. */
static size_t sort_blocks(size_t pairs) {
    return (pairs + SL_FAST_SORT_PAIRS - 1) / SL_FAST_SORT_PAIRS;
}

/* Scratch: counters; how long lists are; lists; what blocks have counted; rows of x in bf16; of
 * each pair a row of d_ff in bf16, and one of d_model in bf16, or in f32 where few rows are
 * streamed. */
#define STREAM_PAIRS 512u /* most pairs that are */
typedef struct fast_room {
    size_t counts, group, piece, x_row, weight, place, rank, count, x16, mid, part, end;
} fast_room;

static fast_room room_of(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                         size_t pairs) {
    fast_room r;
    r.counts = SL_FAST_ZEROED;
    r.group = r.counts + aligned(sizeof(sl_fast_counts));
    r.piece = r.group + aligned(most_groups(pairs, n_experts, 8) * sizeof(sl_fast_group));
    r.x_row = r.piece + aligned(most_pieces(pairs, n_experts) * sizeof(sl_fast_piece));
    r.weight = r.x_row + aligned(pairs * 4);
    r.place = r.weight + aligned(pairs * 4);
    r.rank = r.place + aligned(pairs * 4);
    r.count = r.rank + aligned(pairs * 4);
    r.x16 = r.count + aligned(sort_blocks(pairs) * (n_experts + 3u) * 4);
    r.mid = r.x16 + aligned((size_t)n_rows * d_model * 2);
    r.part = r.mid + aligned(pairs * d_ff * 2);
    r.end = r.part + aligned(pairs * d_model * 2 + least(pairs, STREAM_PAIRS) * d_model * 2);
    return r;
}

size_t sl_fast_scratch_bytes(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                             uint32_t n_pairs) {
    return room_of(d_model, d_ff, n_experts, n_rows, n_pairs).end;
}

size_t sl_fast_exact_bytes(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                           uint32_t n_pairs) {
    const fast_room r = room_of(d_model, d_ff, n_experts, n_rows, n_pairs);
    return r.part + aligned((size_t)n_pairs * d_model * sizeof(float));
}

/* Behind the lists where types are said: codes of rows of x; of each pair a row of d_ff in
 * f32, its codes, and a row of d_model in f32. */
typedef struct groups_room {
    size_t codes, mid, mid_codes, part, end;
} groups_room;

/* Codes of 32 values with a scale are the longer ones. */
static groups_room groups_room_of(uint32_t d_model, uint32_t d_ff, uint32_t n_experts,
                                  uint32_t n_rows, size_t pairs) {
    groups_room r = {.codes = room_of(d_model, d_ff, n_experts, 0, pairs).x16};
    r.mid = r.codes + aligned(n_rows * sl_act_row_bytes(SL_ACT_32, d_model));
    r.mid_codes = r.mid + aligned(pairs * d_ff * sizeof(float));
    r.part = r.mid_codes + aligned(pairs * sl_act_row_bytes(SL_ACT_32, d_ff));
    r.end = r.part + aligned(pairs * d_model * sizeof(float));
    return r;
}

size_t sl_fast_groups_bytes(uint32_t d_model, uint32_t d_ff, uint32_t n_experts, uint32_t n_rows,
                            uint32_t n_pairs) {
    return groups_room_of(d_model, d_ff, n_experts, n_rows, n_pairs).end;
}

static bool is_ints(sl_dtype t) {
    return sl_act_is_int8(sl_act_kind_of(t));
}

bool sl_fast_is_float(sl_dtype t) {
    return t == SL_F16 || t == SL_BF16 || t == SL_F8_E4M3;
}

static bool has_groups(sl_dtype t, uint32_t k) {
    return sl_fast_is_float(t) || (is_ints(t) && k % sl_act_block(sl_act_kind_of(t)) == 0);
}

bool sl_fast_groups_fit(uint32_t d_model, uint32_t d_ff, sl_fast_types types) {
    return has_groups(types.up, d_model) && has_groups(types.down, d_ff);
}

/* Rows that an expert has on average. */
static uint32_t mean_of(const sl_fast_moe *m) {
    return (m->n_pairs + m->n_experts - 1) / m->n_experts;
}

/* What the functions below share. */
typedef struct planner {
    const sl_fast_moe *m;
    fast_room room;
    sl_fast_plan *p;
} planner;

static void *at(const planner *f, size_t offset) {
    return f->m->scratch + offset;
}

static const uint16_t *rows16(const planner *f) {
    return f->m->x16 ? f->m->x16 : at(f, f->room.x16);
}

static sl_fast_launch *next(const planner *f, sl_cuda_kernel_id kernel, uint32_t grid_x,
                            uint32_t grid_y, uint32_t threads, uint32_t shared) {
    SL_ASSERT(f->p->n < SL_FAST_LAUNCHES);
    sl_fast_launch *l = &f->p->launch[f->p->n++];
    memset(l, 0, sizeof *l);
    l->kernel = kernel;
    l->grid_x = grid_x;
    l->grid_y = grid_y;
    l->threads = threads;
    l->shared = shared;
    return l;
}

#define SHARED_BYTES (226u << 10) /* of a block, at most */

/* Rows of x in bf16 that have to be made. */
static uint64_t rounded_values(const sl_fast_moe *m) {
    return m->x16 ? 0 : (uint64_t)m->n_rows * m->d_model;
}

static sl_fast_round_args round_args(const planner *f, uint64_t n) {
    return (sl_fast_round_args){f->m->x, at(f, f->room.x16), n};
}

/* What is sorted: groups of at most cap pairs, or pieces for clusters of so many blocks; rounds:
 * rows of x in bf16, too. */
typedef struct sorting {
    uint32_t cap, cluster, width, room; /* of pieces: most pairs, bytes in front of stages */
    bool rounds;
} sorting;

static void plan_lists(const planner *f, const sorting *s, sl_fast_sort_args *a) {
    const sl_fast_moe *m = f->m;
    a->expert = m->expert;
    a->id = m->id;
    a->gate = m->gate;
    a->pair_row = m->pair_row;
    a->heard = m->heard;
    a->count = at(f, f->room.count);
    a->rank = at(f, f->room.rank);
    a->n_pairs = m->n_pairs;
    a->top_k = m->top_k;
    a->n_experts = m->n_experts;
    a->cap = s->cap;
    a->pair = s->cluster;
    a->width = s->width;
    a->stage_room = SHARED_BYTES - s->room - 1024;
    a->group = at(f, f->room.group);
    a->piece = at(f, f->room.piece);
    a->x_row = at(f, f->room.x_row);
    a->weight = at(f, f->room.weight);
    a->place = at(f, f->room.place);
    a->counts = at(f, f->room.counts);
}

/* As fast_sort.cu has it. */
#define SORT_THREADS 1024

static void plan_sort_one(const planner *f, const sorting *s) {
    const uint64_t n = s->rounds ? rounded_values(f->m) : 0;
    plan_lists(f, s, &next(f, SL_CUDA_sl_k_fast_sort, 1, 1, SORT_THREADS, 0)->args.sort);
    if (n)
        next(f, SL_CUDA_sl_k_fast_round, (uint32_t)((n / 8 + 255) / 256), 1, 256, 0)->args.round =
            round_args(f, n);
}

/* By many blocks: pairs are counted where one block does not have them all, and rows of x rounded
 * beside that. */
static void plan_sort_many(const planner *f, const sorting *s) {
    const sl_fast_moe *m = f->m;
    const uint32_t blocks = (uint32_t)sort_blocks(m->n_pairs), counting = blocks > 1 ? blocks : 0;
    const uint64_t n = s->rounds ? rounded_values(m) : 0;
    const uint64_t each = (uint64_t)SL_FAST_ROUND_VALUES * SL_FAST_SORT_THREADS;
    const uint32_t all = counting + (uint32_t)((n + each - 1) / each);
    if (all)
        next(f, SL_CUDA_sl_k_fast_count, all, 1, SL_FAST_SORT_THREADS, 0)->args.count =
            (sl_fast_count_args){.id = m->id,
                                 .n_pairs = m->n_pairs,
                                 .n_experts = m->n_experts,
                                 .blocks = counting,
                                 .count = at(f, f->room.count),
                                 .rank = at(f, f->room.rank),
                                 .round = round_args(f, n)};
    sl_fast_launch *l =
        next(f, SL_CUDA_sl_k_fast_sort_many, SL_MAX(blocks, 1u), 1, SL_FAST_SORT_THREADS, 0);
    plan_lists(f, s, &l->args.sort);
    l->args.sort.blocks = counting;
}

static void plan_sort(const planner *f, const sorting *s) {
    if (f->m->many)
        plan_sort_many(f, s);
    else
        plan_sort_one(f, s);
}

/* Of parts in f32 (`wide`) or in bf16. */
static void plan_sum(const planner *f, const void *part, bool wide) {
    const sl_fast_moe *m = f->m;
    sl_fast_launch *l = next(f, SL_CUDA_sl_k_fast_sum, (m->d_model + 1023) / 1024,
                             m->n_out ? m->n_out : m->n_rows, 128, 0);
    l->args.sum.part = wide ? part : NULL;
    l->args.sum.part16 = part;
    l->args.sum.place = at(f, f->room.place);
    l->args.sum.row_first = m->row_first;
    l->args.sum.y = m->y;
    l->args.sum.d_model = m->d_model;
    l->args.sum.top_k = m->top_k;
    l->args.sum.add = m->add;
}

static void plan_up(const planner *f, sl_fast_launch *l) {
    sl_fast_up_args *a = &l->args.up;
    a->group = at(f, f->room.group);
    a->counts = at(f, f->room.counts);
    a->x_row = at(f, f->room.x_row);
    a->x = f->m->x;
    a->x16 = rows16(f);
    a->mid = at(f, f->room.mid);
    a->d_model = f->m->d_model;
    a->d_ff = f->m->d_ff;
    a->limit = f->m->limit;
}

static void plan_down(const planner *f, sl_fast_launch *l) {
    sl_fast_down_args *a = &l->args.down;
    a->group = at(f, f->room.group);
    a->counts = at(f, f->room.counts);
    a->mid = at(f, f->room.mid);
    a->weight = at(f, f->room.weight);
    a->part = at(f, f->room.part);
    a->part16 = at(f, f->room.part);
    a->d_model = f->m->d_model;
    a->d_ff = f->m->d_ff;
}

/* As fast_experts.cu has it: SL_STREAM_THREADS, sl_stream_stride, SL_DOWN_COLS. */
#define STREAM_THREADS   256
#define STREAM_DOWN_COLS 64

static uint32_t stream_shared(uint32_t rows, uint32_t k) {
    return rows * (((k + 63) / 64 * 64 + 32) * 2 + STREAM_THREADS * 2); /* rows, sums */
}

/* Which of the kernels of 8, 16 and 32 rows. */
static uint32_t stream_kernel(const sl_fast_moe *m) {
    const uint32_t mean = mean_of(m);
    return m->n_rows <= 8 || mean <= 2 ? 0 : mean <= 6 ? 1 : 2;
}

/* Whole rows lie in shared memory: those of the widest models do not fit. */
static bool can_stream(const sl_fast_moe *m) {
    const uint32_t bytes = stream_shared(8u << stream_kernel(m), SL_MAX(m->d_model, m->d_ff));
    return m->n_pairs <= STREAM_PAIRS && (!m->most_shared || bytes <= m->most_shared);
}

static void plan_stream(const planner *f) {
    const sl_fast_moe *m = f->m;
    const uint32_t i = stream_kernel(m), cap = 8u << i;
    const uint32_t groups = (uint32_t)most_groups(m->n_pairs, m->n_experts, cap);
    static const sl_cuda_kernel_id up[] = {SL_CUDA_sl_k_fast_up_8, SL_CUDA_sl_k_fast_up_16,
                                           SL_CUDA_sl_k_fast_up_32};
    static const sl_cuda_kernel_id down[] = {SL_CUDA_sl_k_fast_down_8, SL_CUDA_sl_k_fast_down_16,
                                             SL_CUDA_sl_k_fast_down_32};
    plan_sort(f, &(sorting){.cap = cap});
    plan_up(f, next(f, up[i], (m->d_ff + 15) / 16, groups, STREAM_THREADS,
                    stream_shared(cap, m->d_model)));
    plan_down(f, next(f, down[i], (m->d_model + STREAM_DOWN_COLS - 1) / STREAM_DOWN_COLS, groups,
                      STREAM_THREADS, stream_shared(cap, m->d_ff)));
    plan_sum(f, at(f, f->room.part), true);
}

/* As fast_tiles.cu has it. */
#define TILE_THREADS 256
#define TILE_ROWS    128
#define TILE_K       64

static void plan_tiles(const planner *f, bool exact) {
    const sl_fast_moe *m = f->m;
    const uint32_t mean = mean_of(m), i = m->n_rows <= 32 || mean <= 16 ? 0 : mean <= 48 ? 1 : 2;
    const uint32_t cap = 32u << i, groups = (uint32_t)most_groups(m->n_pairs, m->n_experts, cap);
    const uint32_t shared = (i == 2 ? 3 : 4) * (TILE_ROWS + cap) * TILE_K * 2;
    static const sl_cuda_kernel_id up[] = {
        SL_CUDA_sl_k_fast_tile_up_32, SL_CUDA_sl_k_fast_tile_up_64, SL_CUDA_sl_k_fast_tile_up_128};
    static const sl_cuda_kernel_id down[2][3] = {
        {SL_CUDA_sl_k_fast_tile_down_32, SL_CUDA_sl_k_fast_tile_down_64,
         SL_CUDA_sl_k_fast_tile_down_128},
        {SL_CUDA_sl_k_exact_down_32, SL_CUDA_sl_k_exact_down_64, SL_CUDA_sl_k_exact_down_128}};
    plan_sort(f, &(sorting){.cap = cap, .rounds = true});
    plan_up(f, next(f, up[i], (m->d_ff + 63) / 64, groups, TILE_THREADS, shared));
    plan_down(f, next(f, down[exact][i], (m->d_model + TILE_ROWS - 1) / TILE_ROWS, groups,
                      TILE_THREADS, shared));
    plan_sum(f, at(f, f->room.part), exact);
}

/* As fast_small.cu has it. */
#define SMALL_THREADS 320
#define SMALL_SLOTS   16
#define SMALL_STAGE   512 /* most values of k in a stage */
#define SMALL_TABLE   384 /* most experts whose table is copied to shared memory */

/* Values of k in a stage: all of k in as few equal parts as fit; 0: it cannot be cut so. */
static uint32_t small_stage(uint32_t k) {
    const uint32_t parts = (k + SMALL_STAGE - 1) / SMALL_STAGE;
    return parts && k % (parts * 64) == 0 ? k / parts : 0;
}

static bool small_args(const sl_fast_moe *m, sl_fast_small_args *a) {
    const uint32_t limit = m->shared ? m->shared : SHARED_BYTES;
    memset(a, 0, sizeof *a);
    a->up_k = small_stage(m->d_model);
    a->down_k = small_stage(m->d_ff);
    if (!m->sms || !a->up_k || !a->down_k || m->n_rows > SL_FAST_SMALL_ROWS) return false;
    if (m->n_pairs > SL_FAST_SMALL_PAIRS) return false;
    const uint32_t up = 16 * (a->up_k * 2 + SL_FAST_SMALL_PAD);
    const uint32_t down = (16 + m->n_rows) * (a->down_k * 2 + SL_FAST_SMALL_PAD);
    const uint32_t table = (uint32_t)(m->n_experts * sizeof(sl_fast_expert));
    a->slot_bytes = up > down ? up : down;
    a->x_at = SL_FAST_SMALL_ROOM;
    a->table_at = a->x_at + m->n_rows * (m->d_model * 2 + SL_FAST_SMALL_PAD);
    a->stage_at = (uint32_t)aligned(a->table_at + (m->n_experts <= SMALL_TABLE ? table : 0));
    if (m->n_experts > SMALL_TABLE) a->table_at = 0;
    if (a->stage_at > limit) return false;
    a->slots = (limit - a->stage_at) / a->slot_bytes;
    if (a->slots > SMALL_SLOTS) a->slots = SMALL_SLOTS;
    return a->slots >= 2;
}

/* Both products in one launch (3), or one each (1, then 2). */
static uint32_t first_phase(const sl_fast_moe *m) {
    return m->together && !m->apart ? 3 : 1;
}

static uint32_t last_phase(const sl_fast_moe *m) {
    return m->together && !m->apart ? 3 : 2;
}

static void plan_small(const planner *f) {
    const sl_fast_moe *m = f->m;
    sl_fast_small_args a;
    if (!small_args(m, &a)) return;
    a.expert = m->expert;
    a.id = m->id;
    a.gate = m->gate;
    a.pair_row = m->pair_row;
    a.heard = m->heard;
    a.x = m->x;
    a.mid = at(f, f->room.mid);
    a.y = m->y;
    a.ready = at(f, 0);
    a.n_rows = m->n_rows;
    a.n_pairs = m->n_pairs;
    a.top_k = m->top_k;
    a.n_experts = m->n_experts;
    a.d_model = m->d_model;
    a.d_ff = m->d_ff;
    a.add = m->add;
    a.limit = m->limit;
    for (uint32_t phase = first_phase(m); phase <= last_phase(m); phase++) {
        a.phases = phase;
        next(f, SL_CUDA_sl_k_fast_small, m->sms, 1, SMALL_THREADS,
             a.stage_at + a.slots * a.slot_bytes)
            ->args.small = a;
    }
}

/* As big.h has it. */
#define BIG_THREADS 384
#define BIG_PIECES  (SL_FAST_ZEROED / 4 - 64) /* that have counters */

/* Two pieces of one expert at once pay when one alone is wide: the tensor cores' time then is more
 * than the memory's. */
static uint32_t big_cluster(const sl_fast_moe *m) {
    return m->together && mean_of(m) >= 160 ? 2 : 1;
}

static bool can_big(const sl_fast_moe *m) {
    return m->sms && m->maps && most_pieces(m->n_pairs, m->n_experts) <= BIG_PIECES;
}

/* By fast_big.cu, or lines: by fast_lines.cu. */
static void plan_big(const planner *f, bool lines) {
    static const sl_cuda_kernel_id kernel[2][2] = {
        {SL_CUDA_sl_k_fast_big, SL_CUDA_sl_k_fast_big_pair},
        {SL_CUDA_sl_k_fast_lines, SL_CUDA_sl_k_fast_lines_pair}};
    const sl_fast_moe *m = f->m;
    const uint32_t cluster = big_cluster(m);
    const sorting s = {.cluster = cluster,
                       .width = lines ? SL_FAST_LINES_WIDTH : SL_FAST_BIG_WIDTH,
                       .room = lines ? SL_FAST_LINES_ROOM : SL_FAST_BIG_ROOM,
                       .rounds = true};
    sl_fast_big_args a;
    memset(&a, 0, sizeof a);
    a.piece = at(f, f->room.piece);
    a.counts = at(f, f->room.counts);
    a.x_row = at(f, f->room.x_row);
    a.weight = at(f, f->room.weight);
    a.x16 = rows16(f);
    a.mid = at(f, f->room.mid);
    a.part16 = at(f, f->room.part);
    a.done = at(f, 0);
    a.ready = a.done + 64;
    a.d_model = m->d_model;
    a.d_ff = m->d_ff;
    a.room = s.room;
    a.limit = m->limit;
    plan_sort(f, &s);
    for (uint32_t phase = first_phase(m); phase <= last_phase(m); phase++) {
        a.phases = phase;
        next(f, kernel[lines][cluster - 1], m->sms / cluster * cluster, 1, BIG_THREADS,
             SHARED_BYTES)
            ->args.big = a;
    }
    plan_sum(f, at(f, f->room.part), false);
}

/* ---- groups of pairs, of types that are said ---- */

#define GROUP_CHUNK    256 /* values of a row in a stage */
#define MOST_FEW_FLOAT 32  /* rows of an expert that are few for products of f32 */

/* Rows of x as matrices of type t take them: codes, made at `codes`, or as they are. */
static const uint8_t *plan_rows(const planner *f, const float *x, sl_dtype t, uint32_t n,
                                uint32_t k, uint8_t *codes) {
    const sl_act_kind kind = sl_act_kind_of(t);
    if (!is_ints(t)) return (const uint8_t *)x;
    next(f, SL_CUDA_sl_k_quantise, sl_quantise_blocks(n, k), 1, SL_QUANTISE_THREADS, 0)
        ->args.quantise = (sl_quantise_args){.x = x,
                                             .dst = codes,
                                             .dst_stride = sl_act_row_bytes(kind, k),
                                             .n_rows = n,
                                             .x_stride = k,
                                             .k = k,
                                             .block = sl_act_block(kind),
                                             .aligned = true};
    return codes;
}

/* Kernels of few pairs and of more, by type. */
static sl_cuda_kernel_id group_kernel(sl_dtype t, bool few) {
#define OF(type, of_few, of_more, name)                                                            \
    case type:                                                                                     \
        return few ? SL_CUDA_sl_k_##of_few##_##name : SL_CUDA_sl_k_##of_more##_##name
    switch (t) {
        OF(SL_F16, group_few, group_many, f16);
        OF(SL_BF16, group_few, group_many, bf16);
        OF(SL_F8_E4M3, group_few, group_many, f8);
        OF(SL_Q8_0, group_few_int8, group_int8, q8_0);
        OF(SL_Q4_0, group_few_int8, group_int8, q4_0);
        OF(SL_MXFP4, group_few_int8, group_int8, mxfp4);
        OF(SL_Q4_K, group_few_int8, group_int8, q4_k);
        OF(SL_Q5_K, group_few_int8, group_int8, q5_k);
        OF(SL_Q6_K, group_few_int8, group_int8, q6_k);
    default:
        SL_ASSERT(false);
        return SL_CUDA_KERNEL_COUNT;
    }
#undef OF
}

/* A group's tile in a kernel. */
typedef struct group_tile {
    sl_product_shape shape;
    uint32_t threads, shared;
} group_tile;

/* few_tile.h and ints_tile.h: narrower where a block may not have as much memory as it would like.
 */
static group_tile few_group(const sl_fast_moe *m, sl_dtype t, uint32_t cap, uint32_t k) {
    const uint32_t chunks = (k + GROUP_CHUNK - 1) / GROUP_CHUNK;
    const uint32_t stages = SL_MIN(SL_FEW_STAGES, chunks);
    group_tile g = {.shape.cols = 2 * SL_FEW_COLS};
    do {
        g.shape.cols /= 2;
        g.shape.room = sl_product_room_of(t, is_ints(t) ? sl_act_kind_of(t) : SL_ACT_NONE, cap,
                                          g.shape.cols, GROUP_CHUNK);
        g.shared = stages * g.shape.room.stage;
    } while (m->most_shared && g.shared > m->most_shared && g.shape.cols > 16);
    g.threads = is_ints(t) ? 2 * g.shape.cols : SL_FEW_THREADS;
    return g;
}

/* int8_tile.h and many_tile.h. */
static group_tile more_group(sl_dtype t, uint32_t cap) {
    group_tile g = {.shape.cols = SL_MANY_COLS, .threads = SL_MANY_THREADS};
    g.shared = 2 * (SL_MANY_X_WORDS + SL_MANY_W_WORDS) * (uint32_t)sizeof(float);
    if (!is_ints(t)) return g;
    g.shape.cols = SL_INT8_COLS;
    g.shape.room = sl_product_room_of(t, sl_act_kind_of(t), cap, SL_INT8_COLS, GROUP_CHUNK);
    g.threads = 4 * SL_INT8_COLS;
    g.shared = SL_INT8_STAGES * g.shape.room.stage;
    return g;
}

/* The product with gate and up, or with down: n columns. */
static void plan_group(const planner *f, sl_dtype t, uint32_t cap, const sl_group_args *has) {
    const sl_fast_moe *m = f->m;
    const bool few = cap <= SL_FEW_ROWS;
    const group_tile g = few ? few_group(m, t, cap, has->k) : more_group(t, cap);
    const uint32_t across = has->up ? g.shape.cols / 2 : g.shape.cols;
    sl_group_args a = *has;
    a.group = at(f, f->room.group);
    a.counts = at(f, f->room.counts);
    a.beside = m->beside;
    a.x_row = at(f, f->room.x_row);
    a.weight = at(f, f->room.weight);
    a.x_stride = is_ints(t) ? sl_act_row_bytes(sl_act_kind_of(t), a.k) : a.k * sizeof(float);
    a.limit = m->limit;
    a.shape = g.shape;
    next(f, group_kernel(t, few), (a.n + across - 1) / across,
         (uint32_t)most_groups(m->n_pairs, m->n_experts, cap), g.threads, g.shared)
        ->args.group = a;
}

/* Pairs of a group: as many as kernels of both products take. */
static uint32_t group_cap(const sl_fast_moe *m) {
    const bool up = sl_fast_is_float(m->types.up), down = sl_fast_is_float(m->types.down);
    const uint32_t few = up && down ? MOST_FEW_FLOAT : SL_FEW_ROWS;
    if (mean_of(m) <= few) return SL_FEW_ROWS;
    return up || down ? SL_MANY_ROWS : SL_INT8_ROWS;
}

static void plan_groups(const planner *f) {
    const sl_fast_moe *m = f->m;
    const groups_room r = groups_room_of(m->d_model, m->d_ff, m->n_experts, m->n_rows, m->n_pairs);
    const uint32_t cap = group_cap(m);
    float *mid = at(f, r.mid), *part = at(f, r.part);
    sl_group_args up = {.y = mid, .n = m->d_ff, .k = m->d_model, .up = true};
    sl_group_args down = {.y = part, .n = m->d_model, .k = m->d_ff};
    plan_sort(f, &(sorting){.cap = cap});
    up.x = plan_rows(f, m->x, m->types.up, m->n_rows, m->d_model, at(f, r.codes));
    plan_group(f, m->types.up, cap, &up);
    down.x = plan_rows(f, mid, m->types.down, m->n_pairs, m->d_ff, at(f, r.mid_codes));
    plan_group(f, m->types.down, cap, &down);
    plan_sum(f, part, true);
}

static bool is_groups(const sl_fast_moe *m) {
    return m->types.up != (sl_dtype)0;
}

bool sl_fast_can(const sl_fast_moe *m, sl_fast_way way) {
    sl_fast_small_args a;
    if (way == SL_FAST_GROUPS || is_groups(m)) return way == SL_FAST_GROUPS && is_groups(m);
    if (way == SL_FAST_STREAM) return can_stream(m);
    if (way == SL_FAST_SMALL) return small_args(m, &a);
    if (way == SL_FAST_VEC || way == SL_FAST_RING)
        return sl_fast_vec_plan(m, way == SL_FAST_RING, NULL, NULL);
    return (way != SL_FAST_BIG && way != SL_FAST_LINES) || can_big(m);
}

static sl_fast_way choose(const sl_fast_moe *m) {
    if (is_groups(m)) return SL_FAST_GROUPS;
    if (mean_of(m) > 64 && can_big(m)) return m->many ? SL_FAST_LINES : SL_FAST_BIG;
    const sl_fast_way few = m->few.ring ? SL_FAST_RING : SL_FAST_VEC;
    if (sl_fast_can(m, few)) return few;
    return m->n_rows <= 8 && can_stream(m) ? SL_FAST_STREAM : SL_FAST_TILES;
}

void sl_fast_plan_make(const sl_fast_moe *m, sl_fast_way way, sl_fast_plan *out) {
    const planner f = {m, room_of(m->d_model, m->d_ff, m->n_experts, m->n_rows, m->n_pairs), out};
    if (way == SL_FAST_AUTO || !sl_fast_can(m, way)) way = choose(m);
    out->n = 0;
    if (way == SL_FAST_VEC || way == SL_FAST_RING)
        (void)sl_fast_vec_plan(m, way == SL_FAST_RING, at(&f, f.room.mid), out);
    else if (way == SL_FAST_SMALL)
        plan_small(&f);
    else if (way == SL_FAST_GROUPS)
        plan_groups(&f);
    else if (way == SL_FAST_STREAM)
        plan_stream(&f);
    else if (way == SL_FAST_BIG || way == SL_FAST_LINES)
        plan_big(&f, way == SL_FAST_LINES);
    else
        plan_tiles(&f, way == SL_FAST_EXACT);
}
