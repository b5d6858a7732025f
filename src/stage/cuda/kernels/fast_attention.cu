/* Attention of single rows over pages, numerics fast: a row's positions are split over blocks, and
 * parts are merged in a fixed order by the block that finishes last.
 *
 * A warp takes 16 keys at a time, straight from memory to fragments: scores are the product of 16
 * keys and 8 query heads, sums that of values and weights, both on tensor cores in tf32. The order
 * of values along a dot product, and that of columns in a tile, is chosen so that each thread loads
 * 16 bytes at a time: thread (g, t) = (lane / 4, lane % 4) has of keys g and g + 8 values 16c + 4t
 * to + 3, and of the values of keys t, t + 4, t + 8, t + 12 columns 32c + 4g to + 3. The values of
 * a step, and the keys of the next, are under way while weights are made. */
#include "stage/cuda/kernels/args_fast_attention.h"
#include "stage/cuda/kernels/fast.h"

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

SL_DEV task task_of_block(const sl_fast_attn_args *a) {
    task t;
    uint32_t lo = 0, hi = a->n_rows;
    while (lo + 1 < hi) {
        const uint32_t mid = (lo + hi) / 2;
        if (a->row[mid].first_block <= blockIdx.y)
            lo = mid;
        else
            hi = mid;
    }
    t.slot = lo;
    t.row = a->row[lo];
    t.parts = (lo + 1 < a->n_rows ? a->row[lo + 1].first_block : a->blocks) - t.row.first_block;
    t.first = t.row.low / PAGE + (blockIdx.y - t.row.first_block) * a->per;
    t.end = t.row.pos / PAGE + 1;
    if (t.end > t.first + a->per) t.end = t.first + a->per;
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
    return (size_t)__shfl_sync(SL_ALL, p->now, i % SL_WARP) * a->page_floats;
}

/* To nearest of tf32, ties upwards. */
SL_DEV uint32_t tf32(float v) {
    uint32_t u;
    memcpy(&u, &v, 4);
    return u + 0x1000u;
}

SL_DEV uint32_t clamp(uint32_t v, uint32_t lo, uint32_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

SL_DEV float4 load4(const float *p) {
    return __ldcg((const float4 *)p);
}

/* The block's queries as fragments: 8 columns of heads, zeros where there is none. */
SL_DEV void load_queries(const sl_fast_attn_args *a, const task *t, uint32_t dim,
                         uint32_t q[DIM / 16][4]) {
    const uint32_t g = sl_lane() / 4, lane = sl_lane() % 4;
    const float *from =
        a->q + (size_t)t->row.row * a->q_stride + (size_t)(t->head + g) * dim + 4 * lane;
    SL_UNROLL
    for (uint32_t c = 0; c < dim / 16; c++) {
        const float4 v = g < t->heads ? load4(from + 16 * c) : make_float4(0, 0, 0, 0);
        q[c][0] = tf32(v.x);
        q[c][1] = tf32(v.y);
        q[c][2] = tf32(v.z);
        q[c][3] = tf32(v.w);
    }
}

/* Keys of a step; rows lo .. hi of the page are there. */
SL_DEV void load_keys(const float *page, uint32_t first, uint32_t lo, uint32_t hi, uint32_t dim,
                      float4 k[2][DIM / 16]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const float *from = page + clamp(first + 8 * i + g, lo, hi) * dim + 4 * t;
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 16; c++) k[i][c] = load4(from + 16 * c);
    }
}

SL_DEV void load_values(const float *page, uint32_t first, uint32_t lo, uint32_t hi, uint32_t dim,
                        float4 v[4][DIM / 32]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const float *from = page + clamp(first + 4 * i + t, lo, hi) * dim + 4 * g;
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 32; c++) v[i][c] = load4(from + 32 * c);
    }
}

/* s: of keys g and g + 8, heads 2t and 2t + 1 each. */
SL_DEV void scores(const float4 k[2][DIM / 16], const uint32_t q[DIM / 16][4], uint32_t dim,
                   float s[4]) {
    float part[4][4]; /* apart, so that products need not wait for each other */
    SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) part[i][j] = 0;
    }
    SL_UNROLL
    for (uint32_t c = 0; c < dim / 16; c++) {
        const uint32_t xy[4] = {tf32(k[0][c].x), tf32(k[1][c].x), tf32(k[0][c].y), tf32(k[1][c].y)};
        const uint32_t zw[4] = {tf32(k[0][c].z), tf32(k[1][c].z), tf32(k[0][c].w), tf32(k[1][c].w)};
        sl_mma_m16n8k8_tf32(part[2 * c % 4], xy, q[c]);
        sl_mma_m16n8k8_tf32(part[(2 * c + 1) % 4], zw, q[c] + 2);
    }
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

/* o: of 8 heads, tile 2c + i: columns 32c + 4g + 2i and one more. weight: of the step, [key][head].
 */
