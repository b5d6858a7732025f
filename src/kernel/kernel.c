/* The parallel loops that cut work into the pieces that a table computes. How work is cut never
 * changes a bit: every output is computed whole by one piece. */
#include "kernel/kernel_int.h"
#include "kernel/ops_int.h"
#include "kernel/scalar.h"

/* Below these, waking threads costs more than it saves. */
#define SL_MIN_PAR_FLOATS (1u << 16)
#define SL_MIN_PAR_FMAS   (1u << 16)
#define SL_GEMM_JOBS      256u /* jobs of one parallel loop; a power of two */
#define SL_CHUNK_FLOATS   (1u << 14)
#define SL_ROPE_BLOCK     128u
#define SL_NORM_BLOCK     1024u

float sl_expf(float x) {
    return sl_exp_scalar(x);
}

void sl_softmax(const sl_kernels *k, const float *logit, uint32_t n, float *p) {
    k->softmax(logit, n, p);
}

static void run(const sl_exec *ex, bool parallel, size_t n, size_t grain, sl_pool_fn fn,
                void *ctx) {
    if (n == 0) return;
    if (ex->pool && parallel)
        sl_pool_run(ex->pool, n, grain, fn, ctx);
    else
        fn(ctx, 0, n);
}

/* ---- products ---- */

/* How one job is cut: its first tile in the loop, the weight rows and activation rows of a tile. */
typedef struct gemm_cut {
    size_t first;
    uint32_t cols, rows;
} gemm_cut;

typedef struct gemm_ctx {
    const sl_kernels *k;
    const sl_gemm_job *jobs;
    const sl_mat *const *up; /* NULL: a plain product */
    uint32_t n_jobs;         /* at most SL_GEMM_JOBS */
    bool parts;              /* rows in BF16 are multiplied in parts */
    gemm_cut cut[SL_GEMM_JOBS + 1];
} gemm_ctx;

/* Weight rows per tile: about 256 KiB of them, so that they stay in L2 between rows of activations,
 * at most `cap`, a multiple of what the kernels take side by side, and all tiles of a matrix nearly
 * alike. */
static uint32_t tile_cols(const sl_mat *w, uint32_t cap) {
    uint64_t row_bytes = sl_dtype_row_bytes(w->dtype, w->k);
    uint32_t whole = sl_act_kind_of(w->dtype) == SL_ACT_NONE ? 12 : 16;
    uint32_t most = (uint32_t)SL_MIN((256u << 10) / SL_MAX(row_bytes, 1) / whole * whole, cap);
    most = SL_MAX(most, whole);
    uint32_t tiles = (w->n + most - 1) / most;
    return tiles ? ((w->n + tiles - 1) / tiles + whole - 1) / whole * whole : most;
}

/* The same for many rows of plain weights: the table reads weights once for all rows of a tile, so
 * wide tiles spare it the packing of activations. A multiple of `even` tiles, and of `whole`
 * columns. */
static uint32_t tile_cols_of_many(const sl_mat *w, uint32_t cap, uint32_t even, uint32_t whole) {
    uint32_t tiles = SL_MAX(1, (w->n + cap - 1) / cap);
    tiles = (tiles + even - 1) / even * even;
    return SL_MAX(whole, ((w->n + tiles - 1) / tiles + whole - 1) / whole * whole);
}

/* Rows in BF16 in parts: weights of a tile are read again from L2 for the next rows faster than
 * anything else is, so they stay within half of it. */
static uint32_t tile_cols_of_parts(const sl_mat *w, uint32_t cap, uint32_t even) {
    const uint64_t row_bytes = sl_dtype_row_bytes(w->dtype, w->k);
    const uint64_t most = (1u << 20) / SL_MAX(row_bytes, 1);
    return tile_cols_of_many(w, (uint32_t)SL_MAX(32, SL_MIN(cap, most)), even, 32);
}

/* Cuts all jobs; returns the number of tiles. Tiles of many rows have nearly alike many: the last
 * would be slow with few. */
static size_t gemm_cut_jobs(gemm_ctx *g, uint32_t cap, uint32_t even) {
    size_t n = 0;
    for (uint32_t i = 0; i < g->n_jobs; i++) {
        const sl_gemm_job *j = &g->jobs[i];
        uint32_t down = (j->n_rows + SL_TILE_ROWS - 1) / SL_TILE_ROWS;
        bool many = j->n_rows >= SL_TILE_MANY && sl_dtype_is_plain(j->w->dtype) && !j->w->segments;
        gemm_cut cut = {n, tile_cols(j->w, SL_MIN(cap, SL_TILE_COLS)), SL_TILE_ROWS};
        if (many) {
            const bool parts = g->parts && j->w->dtype == SL_BF16;
            cut.cols =
                parts ? tile_cols_of_parts(j->w, cap, even) : tile_cols_of_many(j->w, cap, even, 3);
            cut.rows = (j->n_rows + down - 1) / down;
        }
        g->cut[i] = cut;
        n += ((size_t)j->w->n + cut.cols - 1) / cut.cols * down;
    }
    g->cut[g->n_jobs].first = n;
    return n;
}

