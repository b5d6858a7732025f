/* Attention of single rows over pages, numerics fast: a row's positions are split over blocks, and
 * parts are merged in a fixed order by the block that finishes last.
 *
 * A warp takes 16 keys at a time, straight from memory to fragments: scores are the product of 16
 * keys and 8 query heads, sums that of values and weights, both on tensor cores: of pages of f32 in
 * tf32, of 16 bits in these, of 8 bits in f16. The order of values along a dot product, and that of
 * columns in a tile, is chosen so that each thread loads 16 bytes at a time: thread (g, t) = (lane
 * / 4, lane % 4) has of keys g and g + 8 bytes 64c + 16t to + 15, and of the values of keys t, t +
 * 4, t + 8, t
 * + 12 bytes 128c + 16g to + 15. The values of a step, and the keys of the next, are under way
 * while weights are made. Rows of 8 bits are aligned to nothing: their steps come through shared
 * memory as they lie, and are widened from there. `type`, an sl_kv_type, and `dim` are constants
 * everywhere. */
#include "stage/cuda/kernels/args_fast_attention.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/fast_kv.h"

#define KEYS    16u /* of a step; half a page */
#define PAGE    32u
#define DIM     128u /* at most */
#define WARPS   SL_FAST_ATTN_WARPS
#define HEADS   SL_FAST_ATTN_HEADS
#define THREADS (WARPS * SL_WARP)
#define LOG2E   1.44269504f

/* What a block works on: positions of pages first .. end - 1 of a row that it sees. */
typedef struct task {
    sl_fast_attn_row row;
    uint32_t slot, parts, first, end;
    uint32_t kv_head, head, heads;
} task;

/* Of row i; of the row behind the last one all parts that there are. */
SL_DEV uint32_t first_block(const sl_fast_attn_args *a, uint32_t i) {
    if (a->list) return i < a->n_rows ? a->list->row[i].first_block : a->list->blocks;
    return i < a->n_rows ? a->of.row[i].first_block : a->of.blocks;
}

SL_DEV task task_of_block(const sl_fast_attn_args *a) {
    task t;
    uint32_t lo = 0, hi = a->n_rows;
    while (lo + 1 < hi) {
        const uint32_t mid = (lo + hi) / 2;
        if (first_block(a, mid) <= blockIdx.y)
            lo = mid;
        else
            hi = mid;
    }
    const uint32_t per = a->list ? a->list->per : a->of.per;
    t.slot = lo;
    t.row = a->list ? a->list->row[lo] : a->of.row[lo];
    t.parts = first_block(a, lo + 1) - t.row.first_block;
    t.first = t.row.low / PAGE + (blockIdx.y - t.row.first_block) * per;
    t.end = t.row.pos / PAGE + 1;
    if (t.end > t.first + per) t.end = t.first + per;
    t.kv_head = blockIdx.x / a->slices;
    const uint32_t slice = blockIdx.x - t.kv_head * a->slices, end = (t.kv_head + 1) * a->group;
    uint32_t h0 = t.kv_head * a->group + slice * a->heads, h1 = h0 + a->heads;
    h1 = h1 < end ? h1 : end;
    h1 = h1 < a->skip + a->n_heads ? h1 : a->skip + a->n_heads;
    h0 = h0 > a->skip ? h0 : a->skip;
    t.head = h0 - a->skip;
    t.heads = h1 > h0 ? h1 - h0 : 0;
    return t;
}

/* Numbers of a part's pages: a warp has 32, and the next 32 on their way. */
typedef struct pages {
    uint32_t now, next, end;
} pages;

SL_DEV uint32_t numbers_from(const sl_fast_attn_args *a, const task *t, uint32_t i) {
    const uint32_t skip = t->first - t->row.low / PAGE, at = i + sl_lane();
    return at < t->end - t->first ? a->page[t->row.pages + skip + at] : 0;
}

SL_DEV size_t page_at(const sl_fast_attn_args *a, const task *t, uint32_t i, pages *p) {
    if (i >= p->end) {
        p->now = p->next;
        p->next = numbers_from(a, t, p->end += SL_WARP);
    }
    return (size_t)__shfl_sync(SL_ALL, p->now, i % SL_WARP) * a->page_bytes;
}

