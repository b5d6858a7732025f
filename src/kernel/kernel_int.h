/* The table an instruction set fills in. All entries are single-threaded pieces; kernel.c cuts work
 * into them. Every table gives the bits of the one in ref/, which docs/numbers.md describes. */
#ifndef SL_KERNEL_KERNEL_INT_H
#define SL_KERNEL_KERNEL_INT_H

#include "kernel/kernel.h"
#include "quant/block.h"
#include "quant/fp8.h"

#define SL_INLINE static inline __attribute__((always_inline))

#define SL_TILE_ROWS 32u  /* activation rows of one tile at most */
#define SL_TILE_COLS 96u  /* weight rows of one tile at most */
#define SL_TILE_MANY 8u   /* from so many activation rows on a tile of plain weights may have ... */
#define SL_TILE_WIDE 768u /* ... so many weight rows */

/* y[r * y_stride + c] = dot(x[r], w[c]): n_rows <= SL_TILE_ROWS, n_cols <= SL_TILE_COLS, or
 * SL_TILE_WIDE as above. */
typedef struct sl_gemm_tile {
    const void *w;   /* n_cols rows of k values, whole blocks of `dtype`, any alignment */
    size_t w_stride; /* bytes between them */
    sl_dtype dtype;
    uint32_t k, n_cols, n_rows, y_stride;
    const float *const *x; /* n_rows pointers to k floats */
    float *y;
    const sl_mat *mat; /* F8_E4M3: whose scales count; or in strips, for ref's tile alone. */
    uint32_t row;      /* The tile's columns are its rows from here on */
} sl_gemm_tile;

/* The same where rows lie in strips. */
static inline void sl_tile_decode_strip(const sl_gemm_tile *t, uint32_t c, uint32_t k0, uint32_t n,
                                        float *dst) {
    const uint32_t of = sl_dtype_block(t->dtype);
    const uint8_t *strip = (const uint8_t *)t->w + c / SL_STRIP_ROWS * SL_STRIP_ROWS * t->w_stride;
    uint8_t block[SL_BLOCK_BYTES_MAX];
    for (uint32_t i = 0; i < n; i += of) {
        sl_strips_block(t->dtype, strip, t->k, c % SL_STRIP_ROWS, (k0 + i) / of, block);
        sl_block_decode(t->dtype, block, of, dst + i);
    }
}

/* n values of weight row c of a tile, from value k0 on, where they come in blocks. */
static inline void sl_tile_decode(const sl_gemm_tile *t, uint32_t c, uint32_t k0, uint32_t n,
                                  float *dst) {
    const uint8_t *w = (const uint8_t *)t->w + c * t->w_stride + sl_dtype_row_bytes(t->dtype, k0);
    if (t->mat && t->mat->strips) {
        sl_tile_decode_strip(t, c, k0, n, dst);
        return;
    }
    if (t->dtype == SL_F8_E4M3)
        sl_f8_decode(w, sl_mat_scale(t->mat, t->row + c), t->mat->scale_col + k0, n, dst);
    else
        sl_block_decode(t->dtype, w, n, dst);
}

/* The same for rounded rows of activations, of the kind that `dtype` asks for (quant/act.h):
 * weights in blocks and codes of 8 bits, or both in BF16. */
typedef struct sl_act_tile {
    const void *w;
    size_t w_stride;
    sl_dtype dtype;
    uint32_t k, n_cols, n_rows, y_stride;
    const uint8_t *const *x; /* n_rows pointers to rows, 64-byte aligned */
    float *y;
    const void *next; /* weights that the thread takes after these, or NULL; for prefetches alone */
} sl_act_tile;

/* Weight row c of a tile from value k0 on; past the tile the last row again. */
SL_INLINE const uint8_t *sl_tile_row(const sl_act_tile *t, uint32_t c, uint32_t k0) {
    return (const uint8_t *)t->w + SL_MIN(c, t->n_cols - 1) * t->w_stride +
           sl_dtype_row_bytes(t->dtype, k0);
}

