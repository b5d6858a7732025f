/* Products of one to four rows with weights in bf16, numerics fast: what decoding one request is
 * made of. Memory is all that they wait for, so every lane has 16 bytes of eight weight rows under
 * way, the first ones before the kernels in front have ended; or every warp has a ring of stages in
 * shared memory that the copy engine fills. Both forms give the same bits: which of them a GPU is
 * faster with is measured there (few_choice.c).
 *
 * A block has some rows of weights, which its warps share by columns: a warp keeps 256 values of x
 * in registers and multiplies the same columns of all rows with them, or of some of the rows where
 * there are fewer columns than warps. Products are f32; sums are made over the lanes, then over the
 * columns of a row, both in a fixed order: a product's bits depend on its shape alone, not on how
 * many rows go with it. Routed experts are the same walk over several sets of rows. */
#include "stage/cuda/kernels/args_fast_vec.h"
#include "stage/cuda/kernels/async.h"
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/lanes.h"
#include "stage/cuda/kernels/route_row.h"

#define WARPS  (SL_VEC_THREADS / SL_WARP)
#define PART   SL_VEC_PART
#define AHEAD  SL_VEC_AHEAD
#define STAGES SL_VEC_STAGES

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define RING false /* there is no copy engine, and nobody asks for the kernels by it */
#else
#define RING true
#endif

/* What a block walks: `sets` of `rows` rows of weights with k values each, in parts of 256. All in
 * shared memory; rows NULL are zero. */
typedef struct vec_plan {
    const uint8_t **row; /* [sets][rows] */
    float *x;            /* [sets or 1][rows of x][parts * PART] */
    float *sum;          /* [sets][parts][rows][rows of x] */
    uint32_t rows, parts, k;
    uint32_t x_set; /* floats from one set's x to the next one's */
    uint8_t *ring;  /* this warp's [STAGES][AHEAD][PART] values of weights, where there is one */
    sl_mbar *full;  /* [STAGES] */
} vec_plan;

/* Where a warp is: rows from row .. to end - 1 of a part. Its units are number `unit`, and every
 * WARPS-th of `units` behind it; 1 << cuts of them share the rows of a part. */
typedef struct vec_at {
    uint32_t unit, units, cuts, row, end;
} vec_at;

SL_DEV void vec_enter(const vec_plan *p, vec_at *at) {
    const uint32_t cut = at->unit & ((1u << at->cuts) - 1);
    at->row = p->rows * cut >> at->cuts;
    at->end = at->unit < at->units ? p->rows * (cut + 1) >> at->cuts : at->row;
}

/* Parts are cut where they would leave warps without work, if enough rows are left. */
SL_DEV vec_at vec_first(const vec_plan *p, uint32_t sets) {
    const uint32_t parts = sets * p->parts;
    vec_at at;
    at.cuts = 0;
    while ((parts << at.cuts) % WARPS && p->rows > 1u << at.cuts) at.cuts++;
    at.unit = __shfl_sync(SL_ALL, sl_warp(), 0); /* one number for all, as the compiler sees */
    at.units = parts << at.cuts;
    vec_enter(p, &at);
    return at;
}

SL_DEV void vec_next(const vec_plan *p, vec_at *at) {
    at->row += AHEAD;
    if (at->row < at->end || at->unit >= at->units) return;
    at->unit += WARPS;
    vec_enter(p, at);
}

/* Begins to copy the rows at `at` to a stage, a lane each. */
SL_DEV void vec_fill(const vec_plan *p, const vec_at *at, uint32_t stage) {
    const uint32_t part = at->unit >> at->cuts, first = part % p->parts * PART;
    const uint32_t n = at->end - at->row, bytes = 2 * (p->k - first < PART ? p->k - first : PART);
    const uint8_t *row = NULL;
    if (sl_lane() < AHEAD && sl_lane() < n)
        row = p->row[part / p->parts * p->rows + at->row + sl_lane()];
    const uint32_t there = __ballot_sync(SL_ALL, row != NULL);
    if (sl_lane() == 0) sl_mbar_expect(&p->full[stage], (uint32_t)__popc(there) * bytes);
    __syncwarp();
    if (row)
        sl_bulk_copy_once(p->ring + (stage * AHEAD + sl_lane()) * 2 * PART, row + 2 * (size_t)first,
                          bytes, &p->full[stage]);
}