/* y = x w^T for the tile's columns from c0 on, of rounded rows where the job has them. */
#ifdef SL_TSAN
void __tsan_read_range(void *p, long bytes); /* as gcc declares them */
void __tsan_write_range(void *p, long bytes);

/* The inner loops of products are built without ThreadSanitizer, which would check each vector that
 * they load: it hears of a tile's rows and results as a whole. */
static void check_races(const void *const *x, size_t row_bytes, const sl_gemm_tile *t) {
    for (uint32_t r = 0; r < t->n_rows; r++) {
        __tsan_read_range((void *)(uintptr_t)x[r], (long)row_bytes);
        __tsan_write_range(t->y + (size_t)r * t->y_stride, (long)(t->n_cols * sizeof *t->y));
    }
}
#else
#define check_races(x, row_bytes, t) ((void)0)
#endif

/* skip: bytes of rounded rows before those that w is multiplied with; all: between rows. */
static void gemm_do(const gemm_ctx *g, const sl_gemm_job *j, const sl_mat *w, uint32_t r0,
                    uint32_t c0, const void *next, size_t skip, size_t all, sl_gemm_tile *t) {
    sl_act_kind kind = sl_act_kind_of(w->dtype);
    t->dtype = w->dtype;
    t->mat = w;
    t->row = c0;
    t->w = sl_mat_at(w, c0, 0);
    t->w_stride = sl_mat_stride(w);
    if (kind == SL_ACT_NONE || !j->act.row[kind]) {
        check_races((const void *const *)t->x, t->k * sizeof **t->x, t);
        sl_call_gemm_tile(w->strips ? &sl_kernels_ref : g->k, t); /* nobody asks for that */
        return;
    }
    const uint8_t *x[SL_TILE_ROWS];
    for (uint32_t r = 0; r < t->n_rows; r++)
        x[r] = j->act.row[kind] + (j->act_row ? j->act_row[r0 + r] : r0 + r) * all + skip;
    check_races((const void *const *)x, sl_act_row_bytes(kind, t->k), t);
    const sl_act_tile tile = {.w = t->w,
                              .w_stride = t->w_stride,
                              .dtype = t->dtype,
                              .k = t->k,
                              .n_cols = t->n_cols,
                              .n_rows = t->n_rows,
                              .y_stride = t->y_stride,
                              .x = x,
                              .y = t->y,
                              .next = next};
    if (kind == SL_ACT_BF16 && g->parts)
        sl_call_parts_tile(g->k, &tile);
    else if (kind == SL_ACT_BF16)
        sl_call_bf16_tile(g->k, &tile);
    else if (w->strips)
        sl_call_strip_tile(g->k, &tile);
    else
        sl_call_int8_tile(g->k, &tile);
}

/* Columns where tile t of a job starts. Column tiles vary slowest, so neighbours share weights. */
static uint32_t tile_column(const gemm_ctx *g, uint32_t job, size_t t) {
    uint32_t rows = g->cut[job].rows, down = (g->jobs[job].n_rows + rows - 1) / rows;
    return (uint32_t)(t / down) * g->cut[job].cols;
}

/* Weights that come after those of tile t of a job, most likely on the same thread; NULL: none, or
 * the same again. */
static const void *weights_after(const gemm_ctx *g, uint32_t job, size_t t) {
    size_t next = g->cut[job].first + t + 1;
    if (next >= g->cut[g->n_jobs].first) return NULL;
    if (next < g->cut[job + 1].first) {
        uint32_t c = tile_column(g, job, t + 1);
        return c > tile_column(g, job, t) ? sl_mat_at(g->jobs[job].w, c, 0) : NULL;
    }
    while (next >= g->cut[job + 1].first) job++;
    return g->jobs[job].w->data;
}

static void zero_tile(const sl_gemm_tile *t) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        memset(t->y + (size_t)r * t->y_stride, 0, t->n_cols * sizeof *t->y);
}

/* The product with the whole of a matrix, its `all` values a row taken at once. */
static void gemm_whole(const gemm_ctx *g, const sl_gemm_job *j, const sl_mat *w, uint32_t r0,
                       uint32_t c0, const void *next, sl_gemm_tile *t) {
    const sl_act_kind kind = sl_act_kind_of(w->dtype);
    if (w->k == 0) {
        zero_tile(t);
        return;
    }
    gemm_do(g, j, w, r0, c0, next, 0, kind == SL_ACT_NONE ? 0 : sl_act_row_bytes(kind, w->k), t);
}

