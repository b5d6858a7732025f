/* A checkpoint bound to its architecture, and the computations of one block.
 *
 * The engine runs them as separate tasks on separate workers: attention + router (+ dense block)
 * where the KV pages are, experts where their weights are, head where tokens are sampled. Residual
 * stream and activations are f32 rows of d_model. All functions are pure in (weights, inputs): bits
 * never depend on how rows are batched, unless ex->expand_rows lets them. Thread: open/close by the
 * owner; computations by the owner of ex->pool. */
#ifndef SL_MODEL_MODEL_H
#define SL_MODEL_MODEL_H

#include "base/mem.h"
#include "base/numa.h"
#include "base/progress.h"
#include "kernel/kernel.h"
#include "spec/gang.h"
#include "spec/lab.h"
#include "spec/model.h"

#include <stdatomic.h>

typedef struct sl_model sl_model;

/* What a worker hosts; only these tensors are bound and checked, the rest of the file is never
 * touched. */
typedef struct sl_stages {
    bool attention;        /* embedding, attention, router, shared and dense FFN, norm, head */
    bool experts;          /* routed experts, those marked in `hosted` */
    const uint8_t *hosted; /* [n_moe][n_experts] nonzero = hosted; NULL: all. Copied. */
    sl_route_skew skew;    /* on: sl_block_route draws (model/skew.h) */
    sl_rank rank;          /* of a gang: its part of them */
    sl_extent blocks;      /* of a pipeline: what of this is theirs alone; n 0: of all blocks */
    bool inner;            /* no embedding, no final norm, no head: another rank has them. What of
                            * this the block that predicts a further token reads is with that */
    bool segmented;        /* sums over what gangs share are taken in segments (spec/gang.h) */
    sl_kv_type kv_type;    /* of the KV pages: the spec's from here on */
    bool mtp;              /* with attention: also the block that predicts a further token, all its
                            * experts, as block sl_mtp_block; of a rank its part of them */
    bool random;           /* bf16 weights drawn at random, of a config.json that has none */
} sl_stages;

/* How a rank meets the others of its gang while it computes. Every rank makes the same calls in the
 * same order. No call waits for ever: who does not come within a deadline of the gang's ends the
 * worker. Thread: the rank's. */
typedef struct sl_gang {
    /* y, [n_rows][width] of each rank, is added up by the tree of the ranks: afterwards columns
     * *first .. *first + *n - 1 of it hold the sum, and the rank does what follows to these. */
    void (*sum)(void *ctx, const sl_exec *ex, float *y, uint32_t n_rows, uint32_t width,
                uint32_t *first, uint32_t *n);
    /* Rows of n values, values first .. first + n - 1 of rows of `width`, become the whole rows.
     * Ranks may have the same values; all are there. */
    void (*gather)(void *ctx, const float *part, uint32_t n_rows, uint32_t first, uint32_t n,
                   uint32_t width, float *whole);
    /* The same in two, of ranks that are apart: what comes between them is computed while rows
     * travel. Both parts stay as they are until the end, which is one of all that were begun
     * before. NULL: nothing travels. */
    uint64_t (*begin)(void *ctx, const float *part, uint32_t n_rows, uint32_t first, uint32_t n,
                      uint32_t width, float *whole);
    void (*end)(void *ctx, uint64_t ticket);
    /* What ranks wrote for all before it is there for all after it. Nothing where ranks are apart.
     */
    void (*meet)(void *ctx);
    /* The rank's columns of these rows of the stream are as the call leaves them. */
    void (*wrote)(void *ctx, float *x, uint32_t n_rows);
    /* The first n rows of the stream are needed, as the call before this one left them. */
    void (*needs)(void *ctx, const float *x, uint32_t n_rows);
    /* All that was written so is there, of all ranks, in the midst of a call that goes on with it.
     * NULL: it is as soon as it was written. */
    void (*hear)(void *ctx);
    void *ctx;
    uint32_t threads; /* by which calls are cut into slices, at all ranks alike; 0: the rank's own,
                       * which are as many at all */
    bool apart; /* no rank sees another's rows: what rows need of no other rank each does for all of
                 * them, and its part of a result is there in its own columns */
    sl_extent out; /* columns of the stream and of results that are this rank's */
} sl_gang;

/* A model is a Hugging Face folder or a GGUF file: wherever a `folder` is asked for below, the path
 * of such a file will do.
 *
 * Reads config.json and generation_config.json, or metadata, no weights;
 * spec->weightless says that there are none (then only a device without weights runs it). Errors
 * name file, field, value and limit. spec->hash covers config and the headers of the weight files.
 */
sl_status sl_model_read_spec(const char *folder, sl_model_spec *spec, sl_generation_spec *gen,
                             sl_err *err) SL_MUST_CHECK;

