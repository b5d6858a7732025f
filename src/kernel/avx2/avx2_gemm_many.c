/* Products of many rows of activations: they are packed once for the tile, then three weight rows
 * at a time meet all of them, so that weights are read once and while arithmetic goes on. Register
 * tiles are 4 (or 3) rows by 3 columns of one half; half 0 of all rows comes before half 1, so that
 * the chains stay in registers over all of k that is packed and what the loops read stays in L1 and
 * L2. */
#include "kernel/avx2/gemm_pair.h"

#define GROUP      3u                /* weight rows at a time */
#define PACK_STEPS (SL_MANY_K / 16u) /* of k that are packed at a time: 256 KiB for 32 rows */
#define LONG_COLS  96u               /* columns at a time where k is longer */
#define MAX_R      4u

/* What comes after the group is asked for while arithmetic goes on: each turn, which is one
 * register tile of one half, asks for the `turn` bytes after those of the turn before, evenly. */
typedef struct hints {
    const uint8_t *at;
    size_t turn, pair; /* bytes of a turn, of two steps */
    uint32_t turns;    /* that ask for something */
    bool many;         /* lines at each pair: there are few turns */
} hints;

/* What the loops run over now. Chains lie in acc [column][row][2 halves][8], register tile by
 * register tile. */
typedef struct sweep {
    const sl_gemm_tile *t;
    uint32_t n_fours; /* rows in groups of four; the others come in groups of three */
    uint32_t x_steps; /* of k that xp holds */
    uint32_t x_at;    /* the first of them that counts now */
    uint32_t steps;   /* how many count now */
    uint32_t cols;    /* weight rows of the group */
    const uint8_t *w;
    size_t w_stride;
    bool fresh; /* chains start at +0 rather than at acc */
    hints next;
    float *xp, *acc;
} sweep;

SL_INLINE void one_step(__m256 *acc, const float *x, const uint8_t *w, size_t stride,
                        const uint32_t R, const uint32_t C, sl_dtype dtype, const uint32_t half) {
    __m256 wv[GROUP];
    const __m256i mask = sl_w_mask();
#pragma GCC unroll 3
    for (uint32_t c = 0; c < C; c++) wv[c] = sl_w_load(w + c * stride, dtype, half, mask);
#pragma GCC unroll 4
    for (uint32_t r = 0; r < R; r++) {
        __m256 xv = _mm256_load_ps(x + r * 8);
        SL_KEEP(xv);
#pragma GCC unroll 3
        for (uint32_t c = 0; c < C; c++)
            acc[r * C + c] = _mm256_fmadd_ps(xv, wv[c], acc[r * C + c]);
    }
}

/* Where the loops over k are. */
typedef struct place {
    const float *x;
    const uint8_t *w, *ahead;
    size_t stride; /* between weight rows */
} place;

/* n steps, two at a time, each with hints for `lines` lines. */
SL_INLINE void run_pairs(__m256 *acc, place *p, uint32_t n, size_t pair, const uint32_t lines,
                         const uint32_t R, const uint32_t C, sl_dtype dtype, const uint32_t half) {
    const uint32_t step_bytes = 16 * sl_dtype_bytes(dtype);
    for (uint32_t s = 0; s + 2 <= n; s += 2) {
        if (C == GROUP && R == 4) {
            sl_gemm_pair(acc, p->x, p->w, p->stride, dtype, half);
        } else {
            one_step(acc, p->x, p->w, p->stride, R, C, dtype, half);
            one_step(acc, p->x + R * 8, p->w + step_bytes, p->stride, R, C, dtype, half);
        }
#pragma GCC unroll 4
        for (uint32_t i = 0; i < lines; i++)
            _mm_prefetch((const char *)p->ahead + (size_t)i * 64, _MM_HINT_T1);
        p->ahead += pair;
        p->x += R * 16;
        p->w += 2 * step_bytes;
    }
}

