/* Inside of sl_model, for model.c, bind.c and block.c. */
#ifndef SL_MODEL_MODEL_INT_H
#define SL_MODEL_MODEL_INT_H

#include "format/arch.h"
#include "format/checkpoint.h"
#include "model/model.h"
#include "model/skew.h"
#include "spec/gang.h"

/* Weights of one scope by role; a matrix this worker does not host has data == NULL. */
typedef struct sl_weights {
    sl_mat mat[SL_ROLE_EXPERT_GATE];
} sl_weights;

typedef struct sl_expert_weights {
    sl_mat gate, up, down;
    sl_mat gate_bias, up_bias, down_bias; /* data == NULL: there are none */
    uint32_t touched;                     /* pieces of it (touch.c) that faults will not meet */
} sl_expert_weights;

/* W_UK transposed and W_UV of latent attention, a matrix a head. */
typedef struct sl_mla_weights {
    sl_mat *absorb; /* [n_heads] of [kv_lora][nope_dim] */
    sl_mat *value;  /* [n_heads] of [v_dim][kv_lora] */
} sl_mla_weights;

/* Of a block of linear attention, widened: as of sl_delta_args. */
typedef struct sl_delta_weights {
    float *conv, *rate, *shift, *norm; /* NULL: it is not bound */
} sl_delta_weights;

/* A buffer that a model owns. */
typedef struct sl_copy {
    uint8_t *at;
    size_t bytes;
    size_t expert; /* of sl_model.expert, which it goes with; SIZE_MAX: none */
} sl_copy;

typedef struct sl_copies {
    sl_copy *copy;
    size_t n, cap;
    size_t expert; /* whose tensors are being bound */
} sl_copies;

/* Vectors that are made when a model is opened. */
typedef struct sl_tables {
    double *rope_freq; /* [rope_dim / 2] */
    float *ones;       /* [head_dim], NULL unless spec.qk_unit */
    float *route_bias; /* [sl_model_routed][n_experts], NULL: the router has none */
    float *sinks;      /* [n_layers][n_heads], NULL: there are none */
} sl_tables;

/* Bytes that a home has: model/settle.c. */
typedef struct sl_settlement {
    const void *from, *at;
    size_t bytes;
    size_t expert; /* which it goes with; SIZE_MAX: none */
} sl_settlement;

typedef struct sl_settled {
    sl_settlement *item;
    size_t n, cap;
} sl_settled;

/* Rows of the embedding as the file has them: a step wants few of them, and reading those costs
 * less memory than a mapped table of which every row is touched once. */
typedef struct sl_embed_file {
    bool open;
    int fd;         /* -1: rows are read where they are mapped */
    uint64_t begin; /* of row 0 in the file */
    size_t row_bytes, bytes;
    const uint8_t *mapped; /* row 0 */
    uint8_t *row;          /* owned, room for one */
    sl_repack repack;      /* not NONE: what a row becomes when it is read, */
    uint8_t *unpacked;     /* here: owned, room for one */
} sl_embed_file;

/* What of a dimension a rank has, and the segments of a sum over it; in values that are heads,
 * columns or rows. */
typedef struct sl_holding {
    uint32_t first, n;
    bool even; /* so are first and n of all ranks */
    sl_segments segments;
} sl_holding;

typedef struct sl_holdings {
    sl_holding heads, kv_heads, dense, expert, shared, vocab;
    sl_holding out; /* of the rows of O and DOWN, where ranks gather what these multiply */
} sl_holdings;

/* What of a matrix a rank has: these rows, of each these values. Alone: all. */
typedef struct sl_part {
    sl_extent rows, columns;
} sl_part;

/* Where a matrix in strips would be cut and cannot be. */
typedef struct sl_strip_cut {
    const char *what; /* is counted: rows, or values of a row */
    uint32_t at, all, unit;
} sl_strip_cut;

/* Values that O and the three kinds of DOWN multiply which one rank has together: the largest block
 * of their types. */
typedef struct sl_blocks {
    uint32_t o, dense, expert, shared;
} sl_blocks;