/* This lane's values of the rows at `at`, from a stage or, without a ring, from memory; what is not
 * there is zero. */
SL_DEV void vec_read(const vec_plan *p, const vec_at *at, bool ring, uint32_t stage,
                     uint4 w[AHEAD]) {
    const uint32_t part = at->unit >> at->cuts, k = part % p->parts * PART + 8 * sl_lane();
    const uint8_t *const *row = p->row + part / p->parts * p->rows + at->row;
    const uint32_t n = k < p->k ? at->end - at->row : 0;
    SL_UNROLL
    for (uint32_t u = 0; u < AHEAD; u++) {
        const uint8_t *from = u < n ? row[u] : NULL;
        w[u] = make_uint4(0, 0, 0, 0);
        if (from && ring)
            w[u] = *(const uint4 *)(p->ring + (stage * AHEAD + u) * 2 * PART + 16 * sl_lane());
        else if (from)
            w[u] = sl_load16_once(from + 2 * (size_t)k);
    }
}

SL_DEV void vec_load_x(const vec_plan *p, const vec_at *at, uint32_t rows, float x[][8]) {
    const uint32_t part = at->unit >> at->cuts;
    const float *from = p->x + part / p->parts * p->x_set + part % p->parts * PART + 8 * sl_lane();
    SL_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        const float4 lo = *(const float4 *)(from + r * p->parts * PART);
        const float4 hi = *(const float4 *)(from + r * p->parts * PART + 4);
        x[r][0] = lo.x, x[r][1] = lo.y, x[r][2] = lo.z, x[r][3] = lo.w;
        x[r][4] = hi.x, x[r][5] = hi.y, x[r][6] = hi.z, x[r][7] = hi.w;
    }
}

SL_DEV float vec_dot(uint4 w, const float x[8]) {
    float s = sl_f32_of_bits(w.x << 16) * x[0];
    float t = sl_f32_of_bits(w.z << 16) * x[4];
    s = fmaf(sl_f32_of_bits(w.x & 0xffff0000u), x[1], s);
    t = fmaf(sl_f32_of_bits(w.z & 0xffff0000u), x[5], t);
    s = fmaf(sl_f32_of_bits(w.y << 16), x[2], s);
    t = fmaf(sl_f32_of_bits(w.w << 16), x[6], t);
    s = fmaf(sl_f32_of_bits(w.y & 0xffff0000u), x[3], s);
    return s + fmaf(sl_f32_of_bits(w.w & 0xffff0000u), x[7], t);
}

/* Sums over the lanes of eight values: lane 4 i + j gets that of value i. */
SL_DEV float vec_fold(float v[AHEAD]) {
    const uint32_t lane = sl_lane();
    SL_UNROLL
    for (uint32_t by = 16, n = AHEAD / 2; n; by /= 2, n /= 2) {
        const bool high = (lane & by) != 0;
        SL_UNROLL
        for (uint32_t i = 0; i < n; i++) {
            const float keep = high ? v[i + n] : v[i], give = high ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(SL_ALL, give, by);
        }
    }
    v[0] += __shfl_xor_sync(SL_ALL, v[0], 2);
    return v[0] + __shfl_xor_sync(SL_ALL, v[0], 1);
}

/* Where a warp multiplies, and where its ring is filled from; without one, the next weights. */
typedef struct vec_walk {
    vec_at now, ahead;
    uint4 w[AHEAD];
} vec_walk;

SL_DEV void vec_begin(const vec_plan *p, uint32_t sets, bool ring, vec_walk *walk) {
    walk->now = walk->ahead = vec_first(p, sets);
    if (!ring) {
        vec_read(p, &walk->now, false, 0, walk->w);
        return;
    }
    if (sl_lane() == 0) {
        for (uint32_t i = 0; i < STAGES; i++) sl_mbar_init(&p->full[i], 1);
        sl_mbar_ready();
    }
    __syncwarp();
    for (uint32_t i = 0; i < STAGES && walk->ahead.unit < walk->ahead.units; i++) {
        vec_fill(p, &walk->ahead, i);
        vec_next(p, &walk->ahead);
    }
}

