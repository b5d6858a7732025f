/* What lanes of a warp do together, one meeting each: shuffles, votes, tiles of tensor cores and
 * the loads of their operands. */
#include "emulator_int.h"

#include "base/status.h"
#include "quant/fp8.h"
#include "quant/half.h"

/* Exchanges. */

typedef struct exchange {
    sl_emu_shuffle_kind kind;
    uint64_t value, out;
    uint32_t lane;
} exchange;

static void exchange_all(void *const lanes[SL_WARP], uint32_t mask) {
    for (uint32_t i = 0; i < SL_WARP; i++) {
        exchange *e = lanes[i];
        if (!e) continue;
        uint32_t from = i;
        if (e->kind == SL_EMU_AT) from = e->lane % SL_WARP;
        if (e->kind == SL_EMU_XOR) from = i ^ e->lane;
        if (e->kind == SL_EMU_DOWN) from = i + e->lane;
        if (e->kind == SL_EMU_UP) from = i - e->lane;
        if (from >= SL_WARP) from = i; /* its own value, as on a GPU */
        /* One that is not in the mask gives anything. */
        e->out = mask >> from & 1 ? ((const exchange *)lanes[from])->value : ~(uint64_t)0;
    }
}

uint64_t sl_emu_shuffle(sl_emu_shuffle_kind kind, uint32_t mask, uint64_t value, uint32_t lane) {
    static const char *const what[] = {"__shfl_sync", "__shfl_xor_sync", "__shfl_down_sync",
                                       "__shfl_up_sync"};
    exchange e = {.kind = kind, .value = value, .lane = lane};
    emu_meet(what[kind], mask, &e, exchange_all);
    return e.out;
}

typedef struct vote {
    bool holds;
    uint32_t out;
} vote;

static void vote_all(void *const lanes[SL_WARP], uint32_t mask) {
    uint32_t out = 0;
    (void)mask;
    for (uint32_t i = 0; i < SL_WARP; i++)
        if (lanes[i] && ((const vote *)lanes[i])->holds) out |= 1u << i;
    for (uint32_t i = 0; i < SL_WARP; i++)
        if (lanes[i]) ((vote *)lanes[i])->out = out;
}

uint32_t sl_emu_ballot(uint32_t mask, bool holds) {
    vote v = {.holds = holds};
    emu_meet("__ballot_sync", mask, &v, vote_all);
    return v.out;
}

/* Tiles. A fragment's values lie in lanes as device.h says. */

typedef struct tile {
    void *d;
    uint32_t a[4], b[2];
} tile;

typedef enum format { BF16, F16, E4M3, TF32 } format;

/* Values of 16 bits: two of a register, of 8 bits: four, of tf32: one. */
static float value_of(format f, uint32_t reg, uint32_t i) {
    if (f == BF16) return sl_bf16_to_f32((uint16_t)(reg >> 16 * i));
    if (f == F16) return sl_f16_to_f32((uint16_t)(reg >> 16 * i));
    if (f == TF32) return sl_f32_of_bits(reg & 0xffffe000u);
    return sl_e4m3_to_f32((uint8_t)(reg >> 8 * i));
}

/* Register and place in it of value k of row (or column) `of` of a fragment, `per` in a register.
 */
static uint32_t lane_of(uint32_t of, uint32_t k, uint32_t per) {
    return of % 8 * 4 + k % (4 * per) / per;
}

static uint32_t a_at(void *const lanes[SL_WARP], uint32_t row, uint32_t k, uint32_t per) {
    return ((const tile *)lanes[lane_of(row, k, per)])->a[row / 8 + 2 * (k / (4 * per))];
}

static uint32_t b_at(void *const lanes[SL_WARP], uint32_t column, uint32_t k, uint32_t per) {
    return ((const tile *)lanes[lane_of(column, k, per)])->b[k / (4 * per)];
}

/* Where element (row, column) of d is: in `place` of what is returned. */
static void *d_at(void *const lanes[SL_WARP], uint32_t row, uint32_t column, uint32_t *place) {
    *place = column % 2 + row / 8 * 2;
    return ((const tile *)lanes[row % 8 * 4 + column / 2])->d;
}

/* Each half of k is summed exactly enough (f64) and rounded once. */
static void mma_floats(void *const lanes[SL_WARP], format f, uint32_t per) {
    const uint32_t n = 8 * per;
    double a[16][32], b[8][32];
    for (uint32_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < 16; i++) a[i][k] = value_of(f, a_at(lanes, i, k, per), k % per);
        for (uint32_t i = 0; i < 8; i++) b[i][k] = value_of(f, b_at(lanes, i, k, per), k % per);
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t column = 0; column < 8; column++) {
            uint32_t place;
            float *d = d_at(lanes, row, column, &place);
            double sum = d[place];
            for (uint32_t k = 0; k < n / 2; k++) sum += a[row][k] * b[column][k];
            sum = (float)sum;
            for (uint32_t k = n / 2; k < n; k++) sum += a[row][k] * b[column][k];
            d[place] = (float)sum;
        }
}