/* To nearest of tf32, ties upwards; of the bits of a float. */
SL_DEV uint32_t tf32_of(uint32_t bits) {
    return bits + 0x1000u;
}

SL_DEV uint32_t tf32(float v) {
    return tf32_of(sl_f32_bits(v));
}

SL_DEV uint32_t clamp(uint32_t v, uint32_t lo, uint32_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

SL_DEV float4 load4(const float *p) {
    return __ldcg((const float4 *)p);
}

SL_DEV uint32_t row_bytes(uint32_t type, uint32_t dim) {
    return (uint32_t)sl_kv_part_bytes((sl_kv_type)type, dim);
}

/* The products are of f32 in tf32, else in 16 bits: two values a register. */
SL_DEV bool in_tf32(uint32_t type) {
    return type == SL_KV_F32;
}

/* The first of which four values of a key a thread has, number c of dim / 16. Words of 8 rows of 8
 * bits lie in different banks so. */
SL_DEV uint32_t key_column(uint32_t type, uint32_t dim, uint32_t c) {
    const uint32_t t = sl_lane() % 4;
    if (sl_fast_kv_is_16(type)) return c / 2 * 32 + 8 * t + c % 2 * 4;
    return sl_fast_kv_is_8(type) ? dim / 4 * t + 4 * c : 16 * c + 4 * t;
}

/* And of which four columns, number c of dim / 32. */
SL_DEV uint32_t value_column(uint32_t type, uint32_t dim, uint32_t c) {
    const uint32_t g = sl_lane() / 4;
    if (sl_fast_kv_is_16(type)) return c / 2 * 64 + 8 * g + c % 2 * 4;
    return sl_fast_kv_is_8(type) ? dim / 8 * g + 4 * c : 32 * c + 4 * g;
}

/* The block's queries as fragments: 8 columns of heads, zeros where there is none. */
SL_DEV void load_queries(uint32_t type, const sl_fast_attn_args *a, const task *t, uint32_t dim,
                         uint32_t q[DIM / 16][4]) {
    const uint32_t g = sl_lane() / 4;
    const float *from = a->q + (size_t)t->row.row * a->q_stride + (size_t)(t->head + g) * dim;
    SL_UNROLL
    for (uint32_t c = 0; c < dim / 16; c++) {
        const float4 v =
            g < t->heads ? load4(from + key_column(type, dim, c)) : make_float4(0, 0, 0, 0);
        if (in_tf32(type)) {
            q[c][0] = tf32(v.x);
            q[c][1] = tf32(v.y);
            q[c][2] = tf32(v.z);
            q[c][3] = tf32(v.w);
        } else {
            q[c / 2][c % 2 * 2] = sl_fast_kv_query(type, v.x, v.y);
            q[c / 2][c % 2 * 2 + 1] = sl_fast_kv_query(type, v.z, v.w);
        }
    }
}

/* Sixteen positions: where their page is, the first one in it, and which rows of it are seen. */
typedef struct step {
    size_t page;
    uint32_t first, lo, hi;
} step;

SL_DEV step step_at(const sl_fast_attn_args *a, const task *t, uint32_t i, pages *p) {
    const uint32_t base = i * KEYS / PAGE * PAGE;
    step s;
    s.page = page_at(a, t, i * KEYS / PAGE - t->first, p);
    s.first = i * KEYS - base;
    s.lo = clamp(t->row.low, base, base + PAGE - 1) - base;
    s.hi = clamp(t->row.pos, base, base + PAGE - 1) - base;
    return s;
}

/* Keys of a step, from the rows of its page. */
SL_DEV void load_keys(uint32_t type, const uint8_t *rows, const step *s, uint32_t dim,
                      uint4 k[2][DIM / 16]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4, row = row_bytes(type, dim);
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint8_t *from = rows + clamp(s->first + 8 * i + g, s->lo, s->hi) * row;
        SL_UNROLL
        for (uint32_t c = 0; c < dim / (in_tf32(type) ? 16 : 32); c++)
            k[i][c] = sl_fast_kv_is_8(type)
                          ? sl_fast_kv_eight(type, from, key_column(type, dim, 2 * c))
                          : __ldcg((const uint4 *)(from + 64 * c + 16 * t));
    }
}