/* Values first .. first + k - 1 of each row of w. */
static sl_mat columns_of(const sl_mat *w, uint32_t first, uint32_t k) {
    sl_mat part = *w;
    part.stride = sl_mat_stride(w);
    part.data = sl_mat_at(w, 0, first);
    part.scale_k = w->scale_k ? w->scale_k : w->k;
    part.scale_col = w->scale_col + first;
    part.k = k;
    return part;
}

static void add_tile(const sl_kernels *k, const sl_gemm_tile *to, const sl_gemm_tile *t) {
    for (uint32_t r = 0; r < t->n_rows; r++)
        k->add(to->y + (size_t)r * to->y_stride, t->y + (size_t)r * t->y_stride, t->n_cols);
}

/* Segment by segment while the tile's weights are near. Sums that wait for their neighbour lie in
 * `wait`, the first in the result itself. */
static void gemm_segments(const gemm_ctx *g, const sl_gemm_job *j, uint32_t r0, uint32_t c0,
                          const void *next, const sl_gemm_tile *whole) {
    _Static_assert(SL_SEGMENTS == 8, "so many wait at most: 1 of 4, of 2 and of 1, and the last");
    float wait[3][SL_TILE_ROWS * SL_TILE_COLS];
    const float *x[SL_TILE_ROWS];
    const sl_segments *s = j->w->segments;
    const sl_act_kind kind = sl_act_kind_of(j->w->dtype);
    sl_gemm_tile part[4];
    uint32_t level = 0;
    size_t skip = 0, all = kind == SL_ACT_NONE ? 0 : sl_act_bytes_in(s, kind, whole->k);
    for (uint32_t i = 0; i < 4; i++) {
        part[i] = *whole;
        part[i].x = x;
        if (i == 0) continue;
        part[i].y = wait[i - 1];
        part[i].y_stride = whole->n_cols;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t first = sl_segment_begin(s, i), n = s->end[i] - first;
        const sl_mat w = columns_of(j->w, first, n);
        for (uint32_t r = 0; r < whole->n_rows; r++) x[r] = whole->x[r] + first;
        part[level].k = n;
        if (n)
            gemm_do(g, j, &w, r0, c0, i + 1 == s->n ? next : NULL, skip, all, &part[level]);
        else
            zero_tile(&part[level]);
        if (kind != SL_ACT_NONE) skip += sl_act_row_bytes(kind, n);
        for (uint32_t done = i + 1; !(done & 1); done >>= 1, level--)
            add_tile(g->k, &part[level - 1], &part[level]);
        level++;
    }
}

static void gemm_job_tile(const gemm_ctx *g, uint32_t job, size_t t) {
    const sl_gemm_job *j = &g->jobs[job];
    uint32_t cols = g->cut[job].cols, rows = g->cut[job].rows, down = (j->n_rows + rows - 1) / rows;
    uint32_t c0 = tile_column(g, job, t), r0 = (uint32_t)(t % down) * rows;
    const float *x[SL_TILE_ROWS];
    float up[SL_TILE_ROWS * SL_TILE_WIDE];
    sl_gemm_tile tile = {
        .k = j->w->k,
        .n_cols = SL_MIN(cols, j->w->n - c0),
        .n_rows = SL_MIN(rows, j->n_rows - r0),
        .y_stride = j->y_stride,
        .x = x,
        .y = j->y + (size_t)r0 * j->y_stride + c0,
    };
    for (uint32_t r = 0; r < tile.n_rows; r++)
        x[r] = j->x + (size_t)(j->row ? j->row[r0 + r] : r0 + r) * j->x_stride;
    const void *next = weights_after(g, job, t);
    if (j->w->segments) {
        gemm_segments(g, j, r0, c0, next, &tile);
        return;
    }
    gemm_whole(g, j, j->w, r0, c0, g->up ? sl_mat_at(g->up[job], c0, 0) : next, &tile);
    if (!g->up) return;
    sl_gemm_tile other = tile;
    other.y = up;
    other.y_stride = tile.n_cols;
    gemm_whole(g, j, g->up[job], r0, c0, next, &other);
    for (uint32_t r = 0; r < tile.n_rows; r++)
        g->k->swiglu(tile.y + (size_t)r * tile.y_stride, up + (size_t)r * tile.n_cols, tile.n_cols);
}

static void gemm_tiles(void *ctx, size_t begin, size_t end) {
    const gemm_ctx *g = ctx;
    uint32_t job = 0;
    for (uint32_t step = SL_GEMM_JOBS; step;
         step /= 2) /* last job that starts at or before begin */
        if (job + step < g->n_jobs && g->cut[job + step].first <= begin) job += step;
    for (size_t t = begin; t < end; t++) {
        while (t >= g->cut[job + 1].first) job++;
        gemm_job_tile(g, job, t - g->cut[job].first);
    }
}

