/* Products of BF16 in parts by tiles: sum[c][r] += sum over v of w[c][v] * x[v][r], sixteen weight
 * rows (columns of the result) and sixteen rows of activations. One instruction is one part of 32
 * values as docs/numbers.md defines it, so there is nothing to do but to bring values near: weights
 * are read as they lie, rows of activations are turned once for all weight rows of the call. A
 * single row needs no turning. */
#include "kernel/amx/amx.h"
#include "kernel/bf16.h"

#define PARTS  64u /* that are turned at a time, 64 KiB; of two groups as many as L1 holds: */
#define PARTS2 16u
#define BYTES  (SL_BF16_PART * sizeof(uint16_t)) /* of a part of a row */
#define ASK    (32u << 10)               /* most bytes of a strip that are asked for ahead */
#define STRIPS (SL_TILE_WIDE / SL_STRIP) /* of sixteen weight rows */

/* Pairs of values, those of sixteen rows side by side. */
typedef uint32_t amx_pairs[SL_BF16_PART / 2][AMX_GROUP];

typedef struct piece {
    const sl_act_tile *t;
    uint32_t k0, n;  /* first value; parts */
    uint32_t end;    /* values of the last part, where it is not whole; 0: all are */
    uint32_t groups; /* of rows */
    const uint8_t *x;
    size_t x_stride, x_part;             /* bytes between pairs, and between parts */
    _Alignas(64) amx_pairs pairs[PARTS]; /* of the groups in turn */
    _Alignas(64) uint8_t rest[BYTES];    /* a single row's last part */
} piece;

/* Tiles of sixteen rows of activations, or of one. */
SL_INLINE void configure(uint32_t rows) {
    static const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } of_1 = {.palette = 1,
              .bytes = {4, 4, 4, 4, 64, 64, 4, 4},
              .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    if (rows == 1)
        _tile_loadconfig(&of_1);
    else
        amx_configure(64);
}

/* Rows past the last are it again: what comes of them is dropped. */
static void take_group(piece *x, uint32_t g) {
    _Alignas(64) uint8_t end[AMX_GROUP][BYTES] = {{0}};
    const uint32_t whole = x->n - (x->end > 0);
    sl_rows16 s;
    for (uint32_t r = 0; r < AMX_GROUP; r++)
        s.row[r] = x->t->x[SL_MIN(g * AMX_GROUP + r, x->t->n_rows - 1)] + x->k0 * sizeof(uint16_t);
    for (uint32_t p = 0; p < whole; p++) sl_turn_bytes(&s, p * BYTES, x->pairs[p * x->groups + g]);
    if (!x->end) return;
    for (uint32_t r = 0; r < AMX_GROUP; r++) {
        memcpy(end[r], s.row[r] + whole * BYTES, x->end * sizeof(uint16_t));
        s.row[r] = end[r];
    }
    sl_turn_bytes(&s, 0, x->pairs[whole * x->groups + g]);
}

/* Values from k0 on, at most as many as there is room for. */
static void take_piece(piece *x) {
    const uint32_t most = x->t->n_rows == 1 ? UINT32_MAX / SL_BF16_PART
                          : x->groups == 1  ? PARTS
                                            : PARTS2;
    const uint32_t n = SL_MIN(most * SL_BF16_PART, x->t->k - x->k0);
    x->n = (n + SL_BF16_PART - 1) / SL_BF16_PART;
    x->end = n % SL_BF16_PART;
    if (x->t->n_rows == 1) {
        x->x = x->t->x[0], x->x_stride = 4, x->x_part = BYTES;
        memset(x->rest, 0, BYTES);
        memcpy(x->rest, x->x + (x->n - (x->end > 0)) * BYTES, x->end * sizeof(uint16_t));
        return;
    }
    x->x = (const uint8_t *)x->pairs, x->x_stride = 64, x->x_part = x->groups * sizeof(amx_pairs);
    for (uint32_t g = 0; g < x->groups; g++) take_group(x, g);
}

/* ---- products ---- */

#define SUM00 0 /* weight rows, group of activations */
#define SUM10 1
#define SUM01 2
#define SUM11 3
#define W0    4
#define W1    5
#define X0    6
#define X1    7

/* Weight rows of a part, and the bytes between them. */
typedef struct part {
    const uint8_t *at;
    size_t stride;
} part;

/* A part of sixteen weight rows, or of 32, with one group of rows or two. */
SL_INLINE void multiply(const part *w, const uint8_t *x, size_t x_stride, const uint32_t groups,
                        const bool both) {
    AMX_LOAD(X0, x, x_stride);
    AMX_LOAD(W0, w->at, w->stride);
    _tile_dpbf16ps(SUM00, W0, X0);
    if (both) AMX_LOAD(W1, w->at + SL_STRIP * w->stride, w->stride);
    if (both) _tile_dpbf16ps(SUM10, W1, X0);
    if (groups == 1) return;
    AMX_LOAD(X1, x + sizeof(amx_pairs), x_stride);
    _tile_dpbf16ps(SUM01, W0, X1);
    if (both) _tile_dpbf16ps(SUM11, W1, X1);
}