/* R*C chains of one half; turns count the register tiles of a group. */
SL_INLINE void run_half(const sweep *q, uint32_t r0, uint32_t turn, const uint32_t R,
                        const uint32_t C, sl_dtype dtype, const uint32_t half) {
    const uint32_t lines = dtype == SL_F32 ? 2 : 1;
    float *out = q->acc + ((size_t)r0 * 2 + half * R) * C * 8;
    place p = {.x = q->xp + (((size_t)r0 * 2 + half * R) * q->x_steps + (size_t)q->x_at * R) * 8,
               .w = q->w,
               .ahead = turn < q->next.turns ? q->next.at + turn * q->next.turn : q->w,
               .stride = q->w_stride};
    __m256 acc[MAX_R * GROUP];
    uint32_t n = q->steps;
#pragma GCC unroll 12
    for (uint32_t i = 0; i < R * C; i++)
        acc[i] = q->fresh ? _mm256_setzero_ps() : _mm256_load_ps(out + i * 8);
    /* An odd step goes first: then a pair of BF16 never looks before the matrix. */
    const bool first = dtype == SL_BF16 && half == 0 && q->w == q->t->w && n >= 2;
    for (uint32_t s = n % 2 ? 1 : first ? 2 : 0; s; s--, n--) {
        one_step(acc, p.x, p.w, p.stride, R, C, dtype, half);
        p.x += R * 8;
        p.w += 16 * sl_dtype_bytes(dtype);
    }
    if (q->next.many)
        run_pairs(acc, &p, n, q->next.pair, 2 * lines, R, C, dtype, half);
    else
        run_pairs(acc, &p, n, q->next.pair, lines, R, C, dtype, half);
#pragma GCC unroll 12
    for (uint32_t i = 0; i < R * C; i++) _mm256_store_ps(out + i * 8, acc[i]);
}

SL_INLINE void run_rows(const sweep *q, const uint32_t C, sl_dtype dtype, const uint32_t half) {
    uint32_t r = 0, turn = half ? (q->t->n_rows + 3) / 4 : 0;
    for (; r < q->n_fours; r += 4) run_half(q, r, turn++, 4, C, dtype, half);
    for (; r < q->t->n_rows; r += 3) run_half(q, r, turn++, 3, C, dtype, half);
}

SL_INLINE void run_steps(const sweep *q, sl_dtype dtype) {
    if (q->cols == 3) run_rows(q, 3, dtype, 0), run_rows(q, 3, dtype, 1);
    if (q->cols == 2) run_rows(q, 2, dtype, 0), run_rows(q, 2, dtype, 1);
    if (q->cols == 1) run_rows(q, 1, dtype, 0), run_rows(q, 1, dtype, 1);
}

/* Where all of k is packed, the next group is one stretch of memory. */
SL_INLINE hints hints_of(const sweep *q, const uint8_t *at, uint32_t bytes) {
    const uint32_t pairs = SL_MAX(1, q->steps / 2), turns = (q->t->n_rows + 3) / 4 * 2;
    hints h = {.at = at, .turn = q->w_stride, .pair = (size_t)bytes * 32, .turns = GROUP};
    if (q->t->k <= PACK_STEPS * 16 && q->w_stride == (size_t)q->t->k * bytes) {
        h.turns = turns;
        h.turn = (GROUP * q->w_stride + turns - 1) / turns;
        h.pair = (h.turn + pairs - 1) / pairs;
    }
    h.many = turns < 4;
    return h;
}