static void gemm_run(const sl_exec *ex, gemm_ctx *g) {
    uint64_t fmas = 0;
    for (uint32_t i = 0; i < g->n_jobs; i++)
        fmas += (uint64_t)g->jobs[i].n_rows * g->jobs[i].w->n * g->jobs[i].w->k;
    bool parallel = ex->pool && fmas >= SL_MIN_PAR_FMAS;
    size_t want = parallel ? 4 * (size_t)sl_pool_threads(ex->pool) : 1;
    uint32_t cap = SL_TILE_WIDE;
    size_t n = gemm_cut_jobs(g, cap, 1);
    while (n < want && cap > 24) n = gemm_cut_jobs(g, cap /= 2, 1);
    if (parallel && n < 2 * want) n = gemm_cut_jobs(g, cap, sl_pool_threads(ex->pool));
    run(ex, parallel, n, 1, gemm_tiles, g);
}

/* Any number of jobs, SL_GEMM_JOBS a loop. */
static void gemm_all(const sl_exec *ex, const sl_gemm_job *jobs, const sl_mat *const *up,
                     uint32_t n_jobs) {
    gemm_ctx g = {.k = ex->k, .parts = ex->activations == SL_ACTIVATIONS_BF16_PARTS};
    for (uint32_t i = 0; i < n_jobs; i += g.n_jobs) {
        g.jobs = jobs + i;
        g.up = up ? up + i : NULL;
        g.n_jobs = SL_MIN(SL_GEMM_JOBS, n_jobs - i);
        gemm_run(ex, &g);
    }
}

void sl_gemm(const sl_exec *ex, const sl_gemm_job *jobs, uint32_t n_jobs) {
    sl_ops(ex)->gemm(ex, jobs, NULL, n_jobs);
}

void sl_gemm_swiglu(const sl_exec *ex, const sl_gemm_job *jobs, const sl_mat *const *up,
                    uint32_t n_jobs) {
    for (uint32_t i = 0; i < n_jobs; i++)
        SL_ASSERT(up[i]->n == jobs[i].w->n && up[i]->k == jobs[i].w->k && !jobs[i].w->segments);
    sl_ops(ex)->gemm(ex, jobs, up, n_jobs);
}

/* ---- rounded activations ---- */

typedef struct act_ctx {
    const sl_kernels *k;
    const float *x;
    const uint32_t *row;
    uint32_t x_stride, width;
    const sl_segments *segments;
    sl_act_kind kind;
    uint8_t *dst;
} act_ctx;

static void act_row(const act_ctx *c, const float *x, uint8_t *dst) {
    const sl_segments whole = {.n = 1, .end = {c->width}}, *s = c->segments ? c->segments : &whole;
    for (uint32_t i = 0; i < s->n; i++) {
        const uint32_t first = sl_segment_begin(s, i), n = s->end[i] - first;
        if (n) sl_call_quantise(c->k, x + first, n, c->kind, dst);
        dst += sl_act_row_bytes(c->kind, n);
    }
}

static void act_rows(void *ctx, size_t begin, size_t end) {
    const act_ctx *c = ctx;
    size_t bytes = sl_act_bytes_in(c->segments, c->kind, c->width);
    for (size_t r = begin; r < end; r++)
        act_row(c, c->x + (size_t)(c->row ? c->row[r] : r) * c->x_stride, c->dst + r * bytes);
}

static void quantise(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                     uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                     uint8_t *dst) {
    act_ctx c = {ex->k, x, row, x_stride, k, s, kind, dst};
    run(ex, (uint64_t)n_rows * k >= SL_MIN_PAR_FLOATS, n_rows,
        SL_MAX(1, SL_CHUNK_FLOATS / SL_MAX(k, 1)), act_rows, &c);
}

void sl_quantise_segments(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                          uint32_t x_stride, uint32_t k, const sl_segments *s, sl_act_kind kind,
                          uint8_t *dst) {
    sl_ops(ex)->quantise(ex, x, row, n_rows, x_stride, k, s, kind, dst);
}

void sl_quantise(const sl_exec *ex, const float *x, const uint32_t *row, uint32_t n_rows,
                 uint32_t x_stride, uint32_t k, sl_act_kind kind, uint8_t *dst) {
    sl_quantise_segments(ex, x, row, n_rows, x_stride, k, NULL, kind, dst);
}

/* ---- norms ---- */

typedef struct norm_ctx {
    const sl_kernels *k;
    const float *x;
    const sl_mat *w;
    float eps;
    uint32_t n;
    bool centred;
    sl_norm_out out;
} norm_ctx;

/* n weights from i on in f32: where they lie, or widened into `wide`. */
static const float *norm_weights(const norm_ctx *c, uint32_t i, uint32_t n, float *wide) {
    const uint8_t *w = (const uint8_t *)c->w->data + (size_t)i * sl_dtype_bytes(c->w->dtype);
    if (c->w->dtype == SL_F32 && (uintptr_t)w % sizeof(float) == 0) return (const float *)w;
    sl_call_widen(c->k, w, c->w->dtype, n, wide);
    return wide;
}