/* Whether rows lie one behind the other, so that those that come next are one stretch of memory. */
SL_INLINE bool sl_tile_is_dense(const sl_act_tile *t) {
    return t->w_stride == sl_dtype_row_bytes(t->dtype, t->k);
}

/* The weight rows that come `ahead` strips of `cols` after those from c0 on: of this tile or of the
 * next; else those behind it, which may be asked for, not read. */
SL_INLINE const uint8_t *sl_tile_strips_after(const sl_act_tile *t, uint32_t c0, uint32_t cols,
                                              uint32_t ahead) {
    const uint32_t at = c0 + cols * ahead;
    if (!sl_tile_is_dense(t)) return t->w; /* which is near: nothing is asked for */
    if (at < t->n_cols || !t->next) return (const uint8_t *)t->w + at * t->w_stride;
    return (const uint8_t *)t->next + (at - t->n_cols) / cols * cols * t->w_stride;
}

/* Those that come after c0 .. c0 + cols - 1. */
SL_INLINE const uint8_t *sl_tile_rows_after(const sl_act_tile *t, uint32_t c0, uint32_t cols) {
    return sl_tile_strips_after(t, c0, cols, 1);
}

/* A function of its own for one type of weights, compiled for it from `of`: with the arrays of all
 * types in one frame they are 2 to 4 % slower. */
#define SL_TILE_FORM(name, of, dtype)                                                              \
    static __attribute__((noinline)) void name(const sl_act_tile *t) {                             \
        of(t, dtype);                                                                              \
    }

/* Part of a row of quant/act.h: n values from value `at` on of the row's k; whole blocks. */
typedef struct sl_act_part {
    uint8_t *row; /* 64-byte aligned */
    sl_act_kind kind;
    uint32_t k, at, n;
} sl_act_part;

/* One query vector on its way through the pages: where it is, its running maximum and sum, and
 * which tokens [first, last] of the current page it sees (first > last: none, the state stays). */
typedef struct sl_attn_query {
    const float *q; /* head_dim */
    float *o;       /* v_dim, not yet divided by sum */
    float max, sum;
    uint32_t first, last;
} sl_attn_query;

/* One page of keys and values for n <= SL_ATTN_QUERIES queries of its kv head.
 * k, v [SL_KV_PAGE_TOKENS][head_dim], of whose rows v's first v_dim values count; next_k, next_v:
 * what will be read after (a hint), or NULL. Of another type than f32 they are where such rows lie
 * as spec/kv.h has them, whose first part has `part` values. */
#define SL_ATTN_QUERIES 16u
typedef struct sl_attn_page {
    sl_attn_query *query;
    uint32_t n, head_dim, v_dim;
    const float *k, *v, *next_k, *next_v;
    float scale;
    sl_kv_type type;
    uint32_t part;
} sl_attn_page;

/* What of a page its queries see together: from token *first to the one before the result, which is
 * not above *first where they see nothing. */
static inline uint32_t sl_attn_seen(const sl_attn_page *p, uint32_t *first) {
    uint32_t end = 0;
    *first = SL_KV_PAGE_TOKENS;
    for (uint32_t i = 0; i < p->n; i++) {
        const sl_attn_query *u = &p->query[i];
        if (u->first > u->last) continue;
        *first = SL_MIN(*first, u->first);
        end = SL_MAX(end, u->last + 1);
    }
    return end;
}

/* A page of another type than f32 for tables that attend to f32: what its queries see is widened
 * and attended to by table k, which has these entries itself. */
void sl_attn_page_widened(const sl_kernels *k, const sl_attn_page *p);

/* What a kernel's speed depends on besides its table has a slot each: the type of the weights, the
 * kind of rounded rows, and whether rows are few or many. Between them products of integers have
 * some: there tables differ most in how many rows they want. */
typedef enum sl_amount {
    SL_FEW,
    SL_MANY,
    SL_AMOUNTS,
    SL_SOME = SL_AMOUNTS,
    SL_AMOUNTS_INT8
} sl_amount;
#define SL_DTYPES (SL_DTYPE_COUNT + 1) /* with F8_E4M3 */