SL_DEV void load_values(uint32_t type, const uint8_t *rows, const step *s, uint32_t dim,
                        uint4 v[4][DIM / 32]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4, row = row_bytes(type, dim);
    SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint8_t *from = rows + clamp(s->first + 4 * i + t, s->lo, s->hi) * row;
        SL_UNROLL
        for (uint32_t c = 0; c < dim / (in_tf32(type) ? 32 : 64); c++)
            v[i][c] = sl_fast_kv_is_8(type)
                          ? sl_fast_kv_eight(type, from, value_column(type, dim, 2 * c))
                          : __ldcg((const uint4 *)(from + 128 * c + 16 * g));
    }
}

/* Two products of 16 keys: of the first half of these pieces of keys g and g + 8, and of the
 * second. */
SL_DEV void two_products(uint32_t type, uint4 k, uint4 k8, const uint32_t q[4], float first[4],
                         float second[4]) {
    const uint32_t xy[4] = {k.x, k8.x, k.y, k8.y}, zw[4] = {k.z, k8.z, k.w, k8.w};
    if (!in_tf32(type)) {
        sl_fast_kv_mma(type, first, xy, q);
        sl_fast_kv_mma(type, second, zw, q + 2);
    } else {
        const uint32_t a[4] = {tf32_of(xy[0]), tf32_of(xy[1]), tf32_of(xy[2]), tf32_of(xy[3])};
        const uint32_t b[4] = {tf32_of(zw[0]), tf32_of(zw[1]), tf32_of(zw[2]), tf32_of(zw[3])};
        sl_mma_m16n8k8_tf32(first, a, q);
        sl_mma_m16n8k8_tf32(second, b, q + 2);
    }
}

/* s: of keys g and g + 8, heads 2t and 2t + 1 each. */
SL_DEV void scores(uint32_t type, const uint4 k[2][DIM / 16], const uint32_t q[DIM / 16][4],
                   uint32_t dim, float s[4]) {
    float part[4][4]; /* apart, so that products need not wait for each other */
    SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) part[i][j] = 0;
    }
    SL_UNROLL
    for (uint32_t c = 0; c < dim / (in_tf32(type) ? 16 : 32); c++)
        two_products(type, k[0][c], k[1][c], q[c], part[2 * c % 4], part[(2 * c + 1) % 4]);
    SL_UNROLL
    for (uint32_t j = 0; j < 4; j++) s[j] = (part[0][j] + part[1][j]) + (part[2][j] + part[3][j]);
}

/* Of heads 2t and 2t + 1: the largest score so far, and this thread's part of the weights' sum. */
typedef struct running {
    float max[2], sum[2];
} running;

/* The largest over the lanes with the same t. */
SL_DEV float max_of_keys(float v) {
    v = fmaxf(v, __shfl_xor_sync(SL_ALL, v, 4));
    v = fmaxf(v, __shfl_xor_sync(SL_ALL, v, 8));
    return fmaxf(v, __shfl_xor_sync(SL_ALL, v, 16));
}

SL_DEV float sum_of_keys(float v) {
    v += __shfl_xor_sync(SL_ALL, v, 4);
    v += __shfl_xor_sync(SL_ALL, v, 8);
    return v + __shfl_xor_sync(SL_ALL, v, 16);
}

/* Scores become weights; factor: by which what was summed up shrinks. */
SL_DEV void weigh(const sl_fast_attn_args *a, const task *t, uint32_t position, running *r,
                  float s[4], float factor[2]) {
    const uint32_t g = sl_lane() / 4;
    SL_UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t at = position + g + 8 * (j / 2);
        s[j] = at >= t->row.low && at <= t->row.pos ? s[j] * a->scale : -INFINITY;
    }
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const float most = fmaxf(r->max[h], max_of_keys(fmaxf(s[h], s[h + 2])));
        factor[h] = sl_exp2_fast(r->max[h] - most);
        s[h] = sl_exp2_fast(s[h] - most);
        s[h + 2] = sl_exp2_fast(s[h + 2] - most);
        r->sum[h] = r->sum[h] * factor[h] + (s[h] + s[h + 2]);
        r->max[h] = most;
    }
}