/* Row r, of which only what is rounded is kept. */
static void norm_to_act(const norm_ctx *c, size_t r, const float *x, float inv) {
    float wide[SL_NORM_BLOCK];
    for (uint32_t i = 0; i < c->n; i += SL_NORM_BLOCK) {
        uint32_t n = SL_MIN(SL_NORM_BLOCK, c->n - i);
        const float *w = norm_weights(c, i, n, wide);
        for (sl_act_kind kind = 0; kind < SL_ACT_KINDS; kind++) {
            if (!c->out.act[kind]) continue;
            uint8_t *row = c->out.act[kind] + r * sl_act_row_bytes(kind, c->n);
            sl_call_rms_quantise(c->k, x + i, w, inv, &(sl_act_part){row, kind, c->n, i, n});
        }
    }
}

static void norm_row(const norm_ctx *c, size_t r, const float *x, float inv) {
    float wide[SL_NORM_BLOCK], *y = c->out.y + r * c->n;
    for (uint32_t i = 0; i < c->n; i += SL_NORM_BLOCK) {
        uint32_t n = SL_MIN(SL_NORM_BLOCK, c->n - i);
        c->k->rms_apply(x + i, norm_weights(c, i, n, wide), inv, n, y + i);
    }
    for (sl_act_kind kind = 0; kind < SL_ACT_KINDS; kind++)
        if (c->out.act[kind])
            sl_call_quantise(c->k, y, c->n, kind,
                             c->out.act[kind] + r * sl_act_row_bytes(kind, c->n));
}

static void norm_rows(void *ctx, size_t begin, size_t end) {
    const norm_ctx *c = ctx;
    for (size_t r = begin; r < end; r++) {
        const float *x = c->x + r * c->n;
        if (c->centred) {
            float *y = c->out.y + r * c->n;
            c->k->center(x, c->n, y);
            x = y;
        }
        float inv = c->k->rms_inverse(x, c->eps, c->n);
        if (c->out.y)
            norm_row(c, r, x, inv);
        else
            norm_to_act(c, r, x, inv);
    }
}

static void norm(const sl_exec *ex, const float *x, const sl_mat *w, float eps, bool centred,
                 uint32_t n_rows, uint32_t n, const sl_norm_out *out) {
    norm_ctx c = {ex->k, x, w, eps, n, centred, *out};
    run(ex, (uint64_t)n_rows * n >= SL_MIN_PAR_FLOATS, n_rows,
        SL_MAX(1, SL_CHUNK_FLOATS / SL_MAX(n, 1)), norm_rows, &c);
}

void sl_norm_quantise(const sl_exec *ex, const float *x, const sl_mat *w, float eps, bool centred,
                      uint32_t n_rows, uint32_t n, const sl_norm_out *out) {
    SL_ASSERT(out->y || !centred);
    sl_ops(ex)->norm(ex, x, w, eps, centred, n_rows, n, out);
}

void sl_rmsnorm(const sl_exec *ex, const float *x, const sl_mat *w, float eps, uint32_t n_rows,
                uint32_t n, float *y) {
    sl_norm_quantise(ex, x, w, eps, false, n_rows, n, &(sl_norm_out){.y = y});
}

void sl_layernorm(const sl_exec *ex, const float *x, const sl_mat *w, float eps, uint32_t n_rows,
                  uint32_t n, float *y) {
    sl_norm_quantise(ex, x, w, eps, true, n_rows, n, &(sl_norm_out){.y = y});
}

/* ---- biases and gates of rows ---- */

typedef struct row_ctx {
    const sl_kernels *k;
    float *y;
    const sl_mat *bias; /* NULL: gate */
    const float *gate;
    uint32_t n;
} row_ctx;

static void bias_row(const row_ctx *c, float *y) {
    float wide[SL_NORM_BLOCK];
    for (uint32_t i = 0; i < c->n; i += SL_NORM_BLOCK) {
        uint32_t n = SL_MIN(SL_NORM_BLOCK, c->n - i);
        size_t at = (size_t)i * sl_dtype_bytes(c->bias->dtype);
        sl_call_widen(c->k, (const uint8_t *)c->bias->data + at, c->bias->dtype, n, wide);
        c->k->add(y + i, wide, n);
    }
}

static void change_rows(void *ctx, size_t begin, size_t end) {
    const row_ctx *c = ctx;
    for (size_t r = begin; r < end; r++) {
        float *y = c->y + r * c->n;
        if (c->bias)
            bias_row(c, y);
        else
            c->k->scale(y, y, sl_sigmoid_scalar(c->gate[r]), c->n);
    }
}

static void run_rows(const sl_exec *ex, row_ctx *c, uint32_t n_rows) {
    run(ex, (uint64_t)n_rows * c->n >= SL_MIN_PAR_FLOATS, n_rows,
        SL_MAX(1, SL_CHUNK_FLOATS / SL_MAX(c->n, 1)), change_rows, c);
}