/* What is behind these rows begins to come, into the stage that they were in. */
SL_DEV void vec_renew(const vec_plan *p, vec_walk *walk, bool ring, uint32_t stage) {
    if (!ring) {
        if (walk->now.unit < walk->now.units) vec_read(p, &walk->now, false, 0, walk->w);
        return;
    }
    __syncwarp(); /* all have read the stage */
    if (walk->ahead.unit >= walk->ahead.units) return;
    vec_fill(p, &walk->ahead, stage);
    vec_next(p, &walk->ahead);
}

/* All of a warp's rows; rows: of x, a constant, as `ring` is. */
SL_DEV void vec_multiply(const vec_plan *p, vec_walk *walk, uint32_t rows, bool ring) {
    vec_at *at = &walk->now;
    float x[SL_VEC_ROWS][8];
    uint32_t stage = 0, parity = 0;
    for (bool fresh = true; at->unit < at->units;) {
        float v[SL_VEC_ROWS][AHEAD];
        const uint32_t part = at->unit >> at->cuts, row = at->row + sl_lane() / 4;
        const uint32_t unit = at->unit;
        const bool mine = row < at->end && sl_lane() % 4 == 0;
        if (fresh) vec_load_x(p, at, rows, x);
        if (ring) {
            sl_mbar_wait(&p->full[stage], parity);
            vec_read(p, at, true, stage, walk->w);
        }
        SL_UNROLL
        for (uint32_t u = 0; u < AHEAD; u++) {
            SL_UNROLL
            for (uint32_t r = 0; r < rows; r++) v[r][u] = vec_dot(walk->w[u], x[r]);
        }
        vec_next(p, at);
        fresh = at->unit != unit;
        vec_renew(p, walk, ring, stage);
        SL_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const float sum = vec_fold(v[r]);
            if (mine) p->sum[(part * p->rows + row) * rows + r] = sum;
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
}

/* What all parts of a row of a set have. */
SL_DEV float vec_sum(const vec_plan *p, uint32_t set, uint32_t row, uint32_t rows, uint32_t r) {
    float sum = 0;
    for (uint32_t part = 0; part < p->parts; part++)
        sum += p->sum[((set * p->parts + part) * p->rows + row) * rows + r];
    return sum;
}

/* A block's plan over `rows` rows of weights of each set. */
SL_DEV vec_plan vec_plan_of(uint8_t *room, const sl_vec_room *r, uint32_t rows, uint32_t k) {
    SL_SHARED(sl_mbar, full, WARPS * STAGES);
    vec_plan p;
    p.row = (const uint8_t **)(room + r->row);
    p.x = (float *)(room + r->x);
    p.sum = (float *)(room + r->sum);
    p.rows = rows, p.parts = r->parts, p.k = k, p.x_set = 0;
    p.ring = room + sl_warp() * (SL_VEC_RING / WARPS);
    p.full = full + sl_warp() * STAGES;
    return p;
}

/* A row of k values, a multiple of 4, to shared memory; what lies behind its end is zero. NULL: all
 * is. */
SL_DEV void vec_stage(const float *from, uint32_t k, uint32_t wide, float *x) {
    for (uint32_t i = 4 * threadIdx.x; i < wide; i += 4 * SL_VEC_THREADS) {
        float4 v = make_float4(0, 0, 0, 0);
        if (from && i < k) v = __ldcg((const float4 *)(from + i));
        *(float4 *)(x + i) = v;
    }
}

/* This block's share of n values. */
SL_DEV uint32_t vec_cut(uint32_t n, uint32_t block) {
    return (uint32_t)((uint64_t)n * block / gridDim.x);
}

/* ---- products ---- */

/* Sums of a value each of some rows over all threads, for all threads. */
SL_DEV void vec_block_sums(uint32_t rows, float s[SL_VEC_ROWS]) {
    SL_SHARED2(float, part, SL_VEC_ROWS, WARPS);
    SL_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        SL_UNROLL
        for (uint32_t by = 16; by; by /= 2) s[r] += __shfl_xor_sync(SL_ALL, s[r], by);
        if (sl_lane() == 0) part[r][sl_warp()] = s[r];
    }
    __syncthreads();
    SL_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        s[r] = 0;
        SL_UNROLL
        for (uint32_t w = 0; w < WARPS; w++) s[r] += part[r][w];
    }
    __syncthreads();
}

