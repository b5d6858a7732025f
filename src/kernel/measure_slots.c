/* How long each table takes for one call of each slot. Sizes are those of a piece of work as the
 * loops of kernel.c cut it. Weights, keys and values come from where they come from in a model:
 * from beyond the second cache, each call with others than the last. A form that computes faster
 * may well ask for them too late. */
#include "kernel/choice.h"

#include "base/clock.h"
#include "base/mem.h"
#include "kernel/cpu.h"

#define K          1024u /* length of products */
#define COLS       32u
#define ROWS       16u /* of slots for many */
#define DIM        128u
#define N          4096u /* of vectors */
#define TURNS      7u /* calls of each table in turn, of which the shortest counts; short ones ... */
#define SHORT_NS   5000u
#define TURNS_MORE 20u /* ... have more */

/* A table this much slower than the best of a turn has no more turns. */
#define HOPELESS 3u

/* Weights of one call, and a ring of them for each table: together no second cache holds them, and
 * what a call asks for ahead is for the same table. */
#define PIECE (COLS * K * sizeof(float))
#define RUN   (4 * PIECE) /* of tiles in turn */
#define RING  (6 * RUN)
#define RINGS (SL_TABLES_MAX * RING)

typedef struct lab {
    uint8_t *ring;
    size_t at[SL_TABLES_MAX]; /* where the last call's weights lie in a table's ring */
    size_t table;             /* whose turn it is */
    size_t bytes;             /* of a call's weights, 0: it has none */
    bool flush_any;           /* lines leave caches in any order */
    _Alignas(64) float x[ROWS][K], y[N], z[N], a[N];
    _Alignas(64) uint8_t act[ROWS][2 * K], row[2 * N];
    double freq[N];
    float state[2][DIM * DIM]; /* of a head of linear attention */
} lab;

static void fill(lab *l) {
    for (uint32_t i = 0; i < ROWS * K; i++) l->x[i / K][i % K] = (float)(i % 101) * 0.01f - 0.5f;
    for (uint32_t i = 0; i < N; i++) l->freq[i] = 1.0 / (1 + i);
}

/* What calls have changed is as before: no vector grows until it is slow to compute with. */
static void fill_vectors(lab *l) {
    for (uint32_t i = 0; i < N; i++) l->y[i] = l->z[i] = l->a[i] = (float)(i % 97) * 0.01f - 0.4f;
}

/* Any 16 bits that are an ordinary number as f16 or bf16, scales of blocks, and halves of f32;
 * either byte is a scale of MXFP4 whose products are no subnormals, which are slow. */
static void fill_ring(lab *l) {
    for (size_t i = 0; i < RINGS; i += 2) {
        size_t any = i * 7919 % 2048;
        uint16_t h = (uint16_t)(0x3030 + (any / 128 % 8 << 8) + any % 128);
        memcpy(l->ring + i, &h, sizeof h);
    }
}

_Static_assert(SL_TILE_COLS *K / 32 * 34 <= PIECE, "a piece holds the most weights of 8 bits");
_Static_assert(SL_TILE_ROWS *SL_TILE_COLS <= N, "results fit into a vector");

/* Of one call, 0: it reads none. Many rows compute for so long that where they begin does not
 * count. */
static size_t weights_of(const sl_slot *s) {
    switch (s->kernel) {
    case SL_KERNEL_gemm_tile:
    case SL_KERNEL_int8_tile:
    case SL_KERNEL_strip_tile:
    case SL_KERNEL_bf16_tile:
    case SL_KERNEL_parts_tile:
        return s->amount == SL_MANY ? PIECE : RUN;
    case SL_KERNEL_attn_page:
    case SL_KERNEL_widen:
    case SL_KERNEL_widen_e4m3:
        return PIECE;
    default:
        return 0;
    }
}

/* Of the table's ring: where weights of the `turn`th call from now on lie. */
static size_t place_of(const lab *l, size_t turn) {
    return (l->at[l->table] / l->bytes + turn) * l->bytes % RING;
}

static const uint8_t *next_weights(lab *l) {
    const size_t at = l->at[l->table] = place_of(l, 1);
    return l->ring + l->table * RING + at;
}

#if defined(__x86_64__)
/* Lines may go side by side: on some processors an ordered line takes ten times as long. */
__attribute__((target("clflushopt"))) static void flush_any_order(const uint8_t *w, size_t n) {
    for (size_t i = 0; i < n; i += 64) __builtin_ia32_clflushopt((void *)(uintptr_t)(w + i));
}