static void bias_add(const sl_exec *ex, float *y, const sl_mat *b, uint32_t n_rows) {
    run_rows(ex, &(row_ctx){.k = ex->k, .y = y, .bias = b, .n = b->k}, n_rows);
}

void sl_bias_add(const sl_exec *ex, float *y, const sl_mat *b, uint32_t n_rows) {
    sl_ops(ex)->bias_add(ex, y, b, n_rows);
}

static void gate_rows(const sl_exec *ex, float *y, const float *gate, uint32_t n_rows, uint32_t n) {
    run_rows(ex, &(row_ctx){.k = ex->k, .y = y, .gate = gate, .n = n}, n_rows);
}

void sl_gate_rows(const sl_exec *ex, float *y, const float *gate, uint32_t n_rows, uint32_t n) {
    sl_ops(ex)->gate_rows(ex, y, gate, n_rows, n);
}

/* ---- rotary embedding ---- */

typedef struct rope_ctx {
    const sl_kernels *k;
    float *x;
    const uint32_t *pos;
    const double *freq;
    sl_rope_shape shape;
} rope_ctx;

static void rope_rows(void *ctx, size_t begin, size_t end) {
    const rope_ctx *a = ctx;
    uint32_t half = a->shape.rope_dim / 2;
    float c[SL_ROPE_BLOCK], s[SL_ROPE_BLOCK];
    for (size_t r = begin; r < end; r++)
        for (uint32_t i = 0; i < half; i += SL_ROPE_BLOCK) {
            uint32_t n = SL_MIN(SL_ROPE_BLOCK, half - i);
            a->k->sincos(a->pos[r], a->freq + i, n, c, s);
            for (uint32_t h = 0; h < a->shape.n_heads; h++) {
                float *lo = a->x + r * a->shape.x_stride + (size_t)h * a->shape.head_dim + i;
                a->k->rotate(lo, lo + half, c, s, n);
            }
        }
}

static void rope(const sl_exec *ex, float *x, const uint32_t *pos, const double *freq,
                 uint32_t n_rows, const sl_rope_shape *shape) {
    rope_ctx c = {.k = ex->k, .x = x, .pos = pos, .freq = freq, .shape = *shape};
    size_t row = (size_t)shape->n_heads * shape->head_dim;
    run(ex, n_rows * row >= SL_MIN_PAR_FLOATS, n_rows, SL_MAX(1, SL_CHUNK_FLOATS / SL_MAX(row, 1)),
        rope_rows, &c);
}

void sl_rope(const sl_exec *ex, float *x, const uint32_t *pos, const double *freq, uint32_t n_rows,
             const sl_rope_shape *shape) {
    sl_ops(ex)->rope(ex, x, pos, freq, n_rows, shape);
}

/* ---- attention ---- */

typedef struct attn_ctx {
    const sl_kernels *k;
    const sl_attn_args *a;
    uint32_t block; /* rows of an item */
} attn_ctx;

/* Rows that share a page table and a kv head walk its pages together. */
typedef struct attn_walk {
    sl_attn_query query[SL_ATTN_QUERIES];
    uint32_t pos[SL_ATTN_QUERIES], low[SL_ATTN_QUERIES];
    uint32_t n;
} attn_walk;

static void attn_walk_add(attn_walk *w, const sl_attn_args *a, uint32_t r, uint32_t head) {
    uint32_t pos = a->pos[r], dim = a->m->head_dim, v_dim = sl_kv_value_dim(a->m);
    sl_attn_query *u = &w->query[w->n];
    *u = (sl_attn_query){.q = a->q + (size_t)r * a->q_stride + (size_t)head * dim,
                         .o = a->o + (size_t)r * a->o_stride + (size_t)head * v_dim,
                         .max = a->sink ? a->sink[head] : -INFINITY,
                         .sum = a->sink ? 1.0f : 0.0f};
    memset(u->o, 0, v_dim * sizeof(float));
    w->pos[w->n] = pos;
    w->low[w->n] = sl_attn_low(a, r);
    w->n++;
}

