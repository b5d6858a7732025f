/* What the tile products keep beside each other in L1: rows of activations, strips of weights, sums
 * and chains, all of one piece of 256 values. */
#ifndef SL_KERNEL_AMX_AMX_H
#define SL_KERNEL_AMX_AMX_H

#include "kernel/avx512vnni/int8_256.h"

#define AMX_PIECE  256u /* values */
#define AMX_PARTS  8u   /* of 32 values, in a piece */
#define AMX_GROUP  16u  /* rows of activations of a tile */
#define AMX_GROUPS (SL_TILE_ROWS / AMX_GROUP)
#define AMX_STRIPS (SL_TILE_COLS / SL_STRIP) /* of sixteen weight rows */

/* Where part p of a piece is among its eight: those of Q4_K and Q5_K lie as 64 bytes of their codes
 * bring them, 0 2 1 3 4 6 5 7. */
SL_INLINE uint32_t amx_part_at(uint32_t p, sl_dtype dtype) {
    return dtype == SL_Q4_K || dtype == SL_Q5_K ? p / 4 * 4 + p % 2 * 2 + p / 2 % 2 : p;
}

/* One piece of all rows of activations: quads of four codes, those of sixteen rows side by side.
 * Codes and scales of rows past the last, and of parts past the end of k, are zeros. */
typedef struct amx_rows {
    _Alignas(64) int8_t quad[AMX_GROUPS][AMX_PIECE / 4][AMX_GROUP][4];
    _Alignas(64) float scale[AMX_PARTS][AMX_GROUPS][AMX_GROUP]; /* blocks of 256: the first */
    _Alignas(64) int32_t sums[4][AMX_GROUPS][AMX_GROUP]; /* Q4_K, Q5_K: pairs of sl_offsets */
} amx_rows;

/* One piece of sixteen weight rows; parts past the end of k are zeros. */
typedef struct amx_strip {
    _Alignas(64) uint8_t low[SL_STRIP][AMX_PIECE];  /* codes, with or without a sign */
    _Alignas(64) uint8_t high[SL_STRIP][AMX_PIECE]; /* blocks of 256: their second digits */
    _Alignas(64) float d[SL_STRIP][AMX_PARTS];      /* blocks of 256: d and dmin */
    _Alignas(64) int32_t min[4][SL_STRIP];          /* Q4_K, Q5_K: as in sl_head256 */
} amx_strip;

/* Sums of the parts of a strip's piece with a group of rows; blocks of 256: of their digits. */
typedef int32_t amx_sums[AMX_PARTS][SL_STRIP][AMX_GROUP];

/* What a strip's columns have come to, of one group of rows. */
typedef float amx_chains[SL_STRIP][AMX_GROUP];

/* Tiles of 32 values or of 64. Constants: gcc does not know that the instruction reads all of it.
 */
SL_INLINE void amx_configure(const uint32_t values) {
    static const struct {
        uint8_t palette, start_row, zero[14];
        uint16_t bytes[16]; /* of a register's rows */
        uint8_t rows[16];
    } of_32 = {.palette = 1,
               .bytes = {64, 64, 64, 64, 32, 32, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 8, 8}},
      of_64 = {.palette = 1,
               .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
               .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(values == 32 ? &of_32 : &of_64);
}

/* What was stored before is in memory when a tile is read, which gcc does not know either. */
#define AMX_LOAD(tile, base, stride)                                                               \
    do {                                                                                           \
        __asm__ volatile("" ::: "memory");                                                         \
        _tile_loadd(tile, base, stride);                                                           \
    } while (0)

/* Piece p of all rows. */
void sl_amx_take_rows(const sl_act_tile *t, uint32_t p, amx_rows *x);

/* The chains of columns c0 .. c0 + 15 to y. */
void sl_amx_store(const sl_act_tile *t, amx_chains *acc, uint32_t c0);

void sl_amx_int8_tile(const sl_act_tile *t);
void sl_amx_parts_tile(const sl_act_tile *t);

#endif