static void flush_in_order(const uint8_t *w, size_t n) {
    for (size_t i = 0; i < n; i += 64) __builtin_ia32_clflush(w + i);
}
#endif

/* Sends weights of the next two tiles or runs of them, and what these may ask for behind them, back
 * to memory: a third cache may hold all rings, and no model. Other processors than x86 leave it to
 * the rings. */
static void forget_weights(const lab *l) {
#if defined(__x86_64__)
    for (size_t turn = 1; l->bytes && turn <= 2; turn++)
        (l->flush_any ? flush_any_order : flush_in_order)(
            l->ring + l->table * RING + place_of(l, turn), l->bytes + PIECE / 2);
    __builtin_ia32_mfence();
#else
    (void)l;
#endif
}

/* Tiles which go on where the last one ended: the first starts cold, and what a form asks for ahead
 * helps only those behind it. */
static void gemm_of(const sl_kernels *k, const sl_slot *s, uint32_t rows, lab *l) {
    static const float scales[K / SL_F8_BLOCK] = {1, 1, 1, 1, 1, 1, 1, 1};
    const size_t bytes = COLS * sl_dtype_row_bytes(s->dtype, K);
    const uint8_t *w = next_weights(l);
    const float *x[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) x[r] = l->x[r];
    for (size_t at = 0; at + bytes <= l->bytes; at += bytes) {
        const sl_mat mat = {w + at, COLS, K, s->dtype, 0, scales};
        sl_call_gemm_tile(k, &(sl_gemm_tile){.w = mat.data,
                                             .w_stride = sl_mat_stride(&mat),
                                             .dtype = s->dtype,
                                             .k = K,
                                             .n_cols = COLS,
                                             .n_rows = rows,
                                             .y_stride = COLS,
                                             .x = x,
                                             .y = l->a,
                                             .mat = &mat});
    }
}

/* Few rows are one and four: with one, all forms wait for memory, and noise would choose. */
static void call_gemm(const sl_kernels *k, const sl_slot *s, lab *l) {
    if (s->amount == SL_FEW) gemm_of(k, s, 1, l);
    gemm_of(k, s, s->amount == SL_FEW ? 4 : ROWS, l);
}

/* The same of integers with so many columns, of rows or of strips: any bytes are either. */
static void int8_of(const sl_kernels *k, const sl_slot *s, uint32_t rows, uint32_t cols, lab *l) {
    const size_t stride = sl_dtype_row_bytes(s->dtype, K), bytes = cols * stride;
    const uint8_t *x[SL_TILE_ROWS], *w = next_weights(l);
    for (uint32_t r = 0; r < rows; r++) x[r] = l->act[r % ROWS];
    for (size_t at = 0; at + bytes <= l->bytes; at += bytes) {
        const sl_act_tile t = {.w = w + at,
                               .w_stride = stride,
                               .dtype = s->dtype,
                               .k = K,
                               .n_cols = cols,
                               .n_rows = rows,
                               .y_stride = cols,
                               .x = x,
                               .y = l->a,
                               .next = w + at + bytes};
        (s->kernel == SL_KERNEL_strip_tile ? sl_call_strip_tile : sl_call_int8_tile)(k, &t);
    }
}

/* Rows and their columns as the loops cut them: a form may unpack weights for all the rows, and
 * rows for all the columns. Few rows, and strips, which are for them, are one and four. */
static void call_int8(const sl_kernels *k, const sl_slot *s, lab *l) {
    if (s->kernel == SL_KERNEL_strip_tile || s->amount == SL_FEW) {
        int8_of(k, s, 1, COLS, l);
        int8_of(k, s, 4, COLS, l);
    } else {
        int8_of(k, s, s->amount == SL_SOME ? 8 : SL_TILE_ROWS, SL_TILE_COLS, l);
    }
}

/* The same of BF16, with short rows: what a form does between weight rows counts in models, too,
 * and hardly with long ones. */
static void call_bf16(const sl_kernels *k, const sl_slot *s, lab *l) {
    const uint32_t length = K / 2, cols = PIECE / (length * 2 * sizeof(uint16_t));
    const uint8_t *x[ROWS], *w = next_weights(l);
    for (uint32_t r = 0; r < ROWS; r++) x[r] = l->act[r];
    for (const uint8_t *end = w + l->bytes; w < end; w += PIECE / 2) {
        const sl_act_tile t = {.w = w,
                               .w_stride = length * sizeof(uint16_t),
                               .dtype = SL_BF16,
                               .k = length,
                               .n_cols = cols,
                               .n_rows = s->amount == SL_FEW ? 1 : ROWS,
                               .y_stride = cols,
                               .x = x,
                               .y = l->a,
                               .next = w + PIECE / 2};
        (s->kernel == SL_KERNEL_parts_tile ? sl_call_parts_tile : sl_call_bf16_tile)(k, &t);
    }
}