/* Where weights are used that are not used where they are mapped: a device's memory. Addresses
 * there are given to the kernels of the device (kernel/ops.h), never followed. */
typedef struct sl_home {
    /* A copy of so many bytes, aligned to 256, or the place where one will be when it is used: what
     * is at `data` then stays. expert: whose they are, block of those with experts * n_experts +
     * expert; SIZE_MAX: no routed one's. SL_ERR_NOMEM says what of which limit does not fit. */
    sl_status (*put)(void *ctx, size_t expert, const void *data, size_t bytes, const void **out,
                     sl_err *err);
    void (*drop)(void *ctx, size_t expert, const void *at, size_t bytes); /* as it was put */
    void *ctx;
} sl_home;

/* Moves all that is bound to `home`, and what sl_model_host binds later; computations then ask for
 * that device's operations alone. The home is copied, its ctx borrowed until sl_model_free. Not for
 * ranks. told: how many bytes are there, of how many; may be NULL. On an error the model can only
 * be freed. Thread: the owner, before anything is computed. */
sl_status sl_model_settle(sl_model *m, const sl_home *home, sl_progress_fn told, void *ctx,
                          sl_err *err) SL_MUST_CHECK;

/* Whether this is memory of a mapped file, which stays as long as the model that has it. */
bool sl_weights_are_mapped(const void *at);

/* Maps the weights that `stages` needs (read-only, shared). */
sl_status sl_model_open(const char *folder, const sl_stages *stages, sl_model **out,
                        sl_err *err) SL_MUST_CHECK;
/* The same, unless *stop is set meanwhile: SL_ERR_AGAIN then, as soon as a tensor is bound. stop
 * NULL: never. */
sl_status sl_model_open_until(const char *folder, const sl_stages *stages, const atomic_bool *stop,
                              sl_model **out, sl_err *err) SL_MUST_CHECK;
/* The same computations on random bf16 weights: for measuring a model that has none. Tensors share
 * `bytes` of memory, one after the other and around; the largest has to fit. Such a model hosts
 * everything. spec->arch is one of
 * the supported classes. SL_ERR_LIMIT names a tensor that does not fit. */
sl_status sl_model_open_random(const sl_model_spec *spec, size_t bytes, uint64_t seed,
                               sl_model **out, sl_err *err) SL_MUST_CHECK;
void sl_model_free(sl_model *m);

typedef enum sl_hosting {
    SL_HOSTING_DONE,
    SL_HOSTING_GOES_ON, /* to be called again */
    SL_HOSTING_WAITS,   /* so, too, in some ms: files are being read */
} sl_hosting;

/* A step towards hosting the experts marked in hosted, as of sl_stages, and no others: some of
 * those that are missing are mapped and touched, or when all are there some others are given up. A
 * step takes less than a millisecond, but for weights that are not used as they are mapped: one
 * expert then. patient: what is not in memory is waited for. For models with experts; on an error
 * nothing is given up. Thread: the owner, while nothing is computed. */
sl_status sl_model_host(sl_model *m, const uint8_t *hosted, bool patient, sl_hosting *left,
                        sl_err *err) SL_MUST_CHECK;

/* Who may end a touching early, who hears how far it is, and where pages go. */
typedef struct sl_touching {
    const atomic_bool *stop; /* NULL: nobody */
    /* Bytes that this process has in its memory, of all that are bound; NULL: nobody hears. On the
     * thread that touches, after every piece of its own. What does not fit is never done. */
    sl_progress_fn progress;
    void *ctx;
    /* What is touched moves to this memory node, as far as that can be; NULL: it stays. What others
     * have of the same file, as other ranks do, is taken out of this process's memory where the
     * kernel put it there unasked: they could not move it otherwise. */
    sl_numa *near;
} sl_touching;

/* Puts the bound weights into this process's page tables, all threads of the pool at once: else the
 * first steps fault every 64 KiB, which costs more than they do. What the page cache lacks is read
 * now, for a minute and as far as memory is free: so it comes in large pages, which what is merely
 * asked for does not. The rest is read when it is used. Changes nothing but times, so that it may
 * be done again. how: NULL is to its end, in silence. Thread: the pool's owner. */
void sl_model_touch(sl_model *m, sl_pool *pool, const sl_touching *how);

/* Borrowed until sl_model_free. Of a rank: its share of heads and widths. */
const sl_model_spec *sl_model_spec_of(const sl_model *m);
/* The same of all ranks together. */
const sl_model_spec *sl_model_stored_of(const sl_model *m);

/* Whether experts are drawn (a route skew), which the host does while it asks for the rest. */
bool sl_model_draws(const sl_model *m);

/* Columns of what O and DOWN give that a rank has, where it has rows of these; false: ranks add up,
 * and whoever adds says which. */
bool sl_model_out(const sl_model *m, sl_extent *out);

