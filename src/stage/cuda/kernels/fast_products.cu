/* Products of numerics fast: weights in bf16, rows of f32 that become bf16 on the way, on tensor
 * cores. Weight rows are the rows of their tiles, rows of x the columns.
 *
 * Up to eight rows of x: a stream. A warp has one or two tiles of 16 weight rows and every eighth
 * 64 values of k; eight warps add up what they have. Which values of k meet in which step of a
 * tensor core is free as long as both sides agree, so a lane takes 16 bytes of a weight row as they
 * lie. Rows of x come as two numbers of bf16 each, which is as good as f32 here and costs nothing
 * where memory is what one waits for.
 *
 * More rows: tiles of 128 weight rows by 32, 64 or 128 rows of x through shared memory, 64 values
 * of k a stage. Where tiles are few, several blocks have parts of k, and the last one of them adds
 * the parts up, always in their order. */
#include "stage/cuda/kernels/fast.h"
#include "stage/cuda/kernels/product.h"

/* ---- a stream ---- */

#define STREAM_WARPS 8u
#define STEP         64u /* values of k of a warp at a time */

/* A lane of a warp: weight rows lane / 4 and 8 more of each tile, row lane / 4 of x, 16 bytes of
 * every 64. */
typedef struct stream_lane {
    const uint8_t *w[4];
    const float *x;
} stream_lane;

SL_DEV stream_lane stream_lane_of(const sl_product_job *j, const sl_product_tile *at,
                                  uint32_t tiles) {
    const uint32_t g = sl_lane() / 4, t = sl_lane() % 4;
    stream_lane l;
    SL_UNROLL
    for (uint32_t i = 0; i < 2 * tiles; i++) {
        const uint32_t m = i / 2, side = at->pairs ? i % 2 : 0;
        const uint32_t col = at->col0 + (at->pairs ? 8 * m + g : 8 * i + g);
        const uint32_t row = col < j->n ? col : j->n - 1;
        l.w[i] = j->side[side].w + row * j->side[side].stride + 16 * t;
    }
    l.x = (const float *)sl_product_x(j, at, g < at->rows ? g : 0) + 8 * t;
    return l;
}

/* A step's weights: two times 16 bytes of each row. */
SL_DEV void stream_load(const stream_lane *l, uint32_t tiles, uint32_t step, uint4 w[8]) {
    SL_UNROLL
    for (uint32_t i = 0; i < 2 * tiles; i++) {
        w[2 * i] = sl_load16_once(l->w[i] + 2 * STEP * step);
        w[2 * i + 1] = sl_load16_once(l->w[i] + 2 * STEP * step + STEP);
    }
}

SL_DEV void stream_load_x(const stream_lane *l, uint32_t step, float4 x[4]) {
    const float *from = l->x + STEP * step;
    x[0] = *(const float4 *)from, x[1] = *(const float4 *)(from + 4);
    x[2] = *(const float4 *)(from + 32), x[3] = *(const float4 *)(from + 36);
}

/* The last step of a row, where n < 64 values are left, a multiple of 8. */
SL_DEV void stream_load_tail(const stream_lane *l, uint32_t tiles, uint32_t step, uint32_t n,
                             uint4 w[8], float4 x[4]) {
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const bool there = 32 * h + sl_lane() % 4 * 8 < n;
        const float *from = l->x + STEP * step + 32 * h;
        SL_UNROLL
        for (uint32_t i = 0; i < 2 * tiles; i++) {
            const uint8_t *row = l->w[i] + 2 * STEP * step + STEP * h;
            w[2 * i + h] = make_uint4(0, 0, 0, 0);
            if (there) w[2 * i + h] = sl_load16_once(row);
        }
        x[2 * h] = x[2 * h + 1] = make_float4(0, 0, 0, 0);
        if (there) x[2 * h] = *(const float4 *)from, x[2 * h + 1] = *(const float4 *)(from + 4);
    }
}

/* Two values as bf16, and what is left of them as bf16. */
SL_DEV void stream_split(float lo, float hi, uint32_t *first, uint32_t *rest) {
    *first = sl_pack_bf16(lo, hi);
    *rest =
        sl_pack_bf16(lo - sl_f32_of_bits(*first << 16), hi - sl_f32_of_bits(*first & 0xffff0000u));
}