static void call_page(const sl_kernels *k, const sl_slot *s, lab *l) {
    sl_attn_query q[SL_ATTN_QUERIES];
    const float *k0 = (const float *)next_weights(l), *v0 = k0 + SL_KV_PAGE_TOKENS * DIM;
    uint32_t n = s->amount == SL_FEW ? 4 : SL_ATTN_QUERIES;
    for (uint32_t i = 0; i < n; i++)
        q[i] = (sl_attn_query){
            .q = l->x[i % ROWS], .o = l->a + i * DIM, .max = 0, .last = SL_KV_PAGE_TOKENS - 1};
    sl_call_attn_page(k, &(sl_attn_page){.query = q,
                                         .n = n,
                                         .head_dim = DIM,
                                         .v_dim = DIM,
                                         .k = k0,
                                         .v = v0,
                                         .next_k = k0 + PIECE / sizeof(float),
                                         .next_v = v0 + PIECE / sizeof(float),
                                         .scale = 0.1f});
}

static void call_vector(const sl_kernels *k, const sl_slot *s, lab *l) {
    switch (s->kernel) {
    case SL_KERNEL_quantise:
        sl_call_quantise(k, l->y, N, s->kind, l->row);
        break;
    case SL_KERNEL_rms_quantise:
        sl_call_rms_quantise(k, l->y, l->z, 0.5f, &(sl_act_part){l->row, s->kind, N, 0, N});
        break;
    case SL_KERNEL_widen:
        sl_call_widen(k, next_weights(l), s->dtype, N, l->a);
        break;
    case SL_KERNEL_widen_e4m3:
        k->widen_e4m3(next_weights(l), 0x1p-3f, N, l->a);
        break;
    case SL_KERNEL_swiglu:
        k->swiglu(l->a, l->z, N);
        break;
    case SL_KERNEL_swiglu_clamped:
        k->swiglu_clamped(l->a, l->z, 1, N);
        break;
    case SL_KERNEL_gate_values:
        k->gate_values(l->a, l->z, N);
        break;
    case SL_KERNEL_taps:
        k->taps(&(sl_taps){.n_taps = 4,
                           .n = K,
                           .x = {l->x[0], l->x[1], l->x[2], l->x[3]},
                           .w = l->y,
                           .w_stride = K,
                           .y = l->a});
        break;
    case SL_KERNEL_delta:
        k->delta(&(sl_delta_step){.k_dim = DIM,
                                  .v_dim = DIM,
                                  .from = l->state[0],
                                  .to = l->state[1],
                                  .q = l->x[0],
                                  .k = l->x[1],
                                  .v = l->x[2],
                                  .decay = 0.9f,
                                  .beta = 0.5f,
                                  .o = l->a});
        break;
    case SL_KERNEL_rms_inverse:
        l->a[0] = k->rms_inverse(l->y, 1e-6f, N);
        break;
    case SL_KERNEL_center:
        k->center(l->y, N, l->a);
        break;
    case SL_KERNEL_rms_apply:
        k->rms_apply(l->y, l->z, 0.5f, N, l->a);
        break;
    case SL_KERNEL_sincos:
        k->sincos(77, l->freq, DIM / 2, l->a, l->a + DIM);
        break;
    case SL_KERNEL_rotate:
        k->rotate(l->a, l->a + N / 2, l->z, l->z + N / 2, N / 2);
        break;
    case SL_KERNEL_divide:
        k->divide(l->a, 1.01f, N);
        break;
    case SL_KERNEL_softmax:
        k->softmax(l->y, N, l->a);
        break;
    case SL_KERNEL_expv:
        k->expv(l->y, N, l->a);
        break;
    case SL_KERNEL_add:
        k->add(l->a, l->y, N);
        break;
    case SL_KERNEL_scale:
        k->scale(l->a, l->y, 0.9f, N);
        break;
    case SL_KERNEL_add_scaled:
        k->add_scaled(l->a, l->y, 1e-3f, N);
        break;
    case SL_KERNEL_to_bf16:
        k->to_bf16(l->y, N, (uint16_t *)l->a);
        break;
    default:
        break;
    }
}

