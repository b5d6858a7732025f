/* The integer tiles of AMX for products of four and more rows of activations, and nothing else: the
 * table's other slots are those of AVX-512. A tile
 * of activations is [rows][part], one of weights [part / 4][16][4], which is how simd/int8.h lays a
 * group out; sums are exact, so the bits are those of docs/numbers.md. */
#include "kernel/cpu.h"
#include "kernel/simd/avx512.h"
#include "kernel/simd/vec.h"

#include "kernel/simd/int8.h"

#define AMX_ROWS 16u

typedef struct amx_config {
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[16]; /* of a tile's rows */
    uint8_t rows[16];
} amx_config;

/* Names of registers: macros, as their text becomes part of the instruction. */
#define TILE_SUM 0
#define TILE_X   1
#define TILE_W   2

static void configure(uint32_t rows, uint32_t part) {
    amx_config c = {.palette = 1};
    c.rows[TILE_SUM] = c.rows[TILE_X] = (uint8_t)rows;
    c.rows[TILE_W] = (uint8_t)(part / 4);
    c.bytes[TILE_SUM] = c.bytes[TILE_W] = 64;
    c.bytes[TILE_X] = (uint16_t)part;
    _tile_loadconfig(&c);
}

/* Activation rows of one block, and what goes with them. */
typedef struct amx_rows {
    _Alignas(64) int8_t code[AMX_ROWS][SL_BLOCK_MAX];
    float dx[AMX_ROWS];
    const int16_t *sum[AMX_ROWS];
    uint32_t n;
} amx_rows;

static void take_rows(const sl_int8_tile *t, uint32_t r0, uint32_t block, amx_rows *x) {
    const sl_act_kind kind = sl_act_kind_of(t->dtype);
    const uint32_t values = sl_dtype_block(t->dtype);
    for (uint32_t r = 0; r < x->n; r++) {
        const uint8_t *row = t->x[r0 + r];
        memcpy(x->code[r], row + (size_t)block * values, values);
        x->dx[r] = sl_act_scales(row, t->k)[block];
        x->sum[r] = sl_act_sums(kind, row, t->k) + block * values / sl_act_sum_of(kind);
    }
}

/* sum[r][c] of the part of the block that begins at value i. */
static void part_sums(const simd_group *g, const amx_rows *x, uint32_t i,
                      int32_t sum[AMX_ROWS][SIMD_LANES]) {
    _tile_zero(TILE_SUM);
    _tile_loadd(TILE_X, &x->code[0][i], SL_BLOCK_MAX);
    _tile_loadd(TILE_W, g->code[i / 4], 64);
    _tile_dpbsud(TILE_SUM, TILE_X, TILE_W);
    _tile_stored(TILE_SUM, sum, 64);
}

static void add_block_32(const simd_group *g, const amx_rows *x, float (*acc)[SIMD_LANES]) {
    _Alignas(64) int32_t sum[AMX_ROWS][SIMD_LANES];
    part_sums(g, x, 0, sum);
    for (uint32_t r = 0; r < x->n; r++) {
        for (uint32_t c = 0; c < SIMD_LANES; c++) sum[r][c] -= SIMD_CODE_BIAS * x->sum[r][0];
        simd_chain(acc[r], g->d, x->dx[r], sum[r], 1);
    }
}

static void add_block_256(const simd_group *g, const amx_rows *x, uint32_t part, bool minima,
                          float (*acc)[SIMD_LANES]) {
    _Alignas(64) int32_t sum[AMX_ROWS][SIMD_LANES];
    _Alignas(64) int32_t all[AMX_ROWS][SIMD_LANES] = {0}, low[AMX_ROWS][SIMD_LANES] = {0};
    for (uint32_t s = 0; s < 256 / part; s++) {
        part_sums(g, x, s * part, sum);
        for (uint32_t r = 0; r < x->n; r++) {
            int32_t of_x = part == 16 ? x->sum[r][s] : x->sum[r][2 * s] + x->sum[r][2 * s + 1];
            for (uint32_t c = 0; c < SIMD_LANES; c++)
                all[r][c] += g->scale[s][c] * (sum[r][c] - SIMD_CODE_BIAS * of_x);
            for (uint32_t c = 0; minima && c < SIMD_LANES; c++) low[r][c] += g->min[s][c] * of_x;
        }
    }
    for (uint32_t r = 0; r < x->n; r++) {
        simd_chain(acc[r], g->d, x->dx[r], all[r], 1);
        if (minima) simd_chain(acc[r], g->dmin, x->dx[r], low[r], -1);
    }
}

static void amx_group(const sl_int8_tile *t, uint32_t c0, uint32_t cols) {
    const uint32_t values = sl_dtype_block(t->dtype), part = t->dtype == SL_Q6_K ? 16 : 32;
    _Alignas(64) float acc[SL_TILE_ROWS][SIMD_LANES] = {0};
    simd_group g = {0};
    amx_rows x;
    for (uint32_t b = 0; b < t->k / values; b++) {
        simd_fill_group(t, c0, cols, b, &g);
        for (uint32_t r = 0; r < t->n_rows; r += AMX_ROWS) {
            x.n = SL_MIN(AMX_ROWS, t->n_rows - r);
            configure(x.n, part);
            take_rows(t, r, b, &x);
            if (values == 32)
                add_block_32(&g, &x, acc + r);
            else
                add_block_256(&g, &x, part, t->dtype != SL_Q6_K, acc + r);
        }
    }
    for (uint32_t r = 0; r < t->n_rows; r++)
        memcpy(t->y + (size_t)r * t->y_stride + c0, acc[r], cols * sizeof(float));
}

static void amx_int8_tile(const sl_int8_tile *t) {
    if (t->n_rows < 4) {
        simd_int8_tile(t);
        return;
    }
    for (uint32_t c = 0; c < t->n_cols; c += SIMD_LANES)
        amx_group(t, c, SL_MIN(SIMD_LANES, t->n_cols - c));
    _tile_release();
}

const sl_kernels sl_kernels_amx = {.name = "amx",
                                   .supported = sl_cpu_has_amx,
                                   .by_merit = true,
                                   .int8_tile = SL_EVERY_PRODUCT(amx_int8_tile)};