SL_DEV void stream_multiply(uint32_t tiles, const uint4 w[8], const float4 x[4], float d[2][4]) {
    SL_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t first[4], rest[4];
        stream_split(x[2 * h].x, x[2 * h].y, &first[0], &rest[0]);
        stream_split(x[2 * h].z, x[2 * h].w, &first[1], &rest[1]);
        stream_split(x[2 * h + 1].x, x[2 * h + 1].y, &first[2], &rest[2]);
        stream_split(x[2 * h + 1].z, x[2 * h + 1].w, &first[3], &rest[3]);
        SL_UNROLL
        for (uint32_t m = 0; m < tiles; m++) {
            const uint4 g = w[4 * m + h], g8 = w[4 * m + 2 + h];
            const uint32_t a0[4] = {g.x, g8.x, g.y, g8.y}, a1[4] = {g.z, g8.z, g.w, g8.w};
            sl_mma_m16n8k16_bf16(d[m], a0, first);
            sl_mma_m16n8k16_bf16(d[m], a0, rest);
            sl_mma_m16n8k16_bf16(d[m], a1, first + 2);
            sl_mma_m16n8k16_bf16(d[m], a1, rest + 2);
        }
    }
}

/* All steps of a warp; weights of `ahead` steps are under way, both constants. */
SL_DEV void stream_run(const stream_lane *l, uint32_t k, uint32_t tiles, uint32_t ahead,
                       float d[2][4]) {
    const uint32_t whole = k / STEP, warp = sl_warp();
    const uint32_t n = whole > warp ? (whole - warp + STREAM_WARPS - 1) / STREAM_WARPS : 0;
    uint4 w[4][8];
    float4 x[4], next[4];
    SL_UNROLL
    for (uint32_t i = 0; i < ahead; i++)
        if (i < n) stream_load(l, tiles, warp + STREAM_WARPS * i, w[i]);
    sl_fast_wait(); /* weights are there before what x comes from has run */
    if (n) stream_load_x(l, warp, next);
    for (uint32_t i = 0; i < n; i += ahead) {
        SL_UNROLL
        for (uint32_t u = 0; u < ahead; u++) {
            const uint32_t step = warp + STREAM_WARPS * (i + u);
            if (i + u >= n) continue;
            SL_UNROLL
            for (uint32_t e = 0; e < 4; e++) x[e] = next[e];
            if (i + u + 1 < n) stream_load_x(l, step + STREAM_WARPS, next);
            stream_multiply(tiles, w[u], x, d);
            if (i + u + ahead < n) stream_load(l, tiles, step + STREAM_WARPS * ahead, w[u]);
        }
    }
    if (k % STEP && whole % STREAM_WARPS == warp) {
        stream_load_tail(l, tiles, whole, k % STEP, w[0], x);
        stream_multiply(tiles, w[0], x, d);
    }
}

/* What the warps have of weight row m of a tile and row r of x. */
SL_DEV float stream_sum(const float *part, uint32_t tiles, uint32_t tile, uint32_t m, uint32_t r) {
    const uint32_t at = 128 * tile + (m % 8 * 4 + r / 2) * 4 + m / 8 * 2 + r % 2;
    float sum = 0;
    for (uint32_t w = 0; w < STREAM_WARPS; w++) sum += part[128 * tiles * w + at];
    return sum;
}

SL_DEV void stream(const sl_product_args *a, uint32_t tiles, uint32_t ahead) {
    SL_SHARED(float, part, STREAM_WARPS * 2 * 128);
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, SL_FAST_FEW_ROWS);
    const stream_lane l = stream_lane_of(j, &at, tiles);
    float d[2][4] = {{0}};
    sl_fast_let_next();
    stream_run(&l, j->k, tiles, ahead, d);
    SL_UNROLL
    for (uint32_t m = 0; m < tiles; m++)
        *(float4 *)(part + 128 * (tiles * sl_warp() + m) + 4 * sl_lane()) =
            make_float4(d[m][0], d[m][1], d[m][2], d[m][3]);
    __syncthreads();
    const uint32_t tile = threadIdx.x / 128, m = threadIdx.x % 16, r = threadIdx.x / 16 % 8;
    const uint32_t col = at.col0 + (at.pairs ? 8 : 16) * tile + m;
    if (tile >= tiles || r >= at.rows || (at.pairs && m >= 8) || col >= j->n) return;
    const float up = at.pairs ? stream_sum(part, tiles, tile, m + 8, r) : 0.0f;
    sl_product_store(j, at.r0 + r, col, stream_sum(part, tiles, tile, m, r), up);
}