/* The rounded rows that a slot multiplies, SL_ACT_NONE: it takes none. */
static sl_act_kind rows_of(const sl_slot *s) {
    if (s->kernel == SL_KERNEL_bf16_tile || s->kernel == SL_KERNEL_parts_tile) return SL_ACT_BF16;
    if (s->kernel == SL_KERNEL_strip_tile) return sl_act_kind_of(s->dtype);
    return s->kernel == SL_KERNEL_int8_tile ? sl_act_kind_of(s->dtype) : SL_ACT_NONE;
}

static void call(const sl_kernels *k, const sl_slot *s, lab *l) {
    if (s->kernel == SL_KERNEL_gemm_tile)
        call_gemm(k, s, l);
    else if (s->kernel == SL_KERNEL_int8_tile || s->kernel == SL_KERNEL_strip_tile)
        call_int8(k, s, l);
    else if (rows_of(s) == SL_ACT_BF16)
        call_bf16(k, s, l);
    else if (s->kernel == SL_KERNEL_attn_page)
        call_page(k, s, l);
    else
        call_vector(k, s, l);
}

/* The tables that compete: the base, and those that are taken by merit. */
typedef struct race {
    const sl_kernels *k[SL_TABLES_MAX]; /* NULL: does not compete */
    lab *lab;
    uint64_t until_ns;
} race;

/* One slot, all tables in turn. False: no time. The first turn, in which code and data come near,
 * does not count. */
static bool run(const race *r, const sl_slot *s, size_t slot, uint32_t ns[SL_TABLES_MAX]) {
    uint64_t least[SL_TABLES_MAX], best = UINT64_MAX;
    bool out[SL_TABLES_MAX] = {false};
    memset(least, 0xff, sizeof least);
    r->lab->bytes = weights_of(s);
    for (uint32_t turn = 0; turn <= (best < SHORT_NS ? TURNS_MORE : TURNS); turn++) {
        for (size_t i = 0; i < SL_TABLES_MAX; i++) {
            if (!r->k[i] || out[i] || !sl_table_has(i, slot)) continue;
            fill_vectors(r->lab);
            r->lab->table = i;
            forget_weights(r->lab);
            uint64_t from = sl_now_ns();
            if (from > r->until_ns) return false;
            call(r->k[i], s, r->lab);
            uint64_t took = sl_now_ns() - from;
            if (turn > 0) least[i] = SL_MIN(least[i], took);
            if (turn > 0) best = SL_MIN(best, took);
        }
        for (size_t i = 0; turn > 1 && i < SL_TABLES_MAX; i++) out[i] = least[i] > HOPELESS * best;
    }
    for (size_t i = 0; i < SL_TABLES_MAX; i++)
        if (least[i] != UINT64_MAX) ns[i] = (uint32_t)SL_MIN(SL_MAX(least[i], 1u), 999999999u);
    return true;
}

static bool run_all(const race *r, sl_kernel_times *out) {
    sl_act_kind kind = SL_ACT_NONE;
    for (size_t i = 0; i < SL_SLOTS; i++) {
        sl_slot s;
        if (!sl_slot_at(i, &s)) continue;
        sl_act_kind want = rows_of(&s);
        for (uint32_t row = 0; want != SL_ACT_NONE && want != kind && row < ROWS; row++)
            sl_call_quantise(sl_kernels_base(), r->lab->x[row], K, want, r->lab->act[row]);
        if (want != SL_ACT_NONE) kind = want;
        if (!run(r, &s, i, out->ns[i])) return false;
    }
    return true;
}

bool sl_kernels_measure(uint64_t limit_ns, sl_kernel_times *out) {
    race r = {.lab = sl_alloc(1, sizeof *r.lab)};
    const sl_kernels *k;
    bool can;
    *out = (sl_kernel_times){0};
    if (r.lab) r.lab->ring = sl_reserve(RINGS + RUN, 1); /* what comes next may be asked for */
    if (!r.lab || !r.lab->ring) {
        sl_free(r.lab);
        return false;
    }
    for (size_t i = 0; (k = sl_kernels_at(i, &can)) != NULL; i++)
        if (can && (k->by_merit || k == sl_kernels_base())) r.k[i] = k;
    fill(r.lab);
    r.lab->flush_any = sl_cpu_has_clflushopt();
    fill_ring(r.lab);
    r.until_ns = sl_now_ns() + limit_ns;
    bool whole = run_all(&r, out);
    sl_release(r.lab->ring, RINGS + RUN, 1);
    sl_free(r.lab);
    return whole;
}