/* The same threads' values of staged rows, normalised. */
SL_DEV void vec_norm(const sl_vec_args *a, uint32_t rows, uint32_t wide, float *x) {
    float mean[SL_VEC_ROWS] = {0}, s[SL_VEC_ROWS] = {0};
    if (a->centred) {
        SL_UNROLL
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t i = 4 * threadIdx.x; i < a->k; i += 4 * SL_VEC_THREADS)
                for (uint32_t e = 0; e < 4; e++) mean[r] += x[r * wide + i + e];
        vec_block_sums(rows, mean);
    }
    SL_UNROLL
    for (uint32_t r = 0; r < rows; r++) {
        mean[r] /= (float)a->k;
        for (uint32_t i = 4 * threadIdx.x; i < a->k; i += 4 * SL_VEC_THREADS) {
            const float4 v = *(const float4 *)(x + r * wide + i);
            const float d[4] = {v.x - mean[r], v.y - mean[r], v.z - mean[r], v.w - mean[r]};
            SL_UNROLL
            for (uint32_t e = 0; e < 4; e++) s[r] = fmaf(d[e], d[e], s[r]);
        }
    }
    vec_block_sums(rows, s);
    for (uint32_t i = 4 * threadIdx.x; i < a->k; i += 4 * SL_VEC_THREADS) {
        float w[4];
        SL_UNROLL
        for (uint32_t e = 0; e < 4; e++) w[e] = sl_plain_value(a->norm, a->norm_type, i + e);
        SL_UNROLL
        for (uint32_t r = 0; r < rows; r++) {
            const float inv = 1.0f / sqrtf(s[r] / (float)a->k + a->eps);
            const float4 v = *(const float4 *)(x + r * wide + i);
            const float4 h =
                make_float4((v.x - mean[r]) * inv * w[0], (v.y - mean[r]) * inv * w[1],
                            (v.z - mean[r]) * inv * w[2], (v.w - mean[r]) * inv * w[3]);
            *(float4 *)(x + r * wide + i) = h;
            if (blockIdx.x == 0 && r < a->n_rows)
                *(float4 *)(a->h + (size_t)r * a->h_stride + i) = h;
        }
    }
}

SL_DEV const sl_vec_job *vec_job(const sl_vec_args *a, uint32_t output) {
    uint32_t j = 0;
    while (j + 1 < a->n_jobs && a->job[j + 1].first <= output) j++;
    return &a->job[j];
}

SL_DEV void vec_store(const sl_vec_args *a, const vec_plan *p, uint32_t rows, uint32_t first,
                      uint32_t n) {
    for (uint32_t i = threadIdx.x; i < n * rows; i += SL_VEC_THREADS) {
        const uint32_t o = i / rows, r = i % rows;
        const sl_vec_job *j = vec_job(a, first + o);
        const uint32_t col = first + o - j->first;
        if (r >= a->n_rows) continue;
        float v = vec_sum(p, 0, o * a->sides, rows, r);
        if (a->sides == 2) v = sl_fast_swiglu(v, vec_sum(p, 0, 2 * o + 1, rows, r), 0);
        float *y = j->y + (size_t)r * j->y_stride + col;
        if (j->gate) v = sl_fast_swiglu(*y, v, 0);
        *y = v;
        if (j->sum) j->sum[(size_t)r * j->sum_stride + col] += v;
    }
}

SL_DEV void vec_product(const sl_vec_args *a, uint32_t rows, bool ring) {
    SL_DYNAMIC(uint8_t, room);
    const sl_vec_room r = sl_vec_room_of(ring, a->most * a->sides, rows, a->k, rows);
    const uint32_t first = vec_cut(a->outputs, blockIdx.x);
    const uint32_t n = vec_cut(a->outputs, blockIdx.x + 1) - first;
    const vec_plan p = vec_plan_of(room, &r, n * a->sides, a->k);
    for (uint32_t i = threadIdx.x; i < n * a->sides; i += SL_VEC_THREADS) {
        const uint32_t o = first + i / a->sides, side = i % a->sides;
        const sl_vec_job *j = vec_job(a, o);
        p.row[i] = j->w[side] + (o - j->first) * j->stride[side];
    }
    __syncthreads();
    vec_walk walk;
    vec_begin(&p, 1, ring, &walk);
    if (a->fetch)
        for (uint32_t i = threadIdx.x; i < n * a->sides; i += SL_VEC_THREADS)
            sl_fast_fetch_row(p.row[i], 2 * a->k);
    if (a->norm) /* 128 bytes a thread */
        for (uint32_t i = threadIdx.x * 32; i < a->k; i += 32 * SL_VEC_THREADS)
            sl_fast_fetch((const uint8_t *)a->norm + (size_t)i * (a->norm_type == SL_F32 ? 4 : 2));
    sl_fast_let_next();
    sl_fast_wait();
    SL_UNROLL
    for (uint32_t i = 0; i < rows; i++)
        vec_stage(i < a->n_rows ? a->x + (size_t)i * a->x_stride : NULL, a->k, r.wide,
                  p.x + i * r.wide);
    if (a->norm) vec_norm(a, rows, r.wide, p.x);
    __syncthreads();
    vec_multiply(&p, &walk, rows, ring);
    __syncthreads();
    vec_store(a, &p, rows, first, n);
    if (a->done && sl_fast_is_last(a->done, gridDim.x))
        for (uint32_t i = sl_warp(); i < a->n_rows; i += WARPS)
            sl_route_row(&a->route, i, (float *)(room + i * sl_cuda_route_room(a->route.n)));
}