/* The group's columns from w on over the packed steps, which begin at step s0 of k. */
SL_INLINE void run_group(sweep *q, uint32_t s0, const uint8_t *w, sl_dtype dtype) {
    const uint32_t bytes = sl_dtype_bytes(dtype);
    const size_t row_bytes = q->t->w_stride;
    const uint32_t whole = SL_MIN(q->x_steps, q->t->k / 16 - s0);
    _Alignas(64) uint8_t pad[GROUP * 64];
    q->w = w;
    q->w_stride = row_bytes;
    q->fresh = s0 == 0;
    q->x_at = 0;
    q->steps = whole;
    q->next = hints_of(q, w + GROUP * row_bytes, bytes);
    for (;;) { /* a loop, so that the partial step shares the code of the whole ones */
        run_steps(q, dtype);
        if (q->w == pad || whole == q->x_steps) return;
        memset(pad, 0, sizeof pad);
        for (uint32_t c = 0; c < q->cols; c++)
            memcpy(pad + (size_t)c * 64, w + c * row_bytes + (size_t)whole * 16 * bytes,
                   q->t->k % 16 * bytes);
        q->w = pad;
        q->w_stride = 64;
        q->next.turns = 0;
        q->fresh = false;
        q->x_at = whole;
        q->steps = 1;
    }
}

/* ---- sums of lanes ---- */

/* First levels of the tree, s[i] += s[i+8] and s[i] += s[i+4], for two sums: a in the lower four
 * places, b in the upper. bf16: in the order 0, 2, 1, 3. */
SL_INLINE __m256 tree_of_two(const float *a0, const float *a1, const float *b0, const float *b1,
                             sl_dtype dtype) {
    __m256 a = _mm256_load_ps(a0), b = _mm256_load_ps(b0);
    if (dtype != SL_BF16) {
        a = _mm256_add_ps(a, _mm256_load_ps(a1));
        b = _mm256_add_ps(b, _mm256_load_ps(b1));
    }
    const __m256 lo =
        _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    if (dtype != SL_BF16) return lo;
    a = _mm256_load_ps(a1), b = _mm256_load_ps(b1);
    const __m256 hi =
        _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    return _mm256_add_ps(_mm256_blend_ps(lo, hi, 0xcc), _mm256_shuffle_ps(lo, hi, 0x4e));
}

/* s[i] += s[i+2] of two such pairs. */
SL_INLINE __m256 tree_halve(__m256 u, __m256 v, sl_dtype dtype) {
    if (dtype == SL_BF16) return _mm256_hadd_ps(u, v);
    return _mm256_add_ps(_mm256_shuffle_ps(u, v, 0x44), _mm256_shuffle_ps(u, v, 0xee));
}

SL_INLINE void store_few(__m128 v, const uint32_t n, float *y) {
    if (n >= 2) _mm_storel_pi((__m64 *)y, v);
    if (n == 3) _mm_store_ss(y + 2, _mm_movehl_ps(v, v));
    if (n == 1) _mm_store_ss(y, v);
}

/* The sums of a register tile of at most three columns. */
SL_INLINE void store_tile(const float *acc, const uint32_t R, const uint32_t C, sl_dtype dtype,
                          float *y, size_t y_stride) {
#pragma GCC unroll 2
    for (uint32_t r = 0; r < R; r += 2) {
        const uint32_t n = SL_MIN(R, r + 2) - 1; /* the second row of the pair */
        __m256 v[3];
#pragma GCC unroll 3
        for (uint32_t c = 0; c < 3; c++) {
            const float *a = acc + (size_t)(r * C + c) * 8, *b = acc + (size_t)(n * C + c) * 8;
            v[c] = c < C ? tree_of_two(a, a + R * C * 8, b, b + R * C * 8, dtype) : v[C - 1];
        }
        const __m256 sum =
            _mm256_hadd_ps(tree_halve(v[0], v[1], dtype), tree_halve(v[2], v[2], dtype));
        store_few(_mm256_castps256_ps128(sum), C, y + r * y_stride);
        if (n > r) store_few(_mm256_extractf128_ps(sum, 1), C, y + n * y_stride);
    }
}