static void attn_walk_run(const sl_kernels *k, const sl_attn_args *a, attn_walk *w, uint32_t kvh,
                          const uint32_t *pages) {
    uint32_t low = UINT32_MAX, high = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        low = SL_MIN(low, w->low[i]);
        high = SL_MAX(high, w->pos[i]);
    }
    size_t k_at = sl_kv_tile_offset(a->m, a->layer, 0, kvh);
    size_t v_at = sl_kv_tile_offset(a->m, a->layer, 1, kvh);
    uint32_t end = high / SL_KV_PAGE_TOKENS;
    for (uint32_t g = low / SL_KV_PAGE_TOKENS; g <= end; g++) {
        const uint8_t *page = sl_kv_page(&a->kv, pages[g]);
        const uint8_t *next = g < end ? sl_kv_page(&a->kv, pages[g + 1]) : NULL;
        sl_attn_page p = {.query = w->query,
                          .n = w->n,
                          .head_dim = a->m->head_dim,
                          .v_dim = sl_kv_value_dim(a->m),
                          .k = (const void *)(page + k_at),
                          .v = (const void *)(page + v_at),
                          .next_k = next ? (const void *)(next + k_at) : NULL,
                          .next_v = next ? (const void *)(next + v_at) : NULL,
                          .scale = a->scale,
                          .type = a->m->kv_type,
                          .part = sl_kv_value_dim(a->m)};
        uint32_t base = g * SL_KV_PAGE_TOKENS;
        for (uint32_t i = 0; i < w->n; i++) {
            bool sees = w->pos[i] >= base && w->low[i] < base + SL_KV_PAGE_TOKENS;
            p.query[i].first = !sees ? 1 : w->low[i] > base ? w->low[i] - base : 0;
            p.query[i].last = sees ? SL_MIN(w->pos[i] - base, SL_KV_PAGE_TOKENS - 1) : 0;
        }
        sl_call_attn_page(k, &p);
    }
    for (uint32_t i = 0; i < w->n; i++)
        k->divide(w->query[i].o, w->query[i].sum, sl_kv_value_dim(a->m));
    w->n = 0;
}

/* Slices of SL_ATTN_QUERIES query heads of one kv head. */
static uint32_t attn_slices(const sl_attn_args *a) {
    uint32_t group = sl_attn_group(a);
    return (group + SL_ATTN_QUERIES - 1) / SL_ATTN_QUERIES;
}

/* As many rows as fill a walk, but enough items for every thread. */
static uint32_t attn_rows_per_item(const sl_exec *ex, const sl_attn_args *a) {
    uint32_t group = sl_attn_group(a);
    uint64_t lanes = 2 * (uint64_t)(ex->pool ? sl_pool_threads(ex->pool) : 1);
    uint64_t fair = (uint64_t)a->n_rows * a->m->n_kv_heads * attn_slices(a) / lanes;
    return (uint32_t)SL_MAX(1, SL_MIN(fair, SL_ATTN_QUERIES / SL_MIN(group, SL_ATTN_QUERIES)));
}

/* Item = (block of rows, kv head, slice of its query heads): one row of many heads on one kv head
 * still is work for several threads. */
static void attn_items(void *ctx, size_t begin, size_t end) {
    const attn_ctx *c = ctx;
    const sl_attn_args *a = c->a;
    uint32_t kv_heads = a->m->n_kv_heads, group = sl_attn_group(a);
    uint32_t slices = attn_slices(a), parts = kv_heads * slices;
    attn_walk w;
    w.n = 0;
    for (size_t item = begin; item < end; item++) {
        uint32_t r0 = (uint32_t)(item / parts) * c->block, part = (uint32_t)(item % parts);
        uint32_t r1 = SL_MIN(r0 + c->block, a->n_rows), kvh = part / slices;
        uint32_t h0 = kvh * group + part % slices * SL_ATTN_QUERIES; /* those not here counted */
        uint32_t h1 = SL_MIN(h0 + SL_ATTN_QUERIES, (kvh + 1) * group);
        h0 = SL_MAX(h0, a->skip);
        h1 = SL_MIN(h1, a->skip + a->m->n_heads);
        for (uint32_t r = r0; r < r1; r++) {
            for (uint32_t h = h0; h < h1; h++) {
                if (w.n == SL_ATTN_QUERIES) attn_walk_run(c->k, a, &w, kvh, a->pages[r]);
                attn_walk_add(&w, a, r, h - a->skip);
            }
            if (r + 1 == r1 || a->pages[r + 1] != a->pages[r])
                attn_walk_run(c->k, a, &w, kvh, a->pages[r]);
        }
    }
}

static void attention(const sl_exec *ex, const sl_attn_args *a) {
    attn_ctx c = {.k = ex->k, .a = a};
    const sl_model_spec *m = a->m;
    uint64_t work = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        uint64_t seen = a->pos[r] - sl_attn_low(a, r) + 1u;
        work += seen * m->n_heads * m->head_dim * 2;
    }
    c.block = attn_rows_per_item(ex, a);
    uint32_t blocks = (a->n_rows + c.block - 1) / c.block;
    run(ex, work >= SL_MIN_PAR_FMAS, (size_t)blocks * m->n_kv_heads * attn_slices(a), 1, attn_items,
        &c);
}

void sl_attention(const sl_exec *ex, const sl_attn_args *a) {
    SL_ASSERT(a->m->n_kv_heads > 0 && (a->group || a->m->n_heads % a->m->n_kv_heads == 0));
    sl_ops(ex)->attention(ex, a);
}

/* ---- element by element ---- */

/* Comparisons are exact, so every instruction set agrees without a kernel of its own. */
static void clip(float *y, float limit, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = sl_clip_scalar(y[i], limit);
}