static inline sl_amount sl_amount_of(uint32_t rows) {
    return rows < SL_TILE_MANY ? SL_FEW : SL_MANY;
}

static inline sl_amount sl_amount_of_int8(uint32_t rows) {
    return rows < 5 ? SL_FEW : rows < 12 ? SL_SOME : SL_MANY;
}

/* A convolution over positions, a channel by itself: y[i] = a / (1 + exp(-a)), a the chain of
 * fma(w[j * w_stride + i], x[j][i], a) over j from +0. */
typedef struct sl_taps {
    uint32_t n_taps, n;
    const float *x[SL_DELTA_TAPS];
    const float *w;
    size_t w_stride;
    float *y; /* [n] */
} sl_taps;

/* A token passes a head's state [k_dim][v_dim] (gated delta rule, arXiv:2412.06464 eq. 10): of each
 * column c, s_i = from[i][c] * decay, m the chain of fma(s_i, k[i], m) over i from +0,
 * d = (v[c] - m) * beta, to[i][c] = fma(k[i], d, s_i), o[c] the chain of fma(to[i][c], q[i], o)
 * from +0. `from` may be `to`; o NULL: nobody asks. */
typedef struct sl_delta_step {
    uint32_t k_dim, v_dim;
    const float *from;
    float *to;
    const float *q, *k, *v;
    float decay, beta;
    float *o;
} sl_delta_step;

struct sl_kernels {
    const char *name;
    bool (*supported)(void);
    /* Its slots are taken only where they were measured to be faster on this CPU, and only after
     * the table gave the bits of ref (sl_kernels_selftest). Others need no measurement. */
    bool by_merit;
    /* Forms of another table's functions: no table is filled up with them. */
    bool variant;
    /* Slots: pointers alone from here on. NULL: the table has no form of its own, the next one's is
     * taken. */
    void (*gemm_tile[SL_DTYPES][SL_AMOUNTS])(const sl_gemm_tile *t);
    void (*int8_tile[SL_DTYPES][SL_AMOUNTS_INT8])(const sl_act_tile *t);
    /* the same of weights in strips: whole ones, n_cols a multiple of SL_STRIP_ROWS */
    void (*strip_tile[SL_DTYPES])(const sl_act_tile *t);
    void (*bf16_tile[SL_AMOUNTS])(const sl_act_tile *t);
    void (*parts_tile[SL_AMOUNTS])(const sl_act_tile *t);
    void (*attn_page[SL_AMOUNTS])(const sl_attn_page *a);
    /* k floats, whole blocks of `kind`, to a row of quant/act.h; row is 64-byte aligned */
    void (*quantise[SL_ACT_KINDS])(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row);
    /* the same of x[i] * inv * w[i], which is kept nowhere: the part's n values of x and w */
    void (*rms_quantise[SL_ACT_KINDS])(const float *x, const float *w, float inv,
                                       const sl_act_part *to);
    void (*widen[SL_DTYPES])(const void *src, sl_dtype dtype, size_t n, float *dst);
    /* dst[i] = code[i] * scale, codes of E4M3 */
    void (*widen_e4m3)(const uint8_t *code, float scale, size_t n, float *dst);
    /* gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i] */
    void (*swiglu)(float *gate, const float *up, size_t n);
    /* as sl_swiglu_clamped */
    void (*swiglu_clamped)(float *gate, const float *up, float limit, size_t n);
    /* y[i] = y[i] / (1 + exp(-gate[i])) */
    void (*gate_values)(float *y, const float *gate, size_t n);
    void (*taps)(const sl_taps *t);
    void (*delta)(const sl_delta_step *s);
    /* 1 / sqrt(dot(x, x) / n + eps) */
    float (*rms_inverse)(const float *x, float eps, uint32_t n);
    /* y[i] = x[i] - mean of x; y may be x */
    void (*center)(const float *x, uint32_t n, float *y);
    /* y[i] = x[i] * inv * w[i]; y may be x */
    void (*rms_apply)(const float *x, const float *w, float inv, uint32_t n, float *y);
    /* c[i], s[i] = cos, sin of pos * freq[i] */
    void (*sincos)(uint32_t pos, const double *freq, uint32_t n, float *c, float *s);
    /* lo[i], hi[i] rotated by angle i */
    void (*rotate)(float *lo, float *hi, const float *c, const float *s, uint32_t n);
    /* o[i] /= sum */
    void (*divide)(float *o, float sum, uint32_t n);
    void (*softmax)(const float *x, uint32_t n, float *p);
    void (*expv)(const float *x, size_t n, float *y);
    void (*add)(float *y, const float *x, size_t n);
    void (*scale)(float *y, const float *x, float a, size_t n);
    void (*add_scaled)(float *y, const float *x, float a, size_t n);
    void (*to_bf16)(const float *src, size_t n, uint16_t *dst);
};