static void mma_bf16(void *const lanes[SL_WARP], uint32_t mask) {
    (void)mask;
    mma_floats(lanes, BF16, 2);
}

static void mma_f16(void *const lanes[SL_WARP], uint32_t mask) {
    (void)mask;
    mma_floats(lanes, F16, 2);
}

static void mma_e4m3(void *const lanes[SL_WARP], uint32_t mask) {
    (void)mask;
    mma_floats(lanes, E4M3, 4);
}

static void mma_tf32(void *const lanes[SL_WARP], uint32_t mask) {
    (void)mask;
    mma_floats(lanes, TF32, 1);
}

static void mma_s8(void *const lanes[SL_WARP], uint32_t mask) {
    int32_t a[16][32], b[8][32];
    (void)mask;
    for (uint32_t k = 0; k < 32; k++) {
        for (uint32_t i = 0; i < 16; i++) a[i][k] = (int8_t)(a_at(lanes, i, k, 4) >> 8 * (k % 4));
        for (uint32_t i = 0; i < 8; i++) b[i][k] = (int8_t)(b_at(lanes, i, k, 4) >> 8 * (k % 4));
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t column = 0; column < 8; column++) {
            uint32_t place;
            int32_t *d = d_at(lanes, row, column, &place);
            uint32_t sum = (uint32_t)d[place];
            for (uint32_t k = 0; k < 32; k++) sum += (uint32_t)(a[row][k] * b[column][k]);
            d[place] = (int32_t)sum;
        }
}

static void meet_tile(const char *what, void *d, const uint32_t a[4], const uint32_t b[2],
                      void (*all)(void *const lanes[SL_WARP], uint32_t mask)) {
    tile t = {.d = d, .a = {a[0], a[1], a[2], a[3]}, .b = {b[0], b[1]}};
    emu_meet(what, SL_ALL, &t, all);
}

void sl_mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    meet_tile("mma of bf16", d, a, b, mma_bf16);
}

void sl_mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    meet_tile("mma of f16", d, a, b, mma_f16);
}

void sl_mma_m16n8k32_e4m3(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    meet_tile("mma of e4m3", d, a, b, mma_e4m3);
}

void sl_mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    meet_tile("mma of tf32", d, a, b, mma_tf32);
}

void sl_mma_m16n8k32_s8(int32_t d[4], const uint32_t a[4], const uint32_t b[2]) {
    meet_tile("mma of s8", d, a, b, mma_s8);
}

/* Matrices of 8 x 8. */

typedef struct matrices {
    uint32_t *r, n;
    const uint8_t *row; /* what this lane brings */
    bool trans;
} matrices;

static void load_all(void *const lanes[SL_WARP], uint32_t mask) {
    (void)mask;
    for (uint32_t lane = 0; lane < SL_WARP; lane++) {
        const matrices *m = lanes[lane];
        for (uint32_t i = 0; i < m->n; i++) {
            uint16_t two[2];
            for (uint32_t j = 0; j < 2; j++) {
                const uint32_t g = lane / 4, t = lane % 4 * 2 + j;
                const matrices *of = lanes[8 * i + (m->trans ? t : g)];
                memcpy(&two[j], of->row + 2 * (m->trans ? g : t), 2);
            }
            m->r[i] = two[0] | (uint32_t)two[1] << 16;
        }
    }
}

void sl_emu_ldmatrix(uint32_t *r, const void *shared, uint32_t n, bool trans) {
    matrices m = {.r = r, .n = n, .row = shared, .trans = trans};
    if (sl_lane() < 8 * n && ((uintptr_t)shared % 16 || !emu_is_shared(shared, 16)))
        sl_emu_die("ldmatrix from %p, which is not aligned shared memory", shared);
    if (emu_watch && sl_lane() < 8 * n) emu_watch->touch(shared, 16, false);
    emu_meet(n == 4 ? "ldmatrix x4" : "ldmatrix x2", SL_ALL, &m, load_all);
}

uint32_t sl_pack_bf16(float lo, float hi) {
    return sl_f32_to_bf16(lo) | (uint32_t)sl_f32_to_bf16(hi) << 16;
}

uint32_t sl_pack_f16(float lo, float hi) {
    return sl_f32_to_f16(lo) | (uint32_t)sl_f32_to_f16(hi) << 16;
}