/* A tile of columns, of which register i of what each of four keys brought has two. */
SL_DEV void add_tile_16(uint32_t type, float o[4], uint32_t k0, uint32_t k1, uint32_t k2,
                        uint32_t k3, const uint32_t b[2]) {
    const uint32_t a[4] = {sl_fast_kv_low(k0, k1), sl_fast_kv_high(k0, k1), sl_fast_kv_low(k2, k3),
                           sl_fast_kv_high(k2, k3)};
    sl_fast_kv_mma(type, o, a, b);
}

SL_DEV void add_values_16(uint32_t type, const uint4 v[4][DIM / 32], const float *weight,
                          uint32_t dim, float o[DIM / 16][4]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4;
    const float *const w = weight + t * HEADS + g;
    const uint32_t b[2] = {sl_fast_kv_pack(type, w[0], w[4 * HEADS]),
                           sl_fast_kv_pack(type, w[8 * HEADS], w[12 * HEADS])};
    SL_UNROLL
    for (uint32_t c = 0; c < dim / 64; c++) {
        add_tile_16(type, o[4 * c], v[0][c].x, v[1][c].x, v[2][c].x, v[3][c].x, b);
        add_tile_16(type, o[4 * c + 1], v[0][c].y, v[1][c].y, v[2][c].y, v[3][c].y, b);
        add_tile_16(type, o[4 * c + 2], v[0][c].z, v[1][c].z, v[2][c].z, v[3][c].z, b);
        add_tile_16(type, o[4 * c + 3], v[0][c].w, v[1][c].w, v[2][c].w, v[3][c].w, b);
    }
}

/* o: of 8 heads, tiles 2c and 2c + 1 have two each of the columns from value_column(c) on. weight:
 * of the step, [key][head]. */
SL_DEV void add_values(uint32_t type, const uint4 v[4][DIM / 32], const float *weight, uint32_t dim,
                       float o[DIM / 16][4]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4;
    if (!in_tf32(type)) {
        add_values_16(type, v, weight, dim, o);
        return;
    }
    SL_UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t b[2] = {tf32(weight[(8 * j + t) * HEADS + g]),
                               tf32(weight[(8 * j + 4 + t) * HEADS + g])};
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 32; c++) {
            const uint4 x = v[2 * j][c], y = v[2 * j + 1][c];
            const uint32_t low[4] = {tf32_of(x.x), tf32_of(x.y), tf32_of(y.x), tf32_of(y.y)};
            const uint32_t high[4] = {tf32_of(x.z), tf32_of(x.w), tf32_of(y.z), tf32_of(y.w)};
            sl_mma_m16n8k8_tf32(o[2 * c], low, b);
            sl_mma_m16n8k8_tf32(o[2 * c + 1], high, b);
        }
    }
}

/* Scores of the step from this position on become weights that all lanes can read, and what was
 * summed up shrinks. */
SL_DEV void take_step(const sl_fast_attn_args *a, const task *t, uint32_t position, uint32_t dim,
                      running *r, float s[4], float *weight, float o[DIM / 16][4]) {
    const uint32_t g = sl_lane() / 4, lane = sl_lane() % 4;
    float factor[2];
    weigh(a, t, position, r, s, factor);
    *(float2 *)(weight + g * HEADS + 2 * lane) = make_float2(s[0], s[1]);
    *(float2 *)(weight + (g + 8) * HEADS + 2 * lane) = make_float2(s[2], s[3]);
    if (__any_sync(SL_ALL, factor[0] != 1.0f || factor[1] != 1.0f)) {
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 16; c++) {
            SL_UNROLL
            for (uint32_t j = 0; j < 4; j++) o[c][j] *= factor[j % 2];
        }
    }
    __syncwarp();
}