/* A rank's model computes with the others of `gang` from here on, which is borrowed until
 * sl_model_free. All ranks are given the same rows x, h and results to write, in one memory, or
 * where they are apart the same numbers in memory of their own. */
void sl_model_join(sl_model *m, const sl_gang *gang);
/* What of the stages a rank has nothing of: more ranks than units. */
typedef struct sl_idle {
    bool heads, dense, expert, shared;
} sl_idle;
sl_idle sl_model_idle(const sl_model *m);
/* Columns of results that are there after a call whose memory no other rank has: all of them, or
 * those of a rank. */
sl_extent sl_model_columns(const sl_model *m);
/* Rows of the stream of which a rank has written these columns are to be whole at all of them; what
 * was written so is, before the next call or within one. Without a gang nothing. */
void sl_model_wrote(const sl_model *m, float *x, uint32_t n_rows);
void sl_model_hear(const sl_model *m);
/* Those of a rank, of all kv heads; ranks may have the same. */
sl_extent sl_model_kv_heads(const sl_model *m);

/* What a folder holds, for `sluice inspect` and plans. */
typedef struct sl_model_info {
    uint64_t n_tensors, bytes_total;
    uint64_t bytes_attention;   /* everything an attention worker maps */
    uint64_t bytes_expert;      /* one expert of one block: the first that has some... */
    uint64_t bytes_expert_most; /* ...and where it is largest */
    /* What a device that copies weights has of one at most: so many pieces of so many bytes, and
     * beside them bytes of far smaller ones. */
    uint32_t expert_pieces;
    uint64_t expert_piece, expert_small;
    uint32_t n_files;
    sl_dtype expert_dtype, attention_dtype;
    bool strips; /* some weights lie in strips (quant/strips.h) */
} sl_model_info;
sl_status sl_model_inspect(const char *folder, sl_model_info *out, sl_err *err) SL_MUST_CHECK;
/* The same of one that is open. Sums header sizes; shapes and types of all tensors are checked,
 * none is mapped. */
sl_status sl_model_measure(const sl_model *m, sl_model_info *out, sl_err *err) SL_MUST_CHECK;

/* Bytes of weights that a stage reads of one block of those that this model has, in the mean: what
 * stands in memory, embeddings and norms of the model not among them. of[SL_COST_COUNT], by
 * spec/device.h; 0: it has no such stage. */
void sl_model_stage_bytes(const sl_model *m, double *of);

/* Bytes of weights that are not used where they are mapped: copied in another order or as another
 * type, of a rank its part, and single rows that are read. */
uint64_t sl_model_copied(const sl_model *m);

/* Whether weights of its workers lie in strips (quant/strips.h). */
bool sl_model_in_strips(const sl_model *m);

/* Scratch that the attention-side calls below need for up to max_rows rows; taken from `scratch`
 * and given back before they return (the arena's level on entry is its level on return). */
size_t sl_model_scratch_bytes(const sl_model_spec *spec, uint32_t max_rows);
/* What ranks need besides. */
size_t sl_rank_scratch_bytes(const sl_model *m, uint32_t max_rows);
size_t sl_rank_pairs_bytes(const sl_model *m, uint32_t max_pairs);

/* x[i] = embedding row of ids[i], widened. ids are < vocab (checked by the caller). */
void sl_model_embed(const sl_model *m, const sl_exec *ex, const uint32_t *ids, uint32_t n_rows,
                    float *x);

/* Rows of one step: row r is at absolute position pos[r] of a request whose pages are pages[r][0..]
 * of kv; rows of one request have the same list and are in ascending position order. Pages of
 * pos[r] exist. */
typedef struct sl_rows {
    uint32_t n;
    const uint32_t *id; /* token of each row; read only by a route skew */
    const uint32_t *pos;
    sl_kv_pool kv;
    const uint32_t *const *pages;
    const uint32_t *low; /* first position that each row sees; NULL: as its block has it */
    /* Of a model with linear attention: as of sl_delta_args (kernel/delta.h). */
    const uint32_t *state, *done;
    struct sl_states *states;
} sl_rows;

/* What ex->expand_rows is for results that may depend on the chunk: the least number of rows of one
 * request in a step that latent attention takes the expanded form for; 0: never (mla_expanded.c).
 */
uint32_t sl_model_expand_rows(const sl_model_spec *spec);

/* x += Attention(RMSNorm(x)): writes K and V of the rows into their pages, then attends. */
void sl_block_attention(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                        float *x, sl_arena *scratch);

/* x += FFN(RMSNorm(x)) of a dense block. */
void sl_block_dense(const sl_model *m, const sl_exec *ex, uint32_t layer, uint32_t n_rows, float *x,
                    sl_arena *scratch);