SL_DEV void add_values(const float4 v[4][DIM / 32], const float *weight, uint32_t dim,
                       float o[DIM / 16][4]) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4;
    SL_UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t b[2] = {tf32(weight[(8 * j + t) * HEADS + g]),
                               tf32(weight[(8 * j + 4 + t) * HEADS + g])};
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 32; c++) {
            const float4 x = v[2 * j][c], y = v[2 * j + 1][c];
            const uint32_t low[4] = {tf32(x.x), tf32(x.y), tf32(y.x), tf32(y.y)};
            const uint32_t high[4] = {tf32(x.z), tf32(x.w), tf32(y.z), tf32(y.w)};
            sl_mma_m16n8k8_tf32(o[2 * c], low, b);
            sl_mma_m16n8k8_tf32(o[2 * c + 1], high, b);
        }
    }
}

/* This warp's steps, every WARPS-th of the part's. room: two times [KEYS][HEADS] of it alone. */
SL_DEV void walk(const sl_fast_attn_args *a, const task *t, uint32_t dim, float *room, running *r,
                 float o[DIM / 16][4]) {
    const float *const keys = a->k + t->kv_head * a->head_floats;
    const float *const values = a->v + t->kv_head * a->head_floats;
    const uint32_t g = sl_lane() / 4, lane = sl_lane() % 4;
    uint32_t begin = t->first * PAGE / KEYS, end = t->end * PAGE / KEYS;
    if (begin < t->row.low / KEYS) begin = t->row.low / KEYS;
    if (end > t->row.pos / KEYS + 1) end = t->row.pos / KEYS + 1;
    begin += sl_warp();
    if (begin >= end) {
        sl_fast_wait();
        return;
    }
    uint32_t q[DIM / 16][4];
    float4 k[2][DIM / 16], v[4][DIM / 32];
    pages p = {0, numbers_from(a, t, 0), 0}; /* a list of the host */
    size_t at = page_at(a, t, begin * KEYS / PAGE - t->first, &p);
    sl_fast_wait();
    load_queries(a, t, dim, q);
    uint32_t base = begin * KEYS / PAGE * PAGE;
    uint32_t lo = clamp(t->row.low, base, base + PAGE - 1) - base;
    uint32_t hi = clamp(t->row.pos, base, base + PAGE - 1) - base;
    load_keys(keys + at, begin * KEYS - base, lo, hi, dim, k);
    for (uint32_t i = begin, which = 0; i < end; i += WARPS, which ^= 1) {
        float s[4], factor[2], *const weight = room + which * KEYS * HEADS;
        const uint32_t position = i * KEYS, next = i + WARPS;
        load_values(values + at, position - base, lo, hi, dim, v);
        scores(k, q, dim, s);
        if (next < end) {
            at = page_at(a, t, next * KEYS / PAGE - t->first, &p);
            base = next * KEYS / PAGE * PAGE;
            lo = clamp(t->row.low, base, base + PAGE - 1) - base;
            hi = clamp(t->row.pos, base, base + PAGE - 1) - base;
            load_keys(keys + at, next * KEYS - base, lo, hi, dim, k);
        }
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
        add_values(v, weight, dim, o);
    }
}

/* ---- merging ---- */

/* What a block's warps have, for all to read. */
typedef struct block_sums {
    float *o;         /* [WARPS][HEADS][dim] */
    float *max, *sum; /* [WARPS][HEADS] */
} block_sums;

SL_DEV void show_sums(uint32_t dim, const running *r, const float o[DIM / 16][4],
                      const block_sums *b) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4, w = sl_warp();
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t head = w * HEADS + 2 * t + h;
        const float sum = sum_of_keys(r->sum[h]);
        SL_UNROLL
        for (uint32_t c = 0; c < dim / 32; c++)
            *(float4 *)(b->o + head * dim + 32 * c + 4 * g) =
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
    SL_SHARED(uint32_t, before, 1);
    uint32_t *done = a->done + (size_t)t->slot * gridDim.x + blockIdx.x;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before[0] = atomicAdd(done, 1);
        if (before[0] == t->parts - 1) *done = 0;
    }
    __syncthreads();
    __threadfence();
    return before[0] == t->parts - 1;
}

SL_DEV void attend(const sl_fast_attn_args *a, uint32_t dim) {
    sl_fast_let_next();
    SL_SHARED(float, room, WARPS *HEADS *DIM);
    SL_SHARED(float, numbers, 2 * WARPS * HEADS);
    const task t = task_of_block(a);
    const block_sums b = {room, numbers, numbers + WARPS * HEADS};
    running r = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[DIM / 16][4];
    if (t.heads == 0) return;
    SL_UNROLL
    for (uint32_t c = 0; c < DIM / 16; c++) {
        SL_UNROLL
        for (uint32_t j = 0; j < 4; j++) o[c][j] = 0;
    }
    walk(a, &t, dim, room + sl_warp() * 2 * KEYS * HEADS, &r, o);
    __syncthreads();
    show_sums(dim, &r, o, &b);
    __syncthreads();
    merge_warps(a, &t, dim, &b);
    if (t.parts > 1 && is_last(a, &t)) merge_parts(a, &t, dim);
}

SL_KERNEL_BOUNDS(sl_k_fast_attn_64, sl_fast_attn_args, 128, 3) {
    attend(&a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_attn_128, sl_fast_attn_args, 128, 2) {
    attend(&a, 128);
}