struct sl_model {
    sl_model_spec spec;   /* of what is computed here: a rank's share of heads and widths */
    sl_model_spec stored; /* of the checkpoint */
    sl_rank rank;
    sl_extent held;      /* blocks that something is bound of */
    bool mtp;            /* and the block behind the last */
    const sl_gang *gang; /* NULL: there is none */
    bool segmented;
    bool strips; /* something that is bound lies in strips */
    sl_blocks blocks;
    sl_holdings holds; /* of a rank, or segmented */
    sl_generation_spec gen;
    const sl_arch *arch;
    char *folder;
    sl_checkpoint *ckpt;
    sl_weights whole;          /* of the model */
    sl_weights *block;         /* [sl_model_blocks] */
    sl_expert_weights *expert; /* [sl_model_routed][n_experts] */
    sl_mla_weights *mla;       /* [sl_model_blocks], NULL without kv_lora or attention */
    sl_delta_weights *delta;   /* [n_layers], NULL without linear attention */
    sl_tables tables;          /* as they are used: the home's, where there is one */
    sl_tables made;            /* owned */
    sl_home home;              /* put NULL: weights are used where they are mapped */
    sl_settled settled;        /* what the home has of this model */
    sl_skew *skew;             /* NULL: the router chooses */
    uint8_t *random;           /* weights of sl_model_open_random, else NULL */
    size_t random_bytes;
    sl_embed_file embed;
    sl_copies copies;        /* matrices that are not used where they are mapped */
    const atomic_bool *stop; /* while it is opened: sl_model_open_until's */
};

/* Blocks, and routed ones among them, with the one behind the last where it is bound. */
static inline uint32_t sl_model_blocks(const sl_model *m) {
    return m->stored.n_layers + m->mtp;
}
static inline uint32_t sl_model_routed(const sl_model *m) {
    return m->stored.n_moe + m->mtp;
}

/* SL_ERR_AGAIN: nobody wants the model to be opened any more. */
static inline sl_status sl_model_goes_on(const sl_model *m, sl_err *err) {
    return m->stop && atomic_load_explicit(m->stop, memory_order_relaxed)
               ? sl_fail(err, SL_ERR_AGAIN, "%s: opening was stopped", m->folder)
               : SL_OK;
}

/* The frequency of a rotation after long waves are stretched: model/rope.c. */
double sl_rope_stretch(const sl_long_waves *w, double freq);
/* The same as a file of GGUF says it: divides the frequencies by its factors, where it has any. */
sl_status sl_rope_apply_factors(sl_model *m, sl_err *err) SL_MUST_CHECK;
/* Whether a block has such a tensor, of those that a model of this kind uses at all. */
bool sl_model_has(const sl_model_spec *m, const sl_arch_tensor *t, uint32_t layer);
/* The matrix of a tensor; layer and expert count where its scope has them. */
const sl_mat *sl_model_mat(const sl_model *m, const sl_arch_tensor *t, uint32_t layer,
                           uint32_t expert);
/* What queries at `pos` of a block that does not rotate are multiplied by. */
float sl_query_scale(const sl_model_spec *spec, uint32_t pos);

/* Where a tensor's values lie in the file: model/store.c. `mat` has the shape and type of one
 * matrix, one expert's. */

/* Shape that the file's tensor must have; returns the number of dimensions. */
uint32_t sl_store_shape(const sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                        uint64_t want[3]);
/* Whether a matrix does not lie there as kernels read it, and is copied. */
bool sl_store_scatters(const sl_arch_store *s);
/* Where value j of row i of a matrix is among the tensor's: first + i * row + j * value. s NULL: it
 * is a tensor, or in GGUF one of the experts behind each other. */
typedef struct sl_lie {
    size_t first, row, value;
} sl_lie;
sl_lie sl_store_lie(const sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                    uint32_t expert, const sl_mat *mat);
/* Copies the rank's part of what is scattered in the tensor's bytes to memory that the model owns;
 * mat becomes that. SL_ERR_NOMEM. */
sl_status sl_store_gather(sl_model *m, const sl_arch_store *s, const sl_arch_tensor *t,
                          uint32_t expert, sl_span bytes, sl_mat *mat, sl_err *err) SL_MUST_CHECK;
/* Zeroed memory that is freed with the model; NULL when there is none. */
void *sl_model_own(sl_model *m, size_t bytes);
void sl_copies_free(sl_copies *c);
/* Frees those of this expert. */
void sl_copies_drop(sl_copies *c, size_t expert);
bool sl_copies_have(const sl_copies *c, const void *data);

/* After tensors are bound: the parts of each head's W_UKV, where there are latents (mla.c).
 * SL_ERR_NOMEM. */
sl_status sl_mla_bind(sl_model *m, sl_err *err) SL_MUST_CHECK;

/* The same: small weights of linear attention (delta.c). SL_ERR_NOMEM, SL_ERR_UNSUPPORTED: this
 * model is a rank's part, or its sums go in segments. */
sl_status sl_delta_bind(sl_model *m, sl_err *err) SL_MUST_CHECK;