SL_KERNEL_BOUNDS(sl_k_fast_vec_1, sl_vec_args, SL_VEC_THREADS, 4) {
    vec_product(&a, 1, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_ring_1, sl_vec_args, SL_VEC_THREADS, 2) {
    vec_product(&a, 1, RING);
}

SL_KERNEL_BOUNDS(sl_k_fast_vec_2, sl_vec_args, SL_VEC_THREADS, 2) {
    vec_product(&a, 2, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_ring_2, sl_vec_args, SL_VEC_THREADS, 2) {
    vec_product(&a, 2, RING);
}

SL_KERNEL_BOUNDS(sl_k_fast_vec_4, sl_vec_args, SL_VEC_THREADS, 2) {
    vec_product(&a, 4, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_ring_4, sl_vec_args, SL_VEC_THREADS, 2) {
    vec_product(&a, 4, RING);
}

/* ---- routed experts ---- */

/* The pairs of this block's row. */
typedef struct vec_pairs {
    uint32_t first, n;
} vec_pairs;

SL_DEV vec_pairs vec_pairs_of(const sl_vec_moe_args *a) {
    vec_pairs p;
    p.first = a->row_first ? a->row_first[blockIdx.y] : blockIdx.y * a->top_k;
    p.n = (a->row_first ? a->row_first[blockIdx.y + 1] : p.first + a->top_k) - p.first;
    return p;
}

/* Blocks take up the next kernel's room only behind the wait: down, which is always the next one,
 * reads ids and gates before its own. */
SL_DEV void vec_up(const sl_vec_moe_args *a, bool ring) {
    SL_DYNAMIC(uint8_t, room);
    SL_SHARED(uint32_t, id, SL_VEC_SETS);
    const sl_vec_room r = sl_vec_room_of(ring, a->top_k * 2 * a->most, 1, a->d_model, 1);
    const uint32_t first = vec_cut(a->d_ff, blockIdx.x);
    const uint32_t n = vec_cut(a->d_ff, blockIdx.x + 1) - first;
    const vec_plan p = vec_plan_of(room, &r, 2 * n, a->d_model);
    const sl_fast_expert *expert = a->expert;
    if (a->table) {
        sl_fast_expert *table = (sl_fast_expert *)(room + r.end);
        for (uint32_t i = threadIdx.x; i < a->n_experts; i += SL_VEC_THREADS)
            table[i] = a->expert[i];
        expert = table;
    }
    sl_fast_wait();
    sl_fast_let_next();
    const vec_pairs pairs = vec_pairs_of(a);
    if (threadIdx.x < pairs.n) {
        id[threadIdx.x] = __ldcg(a->id + pairs.first + threadIdx.x);
        if (a->heard && blockIdx.x == 0) a->heard[pairs.first + threadIdx.x] = id[threadIdx.x];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs.n * 2 * n; i += SL_VEC_THREADS) {
        const uint32_t e = id[i / (2 * n)], up = i / n % 2, f = first + i % n;
        const uint8_t *w = NULL;
        if (e < a->n_experts) w = up ? expert[e].up : expert[e].gate;
        p.row[i] = w ? w + (size_t)f * a->d_model * 2 : NULL;
    }
    __syncthreads();
    vec_walk walk;
    vec_begin(&p, pairs.n, ring, &walk);
    vec_stage(a->x + (size_t)blockIdx.y * a->d_model, a->d_model, r.wide, p.x);
    __syncthreads();
    vec_multiply(&p, &walk, 1, ring);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs.n * n; i += SL_VEC_THREADS) {
        const uint32_t set = i / n, f = i % n;
        const float m =
            sl_fast_swiglu(vec_sum(&p, set, f, 1, 0), vec_sum(&p, set, n + f, 1, 0), a->limit);
        a->mid[(size_t)(pairs.first + set) * a->d_ff + first + f] = (uint16_t)sl_pack_bf16(m, 0);
    }
}

SL_KERNEL_BOUNDS(sl_k_fast_vec_up, sl_vec_moe_args, SL_VEC_THREADS, 4) {
    vec_up(&a, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_ring_up, sl_vec_moe_args, SL_VEC_THREADS, 2) {
    vec_up(&a, RING);
}

SL_DEV void vec_down(const sl_vec_moe_args *a, bool ring) {
    SL_DYNAMIC(uint8_t, room);
    SL_SHARED(uint32_t, id, SL_VEC_SETS);
    SL_SHARED(float, gate, SL_VEC_SETS);
    const sl_vec_room r = sl_vec_room_of(ring, a->top_k * a->most, a->top_k, a->d_ff, 1);
    const uint32_t first = vec_cut(a->d_model, blockIdx.x);
    const uint32_t n = vec_cut(a->d_model, blockIdx.x + 1) - first;
    vec_plan p = vec_plan_of(room, &r, n, a->d_ff);
    p.x_set = r.wide;
    const vec_pairs pairs = vec_pairs_of(a);
    if (threadIdx.x < pairs.n) {
        id[threadIdx.x] = __ldcg(a->id + pairs.first + threadIdx.x);
        gate[threadIdx.x] = __ldcg(a->gate + pairs.first + threadIdx.x);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < pairs.n * n; i += SL_VEC_THREADS) {
        const uint32_t e = id[i / n];
        p.row[i] = NULL;
        if (e < a->n_experts) p.row[i] = a->expert[e].down + (size_t)(first + i % n) * a->d_ff * 2;
    }
    __syncthreads();
    vec_walk walk;
    vec_begin(&p, pairs.n, ring, &walk);
    if (a->fetch)
        for (uint32_t i = threadIdx.x; i < pairs.n * n; i += SL_VEC_THREADS)
            if (p.row[i]) sl_fast_fetch_row(p.row[i], 2 * a->d_ff);
    sl_fast_let_next();
    sl_fast_wait();
    for (uint32_t i = 8 * threadIdx.x; i < pairs.n * r.wide; i += 8 * SL_VEC_THREADS) {
        const uint32_t k = i % r.wide;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (k < a->d_ff)
            v = __ldcg((const uint4 *)(a->mid + (size_t)(pairs.first + i / r.wide) * a->d_ff + k));
        *(float4 *)(p.x + i) =
            make_float4(sl_f32_of_bits(v.x << 16), sl_f32_of_bits(v.x & 0xffff0000u),
                        sl_f32_of_bits(v.y << 16), sl_f32_of_bits(v.y & 0xffff0000u));
        *(float4 *)(p.x + i + 4) =
            make_float4(sl_f32_of_bits(v.z << 16), sl_f32_of_bits(v.z & 0xffff0000u),
                        sl_f32_of_bits(v.w << 16), sl_f32_of_bits(v.w & 0xffff0000u));
    }
    __syncthreads();
    vec_multiply(&p, &walk, 1, ring);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += SL_VEC_THREADS) {
        float *y = a->y + (size_t)blockIdx.y * a->d_model + first + i;
        float sum = a->add ? *y : 0.0f;
        for (uint32_t set = 0; set < pairs.n; set++)
            if (id[set] < a->n_experts) sum += gate[set] * vec_sum(&p, set, i, 1, 0);
        *y = sum;
    }
}

SL_KERNEL_BOUNDS(sl_k_fast_vec_down, sl_vec_moe_args, SL_VEC_THREADS, 4) {
    vec_down(&a, false);
}

SL_KERNEL_BOUNDS(sl_k_fast_ring_down, sl_vec_moe_args, SL_VEC_THREADS, 2) {
    vec_down(&a, RING);
}