/* The last part of weight rows, zeros behind it. */
static part end_of(const part *w, uint32_t rows, uint32_t n, uint8_t (*to)[BYTES]) {
    for (uint32_t c = 0; c < rows; c++) {
        memset(to[c], 0, BYTES);
        memcpy(to[c], w->at + c * w->stride, n * sizeof(uint16_t));
    }
    return (part){to[0], BYTES};
}

/* A piece of sixteen weight rows at w, or of 32, onto their sums. `ask`: what comes next, which is
 * asked for in the order of memory, as much as is read; NULL: nothing. */
SL_INLINE void run_of(const piece *x, part w, const uint8_t *ask, const uint32_t groups,
                      const bool both, amx_chains (*sum)[AMX_GROUPS]) {
    _Alignas(64) uint8_t end[2 * SL_STRIP][BYTES];
    const uint32_t whole = x->n - (x->end > 0), lines = both ? 2 * SL_STRIP : SL_STRIP;
    const uint8_t *xp = x->x;
    const size_t x_stride = x->x_stride;
    if (x->k0 == 0) {
        _tile_zero(SUM00);
        _tile_zero(SUM10);
        _tile_zero(SUM01);
        _tile_zero(SUM11);
    } else {
        AMX_LOAD(SUM00, sum[0][0], x_stride);
        if (both) AMX_LOAD(SUM10, sum[1][0], 64);
        if (groups == 2) AMX_LOAD(SUM01, sum[0][1], 64);
        if (groups == 2 && both) AMX_LOAD(SUM11, sum[1][1], 64);
    }
    for (uint32_t p = 0; p < whole; p++, w.at += BYTES, xp += x->x_part) {
        multiply(&w, xp, x_stride, groups, both);
        if (groups == 1 && ask) sl_ask(ask + p * lines * 64, lines * 64);
    }
    if (x->end) {
        w = end_of(&w, lines, x->end, end);
        multiply(&w, x_stride == 4 ? x->rest : xp, x_stride, groups, both);
    }
    _tile_stored(SUM00, sum[0][0], x_stride);
    if (both) _tile_stored(SUM10, sum[1][0], 64);
    if (groups == 2) _tile_stored(SUM01, sum[0][1], 64);
    if (groups == 2 && both) _tile_stored(SUM11, sum[1][1], 64);
}

/* ---- tiles ---- */

/* Where strip s begins: the last is the last sixteen weight rows. */
SL_INLINE uint32_t strip_at(const sl_act_tile *t, uint32_t s) {
    return SL_MIN(s * SL_STRIP, t->n_cols - SL_STRIP);
}

/* Strip s and, with two groups of rows and where it is whole, s + 1; how many they were. With one
 * group memory is what takes time, so short rows are asked for ahead. Of long ones more than L1
 * holds would be, and the processor does as well by itself. */
static uint32_t run_strips(const piece *x, uint32_t s, amx_chains (*sum)[AMX_GROUPS]) {
    const sl_act_tile *t = x->t;
    const uint32_t c0 = strip_at(t, s);
    const part w = {(const uint8_t *)t->w + c0 * t->w_stride + x->k0 * sizeof(uint16_t),
                    t->w_stride};
    if (x->groups == 1) {
        const bool asks = t->w_stride * SL_STRIP <= ASK && sl_tile_is_dense(t);
        run_of(x, w, asks ? sl_tile_rows_after(t, c0, SL_STRIP) : NULL, 1, false, sum);
        return 1;
    }
    if ((s + 2) * SL_STRIP > t->n_cols) {
        run_of(x, w, NULL, 2, false, sum);
        return 1;
    }
    run_of(x, w, NULL, 2, true, sum);
    return 2;
}

/* A strip's sums to y; those of a single row lie as they are stored. */
static void store(const sl_act_tile *t, amx_chains *sum, uint32_t c0) {
    if (t->n_rows == 1)
        memcpy(t->y + c0, sum, SL_STRIP * sizeof(float));
    else
        sl_amx_store(t, sum, c0);
}

void sl_amx_parts_tile(const sl_act_tile *t) {
    if (t->n_rows == 0) return;
    if (t->n_cols < SL_STRIP) {
        sl_avx512_parts_tile(t);
        return;
    }
    _Alignas(64) amx_chains sum[STRIPS][AMX_GROUPS];
    piece x;
    const uint32_t strips = (t->n_cols + SL_STRIP - 1) / SL_STRIP;
    x.t = t, x.k0 = 0, x.groups = (t->n_rows + AMX_GROUP - 1) / AMX_GROUP;
    configure(t->n_rows);
    do {
        take_piece(&x);
        const bool last = x.n * SL_BF16_PART >= t->k - x.k0, alone = last && x.k0 == 0;
        for (uint32_t s = 0, n; s < strips; s += n) {
            amx_chains(*to)[AMX_GROUPS] = sum + (alone ? 0 : s);
            n = run_strips(&x, s, to);
            for (uint32_t i = 0; last && i < n; i++) store(t, to[i], strip_at(t, s + i));
        }
        x.k0 += x.n * SL_BF16_PART;
    } while (x.k0 < t->k);
    _tile_release();
}