/* One function in every slot of a kernel. */
#define SL_EVERY_AMOUNT(f)                                                                         \
    { f, f }
#define SL_EVERY_TYPE(f)                                                                           \
    { f, f, f, f, f, f, f, f, f, f }
#define SL_EVERY_PRODUCT(f)                                                                        \
    {                                                                                              \
        {f, f}, {f, f}, {f, f}, {f, f}, {f, f}, {f, f}, {f, f}, {f, f}, {f, f}, {                  \
            f, f                                                                                   \
        }                                                                                          \
    }
#define SL_EVERY_INT8(f)                                                                           \
    {                                                                                              \
        {f, f, f}, {f, f, f}, {f, f, f}, {f, f, f}, {f, f, f}, {f, f, f}, {f, f, f}, {f, f, f},    \
            {f, f, f}, {                                                                           \
            f, f, f                                                                                \
        }                                                                                          \
    }
_Static_assert(SL_DTYPES == 10, "so many are written out here");

/* Calls through the slot that fits the arguments. */
static inline void sl_call_gemm_tile(const sl_kernels *k, const sl_gemm_tile *t) {
    k->gemm_tile[t->dtype][sl_amount_of(t->n_rows)](t);
}

static inline void sl_call_int8_tile(const sl_kernels *k, const sl_act_tile *t) {
    k->int8_tile[t->dtype][sl_amount_of_int8(t->n_rows)](t);
}

static inline void sl_call_strip_tile(const sl_kernels *k, const sl_act_tile *t) {
    k->strip_tile[t->dtype](t);
}

static inline void sl_call_bf16_tile(const sl_kernels *k, const sl_act_tile *t) {
    k->bf16_tile[sl_amount_of(t->n_rows)](t);
}

static inline void sl_call_parts_tile(const sl_kernels *k, const sl_act_tile *t) {
    k->parts_tile[sl_amount_of(t->n_rows)](t);
}

static inline void sl_call_attn_page(const sl_kernels *k, const sl_attn_page *a) {
    k->attn_page[sl_amount_of(a->n)](a);
}

static inline void sl_call_quantise(const sl_kernels *k, const float *x, uint32_t n,
                                    sl_act_kind kind, uint8_t *row) {
    k->quantise[kind](x, n, kind, row);
}

static inline void sl_call_rms_quantise(const sl_kernels *k, const float *x, const float *w,
                                        float inv, const sl_act_part *to) {
    k->rms_quantise[to->kind](x, w, inv, to);
}

static inline void sl_call_widen(const sl_kernels *k, const void *src, sl_dtype dtype, size_t n,
                                 float *dst) {
    k->widen[dtype](src, dtype, n, dst);
}

extern const sl_kernels sl_kernels_ref;
#if defined(__x86_64__)
extern const sl_kernels sl_kernels_avx2, sl_kernels_avx512, sl_kernels_avx512vnni,
    sl_kernels_avx512bf16, sl_kernels_avx512far, sl_kernels_amx;
#elif defined(__aarch64__)
extern const sl_kernels sl_kernels_neon, sl_kernels_neondot, sl_kernels_neonmm;
#endif

/* same[i]: whether every entry of tables[i] gives the bits of ref on drawn inputs; false also
 * without memory. */
void sl_kernels_selftest(const sl_kernels *const *tables, size_t n, bool *same);

#endif