/* This warp's steps, every WARPS-th of the part's: begin, begin + WARPS, ... below end. */
typedef struct steps {
    uint32_t begin, end;
} steps;

SL_DEV steps steps_of_warp(const task *t) {
    steps s = {t->first * PAGE / KEYS, t->end * PAGE / KEYS};
    if (s.begin < t->row.low / KEYS) s.begin = t->row.low / KEYS;
    if (s.end > t->row.pos / KEYS + 1) s.end = t->row.pos / KEYS + 1;
    s.begin += sl_warp();
    return s;
}

/* room: two times [KEYS][HEADS] weights of it alone. */
SL_DEV void walk(uint32_t type, const sl_fast_attn_args *a, const task *t, uint32_t dim,
                 float *room, running *r, float o[DIM / 16][4]) {
    const uint8_t *const keys = a->k + t->kv_head * a->head_bytes;
    const uint8_t *const values = a->v + t->kv_head * a->head_bytes;
    const steps all = steps_of_warp(t);
    if (all.begin >= all.end) {
        sl_fast_wait();
        return;
    }
    uint32_t q[DIM / 16][4];
    uint4 k[2][DIM / 16], v[4][DIM / 32];
    pages p = {0, numbers_from(a, t, 0), 0}; /* a list of the host */
    step at = step_at(a, t, all.begin, &p);
    sl_fast_wait();
    load_queries(type, a, t, dim, q);
    load_keys(type, keys + at.page, &at, dim, k);
    for (uint32_t i = all.begin, which = 0; i < all.end; i += WARPS, which ^= 1) {
        float s[4], *const weight = room + which * KEYS * HEADS;
        load_values(type, values + at.page, &at, dim, v);
        scores(type, k, q, dim, s);
        if (i + WARPS < all.end) {
            at = step_at(a, t, i + WARPS, &p);
            load_keys(type, keys + at.page, &at, dim, k);
        }
        take_step(a, t, i * KEYS, dim, r, s, weight, o);
        add_values(type, v, weight, dim, o);
    }
}

/* Keys and values of a step as they lie to shared memory. */
SL_DEV void ask_rows(const sl_fast_attn_args *a, const task *t, const step *s, uint32_t row,
                     uint8_t *to) {
    const size_t at = t->kv_head * a->head_bytes + s->page + s->first * row;
    sl_kv_copy_tile(a->k + at, KEYS * row, to, sl_lane(), SL_WARP);
    sl_kv_copy_tile(a->v + at, KEYS * row, to + KEYS * row, sl_lane(), SL_WARP);
}

/* The same of rows of 8 bits. stage: room for the rows of two steps of this warp alone. */
SL_DEV void walk_8(uint32_t type, const sl_fast_attn_args *a, const task *t, uint32_t dim,
                   float *room, uint8_t *stage, running *r, float o[DIM / 16][4]) {
    const uint32_t row = row_bytes(type, dim);
    const steps all = steps_of_warp(t);
    if (all.begin >= all.end) {
        sl_fast_wait();
        return;
    }
    uint32_t q[DIM / 16][4];
    uint4 k[2][DIM / 16], v[4][DIM / 32];
    pages p = {0, numbers_from(a, t, 0), 0};
    step at = step_at(a, t, all.begin, &p), next = at;
    sl_fast_wait();
    ask_rows(a, t, &at, row, stage);
    sl_cp_async_commit();
    load_queries(type, a, t, dim, q);
    for (uint32_t i = all.begin, which = 0; i < all.end; i += WARPS, which ^= 1, at = next) {
        float s[4], *const weight = room + which * KEYS * HEADS;
        /* rows from the page's first on, of which these sixteen are here */
        const uint8_t *const keys = stage + which * 2 * KEYS * row - at.first * row;
        if (i + WARPS < all.end) {
            next = step_at(a, t, i + WARPS, &p);
            ask_rows(a, t, &next, row, stage + (which ^ 1) * 2 * KEYS * row);
        }
        sl_cp_async_commit();
        sl_cp_async_wait(1);
        __syncwarp();
        load_keys(type, keys, &at, dim, k);
        scores(type, k, q, dim, s);
        take_step(a, t, i * KEYS, dim, r, s, weight, o);
        load_values(type, keys + KEYS * row, &at, dim, v);
        add_values(type, v, weight, dim, o);
        __syncwarp();
    }
}