/* Router of a MoE block, to be called before its attention when spec.dense_branch, after it
 * otherwise: h = RMSNorm(x) [n_rows][d_model], the rows that experts receive;
 * expert[r][j], gate[r][j] for j < top_k: the chosen experts sorted by expert id with their weights
 * (docs/numbers.md; mostly softmax over all experts, top-k, rescaled when norm_topk). With a
 * route skew experts are drawn instead. */
void sl_block_route(const sl_model *m, const sl_exec *ex, uint32_t layer, const sl_rows *rows,
                    const float *x, float *h, uint32_t *expert, float *gate, sl_arena *scratch);

/* The shared expert of a MoE block, in place: h, the rows that experts receive, becomes
 * sigmoid(g . h) * W2 (silu(W1 h) * W3 h), which is added after the routed positions. Only when
 * spec.d_ff_shared > 0. A dense branch takes RMSNorm(x), the stream after attention, for h; others
 * do not read x. */
void sl_block_shared(const sl_model *m, const sl_exec *ex, uint32_t layer, uint32_t n_rows,
                     const float *x, float *h, sl_arena *scratch);

/* An expert's matrices where they are used, and its biases, NULL where it has none; false: this
 * model does not have it now. Borrowed until it goes. */
typedef struct sl_expert_mats {
    const sl_mat *gate, *up, *down;
    const sl_mat *gate_bias, *up_bias, *down_bias;
} sl_expert_mats;
bool sl_model_expert(const sl_model *m, uint32_t layer, uint32_t expert, sl_expert_mats *out);

/* Grouped expert FFN: group g applies `expert[g]` of block `layer` to rows
 * row[first[g]] .. row[first[g+1]-1] of x. Result p (p in first[g]..first[g+1]-1), gate[p] *
 * W2 (silu(W1 h) * W3 h), or W2 (silu(W1 g) * W3 g) of g = gate[p] * h when spec.gate_input, goes
 * to y[p]; or, where there is `to`, to to[p], added to what is there when adds[p], in the order of
 * p. Results may share a place: it gets the sum. Pairs are computed a few hundred a thread at a
 * time, and only so much of the scratch is written to. */
typedef struct sl_expert_batch {
    uint32_t n_groups;
    const uint32_t *expert; /* [n_groups] */
    const uint32_t *first;  /* [n_groups + 1] */
    const uint32_t *row;    /* [first[n_groups]] */
    const float *x;         /* rows of d_model */
    float *y;               /* [first[n_groups]][d_model]; not used with `to` */
    const float *gate;      /* [first[n_groups]]; NULL: all are 1 */
    uint32_t n_rows;        /* all of x, which are then rounded to 8 bits once each; 0: not known */
    float *const *to;       /* [first[n_groups]] rows of d_model, or NULL */
    const uint8_t *adds;    /* [first[n_groups]], of `to` */
} sl_expert_batch;
size_t sl_experts_scratch_bytes(const sl_model_spec *spec, uint32_t max_pairs);
void sl_block_experts(const sl_model *m, const sl_exec *ex, uint32_t layer,
                      const sl_expert_batch *b, sl_arena *scratch);

/* logits[i] = head(RMSNorm(x[row[i]])), [n][vocab] f32. */
void sl_model_head(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                   uint32_t n, float *logits, sl_arena *scratch);

/* The same in pieces, with other work between them: h[i] = RMSNorm(x[row[i]]), [n][d_model], then
 * columns first .. first + count - 1 of the logits, whose rows are vocab apart, until all are
 * there. Any pieces give the same bits. */
void sl_model_head_rows(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                        uint32_t n, float *h);
void sl_model_head_part(const sl_model *m, const sl_exec *ex, const float *h, uint32_t n,
                        uint32_t first, uint32_t count, float *logits, sl_arena *scratch);

/* ---- the block that predicts a further token, where it is bound (model/mtp.c) ----
 *
 * Its rows go through sl_block_attention, sl_block_route, sl_block_shared and sl_block_experts as
 * those of block sl_mtp_block, between these two. */

/* Scratch of sl_mtp_enter for up to max_rows rows. */
size_t sl_mtp_scratch_bytes(const sl_model_spec *spec, uint32_t max_rows);
/* y[i], [n][d_model]: what the block makes its way from of token id[i], the next one of a row, and
 * x[row[i]], what the last block left of that row; with `again` what this block did. y is not x. A
 * rank writes its columns. */
void sl_mtp_enter(const sl_model *m, const sl_exec *ex, const uint32_t *id, const float *x,
                  const uint32_t *row, uint32_t n, bool again, float *y, sl_arena *scratch);
/* h[i] for sl_model_head_part, of rows x[row[i]] that the block has left. */
void sl_mtp_head_rows(const sl_model *m, const sl_exec *ex, const float *x, const uint32_t *row,
                      uint32_t n, float *h);

#endif