/* Matrices of experts in MXFP4: model/mxfp4.c. `name` is that of the plain tensor; `out` gets shape
 * and type, data only by place, which copies the rank's part of one expert's to memory of the
 * model.
 */
sl_status sl_mxfp4_find(const sl_model *m, const char *name, size_t out[2],
                        sl_err *err) SL_MUST_CHECK;
sl_status sl_mxfp4_check(const sl_model *m, const sl_arch_tensor *t, const char *name, sl_mat *out,
                         sl_err *err) SL_MUST_CHECK;
sl_status sl_mxfp4_place(sl_model *m, const sl_arch_tensor *t, const char *name, uint32_t expert,
                         sl_mat *out, sl_err *err) SL_MUST_CHECK;

/* Ranks (model/rank.c). Fills blocks from the headers of the files. */
sl_status sl_model_find_blocks(sl_model *m, sl_err *err) SL_MUST_CHECK;
/* Fills cuts, and spec with the rank's share. */
void sl_rank_take(sl_model *m);
/* What the rank has of a tensor's whole matrix. */
sl_part sl_rank_part(const sl_model *m, const sl_arch_tensor *t, const sl_mat *whole);
/* The matrix of a tensor becomes the rank's part of it, where it lies... */
void sl_rank_cut(const sl_model *m, const sl_arch_tensor *t, sl_mat *mat);
/* ...or a copy of that part alone, rows one behind the other. */
void sl_rank_keep(const sl_model *m, const sl_arch_tensor *t, const sl_part *p, const void *copy,
                  sl_mat *mat);
/* Whether what the rank has of a whole matrix in strips, and its segments, are whole strips; else
 * *out says where they are not. */
bool sl_rank_fits_strips(const sl_model *m, const sl_arch_tensor *t, const sl_mat *mat,
                         sl_strip_cut *out);
/* Rows that it has of the head. */
sl_extent sl_rank_vocab(const sl_model *m);
/* The same of a head that is the embedding. */
void sl_rank_cut_head(const sl_model *m, sl_mat *mat);
/* Whether norms of queries and keys are of the values of all ranks. */
bool sl_rank_gathers(const sl_model *m);

/* The block that predicts a further token counts from now on (model/mtp.c): before tables are made
 * and tensors bound. SL_ERR_UNSUPPORTED: the model has none. */
sl_status sl_mtp_take(sl_model *m, sl_err *err) SL_MUST_CHECK;

/* The error for a tensor that no file has. */
sl_status sl_model_missing(const sl_model *m, const char *name, sl_err *err) SL_MUST_CHECK;

/* Every tensor of the architecture is in the checkpoint and every tensor of the checkpoint is in
 * the architecture. */
sl_status sl_model_check_names(const sl_model *m, sl_err *err) SL_MUST_CHECK;
/* Checks and maps what the stages need. */
sl_status sl_model_bind(sl_model *m, const sl_stages *stages, sl_err *err) SL_MUST_CHECK;
/* An expert of m->expert whose tensors are not all bound: those that are missing. *more: there were
 * some. */
sl_status sl_model_bind_expert(sl_model *m, size_t expert, bool *more, sl_err *err) SL_MUST_CHECK;
/* Its memory is free, its mapped pages need not stay. */
void sl_model_unbind_expert(sl_model *m, size_t expert);
/* In how many pieces a bound expert is touched; touches up to `most` from `first` on, and returns
 * how many: with `patient` fewer where one has to be read from a file first, which is asked for. */
uint32_t sl_expert_pieces(const sl_expert_weights *w);
uint32_t sl_expert_touch(const sl_expert_weights *w, uint32_t first, uint32_t most, bool patient);
/* sl_model_touch of a model of any size, with so many bytes of room and so long for reading. */
void sl_model_touch_within(sl_model *m, sl_pool *pool, const sl_touching *how, uint64_t room,
                           uint64_t read_ns);
/* The home has an expert too; it has it no more; it has nothing more (model/settle.c). */
sl_status sl_settle_expert(sl_model *m, size_t expert, sl_err *err) SL_MUST_CHECK;
void sl_settle_drop(sl_model *m, size_t expert);
void sl_settle_end(sl_model *m);
/* Binds every tensor that the stages need (NULL: all) to a part of m->random, one after the other
 * and around. */
sl_status sl_model_bind_random(sl_model *m, const sl_stages *stages, sl_err *err) SL_MUST_CHECK;
/* Bytes of the largest tensor as one of bf16, and of all of them. */
sl_status sl_model_random_sizes(sl_model *m, size_t *largest, uint64_t *all,
                                sl_err *err) SL_MUST_CHECK;

#endif