/* ---- merging ---- */

/* What a block's warps have, for all to read. */
typedef struct block_sums {
    float *o;         /* [WARPS][HEADS][dim] */
    float *max, *sum; /* [WARPS][HEADS] */
} block_sums;

SL_DEV void show_sums(uint32_t type, uint32_t dim, const running *r, const float o[DIM / 16][4],
                      const block_sums *b) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4, w = sl_warp();
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t head = w * HEADS + 2 * t + h;
        const float sum = sum_of_keys(r->sum[h]);
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 32; c++)
            *(float4 *)(b->o + head * dim + value_column(type, dim, c)) =
                make_float4(o[2 * c][h], o[2 * c][h + 2], o[2 * c + 1][h], o[2 * c + 1][h + 2]);
        if (g == 0) {
            b->max[head] = r->max[h];
            b->sum[head] = sum;
        }
    }
}

SL_DEV void add_scaled(float4 *sum, float f, float4 v) {
    sum->x += f * v.x;
    sum->y += f * v.y;
    sum->z += f * v.z;
    sum->w += f * v.w;
}

/* Result of four columns of head h: divided, the sink counted. */
SL_DEV void store(const sl_fast_attn_args *a, const task *t, uint32_t h, uint32_t dim,
                  uint32_t column, float max, float sum, float4 v) {
    float f = 1;
    if (a->sink) {
        const float sink = a->sink[t->head + h] * LOG2E, most = fmaxf(max, sink);
        f = sl_exp2_fast(max - most);
        sum = sum * f + sl_exp2_fast(sink - most);
    }
    f /= sum;
    float *to = a->o + (size_t)t->row.row * a->o_stride + (size_t)(t->head + h) * dim + column;
    *(float4 *)to = make_float4(f * v.x, f * v.y, f * v.z, f * v.w);
}

/* Sums of this block's warps, in their order: the result, or this part of it. */
SL_DEV void merge_warps(const sl_fast_attn_args *a, const task *t, uint32_t dim,
                        const block_sums *b) {
    const uint32_t each = dim / 4, column = threadIdx.x % each * 4;
    const size_t slot = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * HEADS;
    for (uint32_t h = threadIdx.x / each; h < t->heads; h += THREADS / each) {
        float max = b->max[h], sum = 0;
        float4 v = make_float4(0, 0, 0, 0);
        SL_UNROLL
        for (uint32_t w = 1; w < WARPS; w++) max = fmaxf(max, b->max[w * HEADS + h]);
        SL_UNROLL
        for (uint32_t w = 0; w < WARPS; w++) {
            const float f = sl_exp2_fast(b->max[w * HEADS + h] - max);
            sum += f * b->sum[w * HEADS + h];
            add_scaled(&v, f, *(const float4 *)(b->o + (w * HEADS + h) * dim + column));
        }
        if (t->parts == 1) {
            store(a, t, h, dim, column, max, sum, v);
            continue;
        }
        *(float4 *)(a->part + (slot + h) * dim + column) = v;
        if (column == 0) *(float2 *)(a->state + (slot + h) * 2) = make_float2(max, sum);
    }
}