SL_KERNEL_BOUNDS(sl_k_fast_stream_16, sl_product_args, SL_FAST_THREADS, 2) {
    stream(&a, 1, 4);
}

SL_KERNEL_BOUNDS(sl_k_fast_stream_32, sl_product_args, SL_FAST_THREADS, 2) {
    stream(&a, 2, 2);
}

/* ---- tiles ---- */

#define TILE_ROWS  128u /* of weights */
#define TILE_BYTES (TILE_ROWS * 128u)

/* Where piece `piece` of 16 bytes of row `row` lies: those that are read together lie in other
 * banks. */
SL_DEV uint32_t tile_at(uint32_t row, uint32_t piece) {
    return row * 128 + (piece ^ (row & 7)) * 16;
}

/* What a thread brings: piece threadIdx.x % 8 of rows threadIdx.x / 8 + 32 i, of weights and of x,
 * so many times 16 bytes behind the first ones. */
typedef struct tile_share {
    const uint8_t *w[2], *x; /* of rows i = 0, 1 and of rows i = 2, 3 */
    uint32_t w_at[4], x_at[4];
    uint32_t at, k, end; /* where in a stage; the next values of k */
} tile_share;

SL_DEV tile_share tile_share_of(const sl_product_args *a, const sl_product_job *j,
                                const sl_product_tile *at, uint32_t rows, uint32_t first) {
    const uint32_t mine = threadIdx.x / 8, piece = threadIdx.x % 8;
    tile_share s;
    s.at = tile_at(mine, piece), s.k = first + 8 * piece, s.end = j->k;
    s.w[0] = j->side[0].w, s.w[1] = j->side[at->pairs].w, s.x = j->x;
    SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t r = mine + 32 * i, row = sl_product_row_of(&a->shape, j, at, r);
        s.w_at[i] = (uint32_t)(row * j->side[i < 2 ? 0 : at->pairs].stride / 16);
        if (32 * i < rows)
            s.x_at[i] = (uint32_t)((sl_product_x(j, at, r < at->rows ? r : 0) - j->x) / 16);
    }
    return s;
}

SL_DEV void tile_copy(const tile_share *s, uint32_t i, uint8_t *stage) {
    const uint32_t k = s->k + STEP * i, n = k < s->end ? 16 : 0;
    SL_UNROLL
    for (uint32_t r = 0; r < 4; r++)
        sl_cp_async16_zero(stage + s->at + 4096 * r,
                           s->w[r / 2] + 16ull * (s->w_at[r] + (n ? k / 8 : 0)), n);
}

SL_DEV void tile_load(const tile_share *s, uint32_t rows, uint32_t i, float4 x[8]) {
    const uint32_t k = s->k + STEP * i;
    SL_UNROLL
    for (uint32_t r = 0; r < rows / 32; r++) {
        const float4 *from = (const float4 *)(s->x + 16ull * (s->x_at[r] + k / 4));
        x[2 * r] = x[2 * r + 1] = make_float4(0, 0, 0, 0);
        if (k < s->end) x[2 * r] = from[0], x[2 * r + 1] = from[1];
    }
}

SL_DEV void tile_put(const tile_share *s, uint32_t rows, const float4 x[8], uint8_t *stage) {
    SL_UNROLL
    for (uint32_t r = 0; r < rows / 32; r++) {
        const float4 a = x[2 * r], b = x[2 * r + 1];
        *(uint4 *)(stage + s->at + 4096 * r) =
            make_uint4(sl_pack_bf16(a.x, a.y), sl_pack_bf16(a.z, a.w), sl_pack_bf16(b.x, b.y),
                       sl_pack_bf16(b.z, b.w));
    }
}