typedef struct vec_ctx {
    const sl_kernels *k;
    enum { VEC_ADD, VEC_SCALE, VEC_ADD_SCALED, VEC_WIDEN, VEC_TO_BF16, VEC_CLIP, VEC_GLU } op;
    float *y;
    const void *x;
    float a;
    sl_dtype dtype;
    uint16_t *h;
} vec_ctx;

static void vec_items(void *ctx, size_t begin, size_t end) {
    const vec_ctx *c = ctx;
    size_t n = end - begin;
    const float *x = (const float *)c->x + begin;
    switch (c->op) {
    case VEC_ADD:
        c->k->add(c->y + begin, x, n);
        break;
    case VEC_SCALE:
        c->k->scale(c->y + begin, x, c->a, n);
        break;
    case VEC_ADD_SCALED:
        c->k->add_scaled(c->y + begin, x, c->a, n);
        break;
    case VEC_WIDEN:
        sl_call_widen(c->k, (const uint8_t *)c->x + sl_dtype_row_bytes(c->dtype, begin), c->dtype,
                      n, c->y + begin);
        break;
    case VEC_TO_BF16:
        c->k->to_bf16(x, n, c->h + begin);
        break;
    case VEC_CLIP:
        clip(c->y + begin, c->a, n);
        break;
    case VEC_GLU:
        c->k->swiglu_clamped(c->y + begin, x, c->a, n);
        break;
    }
}

static void vec_run(const sl_exec *ex, vec_ctx *c, size_t n) {
    run(ex, n >= SL_MIN_PAR_FLOATS, n, SL_CHUNK_FLOATS, vec_items, c);
}

static void vec_add(const sl_exec *ex, float *y, const float *x, size_t n) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_ADD, .y = y, .x = x}, n);
}

void sl_vec_add(const sl_exec *ex, float *y, const float *x, size_t n) {
    sl_ops(ex)->vec_add(ex, y, x, n);
}

void sl_vec_scale(const sl_exec *ex, float *y, const float *x, float a, size_t n) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_SCALE, .y = y, .x = x, .a = a}, n);
}

void sl_vec_add_scaled(const sl_exec *ex, float *y, const float *x, float a, size_t n) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_ADD_SCALED, .y = y, .x = x, .a = a}, n);
}

static void vec_clip(const sl_exec *ex, float *y, float limit, size_t n) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_CLIP, .y = y, .x = y, .a = limit}, n);
}

void sl_vec_clip(const sl_exec *ex, float *y, float limit, size_t n) {
    sl_ops(ex)->vec_clip(ex, y, limit, n);
}

static void swiglu_clamped(const sl_exec *ex, float *gate, const float *up, float limit, size_t n) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_GLU, .y = gate, .x = up, .a = limit}, n);
}

void sl_swiglu_clamped(const sl_exec *ex, float *gate, const float *up, float limit, size_t n) {
    sl_ops(ex)->swiglu_clamped(ex, gate, up, limit, n);
}

void sl_widen(const sl_exec *ex, const void *src, sl_dtype dtype, size_t n, float *dst) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_WIDEN, .y = dst, .x = src, .dtype = dtype}, n);
}

void sl_widen_row(const sl_exec *ex, const sl_mat *w, uint32_t row, float *dst) {
    const uint8_t *at = sl_mat_at(w, row, 0);
    SL_ASSERT(!w->strips);
    if (w->dtype == SL_F8_E4M3)
        sl_f8_decode(at, sl_mat_scale(w, row), w->scale_col, w->k, dst);
    else
        sl_widen(ex, at, w->dtype, w->k, dst);
}

void sl_to_bf16(const sl_exec *ex, const float *src, size_t n, uint16_t *dst) {
    vec_run(ex, &(vec_ctx){.k = ex->k, .op = VEC_TO_BF16, .x = src, .h = dst}, n);
}

/* ---- this machine's processors ---- */

uint32_t sl_exec_rows(const sl_exec *ex, uint32_t each) {
    if (ex->ops) return UINT32_MAX;
    return each * (ex->pool ? sl_pool_threads(ex->pool) : 1);
}

const sl_exec_ops sl_host_ops = {
    .gemm = gemm_all,
    .quantise = quantise,
    .norm = norm,
    .bias_add = bias_add,
    .gate_rows = gate_rows,
    .rope = rope,
    .attention = attention,
    .attention_span = sl_host_attention_span,
    .vec_add = vec_add,
    .vec_clip = vec_clip,
    .swiglu_clamped = swiglu_clamped,
    .embed = sl_host_embed,
    .copy_rows = sl_host_copy_rows,
    .pick_rows = sl_host_pick_rows,
    .scale_part = sl_host_scale_part,
    .split_pairs = sl_host_split_pairs,
    .put_kv = sl_host_put_kv,
    .route = sl_host_route,
    .sum_pairs = sl_host_sum_pairs,
    .delta = sl_host_delta,
    .gate_values = sl_host_gate_values,
};