SL_INLINE void store_group(const sweep *q, const uint32_t C, sl_dtype dtype, float *y) {
    const size_t stride = q->t->y_stride;
    uint32_t r = 0;
    for (; r < q->n_fours; r += 4)
        store_tile(q->acc + (size_t)r * C * 16, 4, C, dtype, y + r * stride, stride);
    for (; r < q->t->n_rows; r += 3)
        store_tile(q->acc + (size_t)r * C * 16, 3, C, dtype, y + r * stride, stride);
}

SL_INLINE void store_cols(const sweep *q, sl_dtype dtype, float *y) {
    if (q->cols == 3) store_group(q, 3, dtype, y);
    if (q->cols == 2) store_group(q, 2, dtype, y);
    if (q->cols == 1) store_group(q, 1, dtype, y);
}

/* ---- tiles ---- */

SL_INLINE void pack_rows(const sweep *q, uint32_t s0, sl_dtype dtype) {
    const sl_gemm_tile *t = q->t;
    const size_t floats = (size_t)q->x_steps * 16;
    uint32_t r = 0;
    for (; r < q->n_fours; r += 4)
        sl_x_pack(t->x + r, t->k, s0, q->x_steps, 4, dtype, q->xp + r * floats);
    for (; r < t->n_rows; r += 3)
        sl_x_pack(t->x + r, t->k, s0, q->x_steps, 3, dtype, q->xp + r * floats);
}

/* Columns [c0, c1). Where k is longer than what is packed, the chains of all of them wait in acc.
 */
SL_INLINE void run_cols(sweep *q, uint32_t c0, uint32_t c1, float *acc, sl_dtype dtype) {
    const sl_gemm_tile *t = q->t;
    const uint32_t bytes = sl_dtype_bytes(dtype), steps = SL_MAX(1, (t->k + 15) / 16);
    const size_t row_bytes = t->w_stride;
    for (uint32_t s0 = 0; s0 < steps; s0 += PACK_STEPS) {
        q->x_steps = SL_MIN(PACK_STEPS, steps - s0);
        pack_rows(q, s0, dtype);
        for (uint32_t c = c0; c < c1; c += GROUP) {
            const uint8_t *w = (const uint8_t *)t->w + c * row_bytes + (size_t)s0 * 16 * bytes;
            q->cols = SL_MIN(GROUP, c1 - c);
            q->acc = acc + (steps > PACK_STEPS ? (size_t)(c - c0) * t->n_rows * 16 : 0);
            run_group(q, s0, w, dtype);
            if (s0 + q->x_steps == steps) store_cols(q, dtype, t->y + c);
        }
    }
}

SL_INLINE void tile_of(const sl_gemm_tile *t, sl_dtype dtype) {
    _Alignas(64) float xp[SL_TILE_ROWS * PACK_STEPS * 16];
    _Alignas(64) float acc[LONG_COLS * SL_TILE_ROWS * 16];
    const uint32_t threes = (4 - t->n_rows % 4) % 4;
    const uint32_t cols = t->k > PACK_STEPS * 16 ? LONG_COLS : SL_MAX(1, t->n_cols);
    sweep q = {.t = t, .n_fours = t->n_rows - threes * 3, .xp = xp};
    for (uint32_t c = 0; c < t->n_cols; c += cols)
        run_cols(&q, c, SL_MIN(c + cols, t->n_cols), acc, dtype);
}

static __attribute__((noinline)) void tile_f32(const sl_gemm_tile *t) {
    tile_of(t, SL_F32);
}
static __attribute__((noinline)) void tile_f16(const sl_gemm_tile *t) {
    tile_of(t, SL_F16);
}
static __attribute__((noinline)) void tile_bf16(const sl_gemm_tile *t) {
    tile_of(t, SL_BF16);
}

void sl_avx2_gemm_many(const sl_gemm_tile *t) {
    SL_ASSERT(sl_gemm_is_many(t));
    if (t->dtype == SL_F32)
        tile_f32(t);
    else if (t->dtype == SL_F16)
        tile_f16(t);
    else
        tile_bf16(t);
}