/* A warp has weight rows 16 (warp % 4) and 64 more, and half of the rows of x: d[m][t] is tile t of
 * eight of these. */
SL_DEV void tile_multiply(const uint8_t *w, const uint8_t *x, uint32_t rows, float d[2][8][4]) {
    const uint32_t i = sl_lane() / 8, wm = sl_warp() % 4, wn = sl_warp() / 4;
    const uint32_t a_row = 16 * wm + i % 2 * 8 + sl_lane() % 8;
    const uint32_t b_row = wn * (rows / 2) + i / 2 * 8 + sl_lane() % 8;
    SL_UNROLL
    for (uint32_t k = 0; k < STEP / 16; k++) {
        uint32_t a[2][4];
        sl_ldmatrix_x4(a[0], w + tile_at(a_row, 2 * k + i / 2));
        sl_ldmatrix_x4(a[1], w + tile_at(64 + a_row, 2 * k + i / 2));
        SL_UNROLL
        for (uint32_t t = 0; t < rows / 32; t++) {
            uint32_t b[4];
            sl_ldmatrix_x4(b, x + tile_at(b_row + 16 * t, 2 * k + i % 2));
            SL_UNROLL
            for (uint32_t m = 0; m < 2; m++) {
                sl_mma_m16n8k16_bf16(d[m][2 * t], a[m], b);
                sl_mma_m16n8k16_bf16(d[m][2 * t + 1], a[m], b + 2);
            }
        }
    }
}

/* Numerics exact: what a segment of k sums up to is added to those before it. */
SL_DEV void tile_fold(uint32_t rows, float d[2][8][4], float sum[2][8][4]) {
    SL_UNROLL
    for (uint32_t m = 0; m < 2; m++) SL_UNROLL
    for (uint32_t t = 0; t < rows / 16; t++) SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        sum[m][t][i] += d[m][t][i];
        d[m][t][i] = 0;
    }
}

/* Weights are copied STAGES - 1 chunks ahead; of x one chunk lies in shared memory, one is in
 * registers. sum: of segments, in numerics exact; else NULL. */
SL_DEV void tile_run(const tile_share *s, uint8_t *room, uint32_t rows, uint32_t chunks,
                     float d[2][8][4], float sum[2][8][4]) {
    uint8_t *x_room = room + SL_FAST_STAGES * TILE_BYTES;
    float4 x[8];
    SL_UNROLL
    for (uint32_t i = 0; i < SL_FAST_STAGES - 1; i++) {
        if (i < chunks) tile_copy(s, i, room + i * TILE_BYTES);
        sl_cp_async_commit();
    }
    sl_fast_wait();
    tile_load(s, rows, 0, x);
    tile_put(s, rows, x, x_room);
    tile_load(s, rows, 1, x);
    for (uint32_t i = 0; i < chunks; i++) {
        const uint32_t next = i + SL_FAST_STAGES - 1;
        sl_cp_async_wait(SL_FAST_STAGES - 2);
        __syncthreads();
        if (next < chunks) tile_copy(s, next, room + next % SL_FAST_STAGES * TILE_BYTES);
        sl_cp_async_commit();
        if (i + 1 < chunks) tile_put(s, rows, x, x_room + (i + 1) % 2 * rows * 128);
        if (i + 2 < chunks) tile_load(s, rows, i + 2, x);
        tile_multiply(room + i % SL_FAST_STAGES * TILE_BYTES, x_room + i % 2 * rows * 128, rows, d);
        if (sum && (i % SL_EXACT_CHUNKS == SL_EXACT_CHUNKS - 1 || i + 1 == chunks))
            tile_fold(rows, d, sum);
    }
}

/* Puts what a block has of its part of k where the others find it. True: it came last, and d is
 * the sum of all parts. */