/* Parts of a row, in their order: a head a warp. */
SL_DEV void merge_parts(const sl_fast_attn_args *a, const task *t, uint32_t dim) {
    const uint32_t column = sl_lane() * 4 < dim ? sl_lane() * 4 : 0;
    for (uint32_t h = sl_warp(); h < t->heads; h += WARPS) {
        const size_t stride = (size_t)gridDim.x * HEADS;
        const size_t slot = (size_t)t->row.first_block * stride + blockIdx.x * HEADS + h;
        const bool mine = sl_lane() < t->parts;
        const float *state = a->state + (slot + (mine ? sl_lane() : 0) * stride) * 2;
        const float own = mine ? __ldcg(state) : -INFINITY;
        float max = max_of_keys(own), sum = 0;
        max = fmaxf(max, __shfl_xor_sync(SL_ALL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(SL_ALL, max, 2));
        const float f = sl_exp2_fast(own - max), part = mine ? f * __ldcg(state + 1) : 0.0f;
        float4 v = make_float4(0, 0, 0, 0);
        for (uint32_t i = 0; i < t->parts; i++) {
            sum += __shfl_sync(SL_ALL, part, i);
            add_scaled(&v, __shfl_sync(SL_ALL, f, i),
                       load4(a->part + (slot + i * stride) * dim + column));
        }
        if (sl_lane() * 4 < dim) store(a, t, h, dim, column, max, sum, v);
    }
}

/* Whether all other parts of this row are there. */
SL_DEV bool is_last(const sl_fast_attn_args *a, const task *t) {
    return sl_fast_is_last(a->done + (size_t)t->slot * gridDim.x + blockIdx.x, t->parts);
}

/* Floats of shared memory: weights of all warps, and behind them the rows of two steps of 8 bits of
 * each; then what they have summed up. */
#define WEIGHTS     (WARPS * 2 * KEYS * HEADS)
#define ROOM        (WARPS * HEADS * DIM)
#define ROOM_8(dim) (WEIGHTS + WARPS * 4 * KEYS * (dim / 32 * SL_KV_Q8_BYTES) / 4)

SL_DEV void attend(uint32_t type, const sl_fast_attn_args *a, uint32_t dim, float *room) {
    sl_fast_let_next();
    SL_SHARED(float, numbers, 2 * WARPS * HEADS);
    const task t = task_of_block(a);
    const block_sums b = {room, numbers, numbers + WARPS * HEADS};
    float *const weights = room + sl_warp() * 2 * KEYS * HEADS;
    running r = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[DIM / 16][4];
    if (t.heads == 0) return;
    if (a->list && blockIdx.y >= a->list->blocks) {
        sl_fast_wait();
        return;
    }
    SL_UNROLL
    for (uint32_t c = 0; c < DIM / 16; c++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) o[c][j] = 0;
    }
    if (sl_fast_kv_is_8(type))
        walk_8(type, a, &t, dim, weights,
               (uint8_t *)(room + WEIGHTS) + sl_warp() * 4 * KEYS * row_bytes(type, dim), &r, o);
    else
        walk(type, a, &t, dim, weights, &r, o);
    __syncthreads();
    show_sums(type, dim, &r, o, &b);
    __syncthreads();
    merge_warps(a, &t, dim, &b);
    if (t.parts > 1 && is_last(a, &t)) merge_parts(a, &t, dim);
}

#define ATTEND(name, type, dim, floats, blocks)                                                    \
    SL_KERNEL_BOUNDS(name, sl_fast_attn_args, 128, blocks) {                                       \
        SL_SHARED(float, room, floats);                                                            \
        attend(type, &a, dim, room);                                                               \
    }
ATTEND(sl_k_fast_attn_64, SL_KV_F32, 64, ROOM, 3)
ATTEND(sl_k_fast_attn_128, SL_KV_F32, 128, ROOM, 2)
ATTEND(sl_k_fast_attn_f16_64, SL_KV_F16, 64, ROOM, 4)
ATTEND(sl_k_fast_attn_f16_128, SL_KV_F16, 128, ROOM, 3)
ATTEND(sl_k_fast_attn_bf16_64, SL_KV_BF16, 64, ROOM, 4)
ATTEND(sl_k_fast_attn_bf16_128, SL_KV_BF16, 128, ROOM, 3)
ATTEND(sl_k_fast_attn_q8_0_64, SL_KV_Q8_0, 64, ROOM_8(64), 4)
ATTEND(sl_k_fast_attn_q8_0_128, SL_KV_Q8_0, 128, ROOM_8(128), 3)
ATTEND(sl_k_fast_attn_fp8_64, SL_KV_FP8, 64, ROOM_8(64), 4)
ATTEND(sl_k_fast_attn_fp8_128, SL_KV_FP8, 128, ROOM_8(128), 3)