SL_DEV bool tile_meet(const sl_product_args *a, uint32_t rows, float d[2][8][4]) {
    const uint32_t across = rows / 16, each = 2 * across * SL_FAST_THREADS;
    float4 *all = (float4 *)a->parts + (uint64_t)blockIdx.x * gridDim.y * each + threadIdx.x;
    SL_UNROLL
    for (uint32_t i = 0; i < 2 * across; i++) {
        const float *f = d[i / across][i % across];
        __stcg(all + blockIdx.y * each + i * SL_FAST_THREADS, make_float4(f[0], f[1], f[2], f[3]));
    }
    if (!sl_fast_is_last(a->done + blockIdx.x, gridDim.y)) return false;
    SL_UNROLL
    for (uint32_t i = 0; i < 2 * across; i++) {
        float *f = d[i / across][i % across];
        f[0] = f[1] = f[2] = f[3] = 0;
        for (uint32_t part = 0; part < gridDim.y; part++) {
            const float4 v = __ldcg(all + part * each + i * SL_FAST_THREADS);
            f[0] += v.x, f[1] += v.y, f[2] += v.z, f[3] += v.w;
        }
    }
    return true;
}

SL_DEV void tile_end(const sl_product_job *j, const sl_product_tile *at, uint32_t rows,
                     float d[2][8][4]) {
    const uint32_t wm = sl_warp() % 4, wn = sl_warp() / 4;
    const uint32_t first = at->col0 + 16 * wm + sl_lane() / 4;
    SL_UNROLL
    for (uint32_t m = 0; m < 2; m++) SL_UNROLL
    for (uint32_t t = 0; t < rows / 16; t++) SL_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t r = wn * (rows / 2) + 8 * t + sl_lane() % 4 * 2 + i % 2;
        const uint32_t col = first + i / 2 * 8 + (at->pairs ? 0 : 64 * m);
        if (r < at->rows && col < j->n && !(at->pairs && m))
            sl_product_store(j, at->r0 + r, col, d[m][t][i], d[1][t][i]);
    }
}

SL_DEV void tile(const sl_product_args *a, uint32_t rows) {
    SL_DYNAMIC(uint8_t, room);
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, rows);
    const uint32_t chunks = (j->k + STEP - 1) / STEP;
    const uint32_t begin = chunks * blockIdx.y / gridDim.y;
    const uint32_t end = chunks * (blockIdx.y + 1) / gridDim.y;
    const tile_share share = tile_share_of(a, j, &at, rows, STEP * begin);
    float d[2][8][4] = {{{0}}};
    sl_fast_let_next();
    tile_run(&share, room, rows, end - begin, d, NULL);
    if (gridDim.y > 1 && !tile_meet(a, rows, d)) return;
    tile_end(j, &at, rows, d);
}

/* Numerics exact: k in segments of so many chunks, each a chain of its own from zero on, added up
 * in their order. Either a block has one of them, or all. */
SL_DEV void exact_tile(const sl_product_args *a, uint32_t rows) {
    SL_DYNAMIC(uint8_t, room);
    const sl_product_job *j = &a->job[sl_product_find(a, blockIdx.x)];
    const sl_product_tile at = sl_product_tile_of(&a->shape, j, blockIdx.x, rows);
    const uint32_t chunks = (j->k + STEP - 1) / STEP, mine = SL_EXACT_CHUNKS * blockIdx.y;
    const uint32_t begin = mine < chunks ? mine : chunks, left = chunks - begin;
    const uint32_t n = gridDim.y > 1 && left > SL_EXACT_CHUNKS ? SL_EXACT_CHUNKS : left;
    const tile_share share = tile_share_of(a, j, &at, rows, STEP * begin);
    float d[2][8][4] = {{{0}}}, sum[2][8][4] = {{{0}}};
    sl_fast_let_next();
    tile_run(&share, room, rows, n, d, sum);
    if (gridDim.y > 1 && !tile_meet(a, rows, sum)) return;
    tile_end(j, &at, rows, sum);
}

SL_KERNEL_BOUNDS(sl_k_exact_tile_32, sl_product_args, SL_FAST_THREADS, 2) {
    exact_tile(&a, 32);
}

SL_KERNEL_BOUNDS(sl_k_exact_tile_64, sl_product_args, SL_FAST_THREADS, 2) {
    exact_tile(&a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_32, sl_product_args, SL_FAST_THREADS, 2) {
    tile(&a, 32);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_64, sl_product_args, SL_FAST_THREADS, 2) {
    tile(&a, 64);
}

SL_KERNEL_BOUNDS(sl_k_fast_tile_128, sl_product_args, SL_FAST_THREADS, 2) {
    tile(&a, 128);
}
