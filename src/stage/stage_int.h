/* What devices share, for src/stage only. */
#ifndef SL_STAGE_STAGE_INT_H
#define SL_STAGE_STAGE_INT_H

#include "stage/stage.h"

sl_status sl_cpu_open(const sl_device_opts *o, sl_device **out, sl_err *err) SL_MUST_CHECK;
sl_status sl_gang_open(const sl_device_opts *o, sl_device **out, sl_err *err) SL_MUST_CHECK;
sl_status sl_pipeline_open(const sl_device_opts *o, sl_device **out, sl_err *err) SL_MUST_CHECK;
sl_status sl_emulated_open(const sl_device_opts *o, sl_device **out, sl_err *err) SL_MUST_CHECK;
sl_status sl_cuda_device_open(const sl_device_opts *o, sl_device **out, sl_err *err) SL_MUST_CHECK;

/* What the call does at an emulated device, at once; how long it would take, in ns. */
uint64_t sl_emulated_count(sl_device *d, const sl_stage_call *c);

/* Of a CPU that is a rank: the model of all ranks, what it has nothing of, its kv heads, and where
 * a block of one of its pages lies. */
const sl_model_spec *sl_cpu_stored_of(const sl_device *d);
sl_idle sl_cpu_idle(const sl_device *d);
sl_extent sl_cpu_kv_heads(const sl_device *d);
bool sl_cpu_has_expert(const sl_device *d, uint32_t layer, uint32_t expert); /* it is hosted */
bool sl_cpu_out(const sl_device *d, sl_extent *out);                         /* sl_model_out */
sl_extent sl_cpu_blocks(const sl_device *d); /* that it has something of */
uint8_t *sl_cpu_block(const sl_device *d, uint32_t page, uint32_t layer);
/* A page is written through that. */
void sl_cpu_page_came(sl_device *d, uint32_t page);

/* The oldest call in flight of the queue is through. */
static inline void sl_device_ran(sl_device *d, uint32_t queue) {
    d->done[queue]++;
    d->in_flight--;
}

/* Memory of the host; NULL where there is none. */
static inline void *sl_mem_ptr(sl_mem m) {
    SL_ASSERT(m.space == SL_SPACE_HOST);
    return m.bytes ? (void *)(uintptr_t)m.at : NULL;
}

/* A place of rows, for whoever computes there. */
static inline void *sl_mem_at(sl_mem m) {
    return m.bytes ? (void *)(uintptr_t)m.at : NULL;
}

/* What a model's stages need besides the call: EMBED, ATTEND, DENSE, ROUTE, SHARED and EXPERTS as
 * src/model has them, by the operations of `exec`. False: another stage. */
typedef struct sl_stage_model {
    sl_model *model;
    const sl_exec *exec;
    sl_arena *scratch;
    sl_kv_pool kv;
    struct sl_states *states; /* of linear attention; NULL: the model has none */
    bool heads; /* MTP: rows of the head are its to make: of ranks in one memory they are one's */
} sl_stage_model;
bool sl_stage_run_model(const sl_stage_model *s, const sl_stage_call *c);

/* The scratch that stages of so many rows take, but EXPERTS; EXPERTS of so many pairs. Ranks may
 * have two parts of a call under way, each of which begins at a place of its own, halves of pairs
 * being rounded up (calls.c). */
size_t sl_stage_rows_bytes(const sl_model *m, uint32_t n);
size_t sl_stage_pairs_bytes(const sl_model *m, uint32_t n);

/* INSIDE, in the host's memory, with its ids and gates left in rows.expert and rows.gate
 * (inside.c); the scratch that it takes besides that of its stages. */
void sl_stage_run_inside(const sl_stage_model *s, const sl_stage_call *c);
size_t sl_stage_inside_bytes(const sl_model_spec *m, uint32_t max_rows);

/* MTP, in the host's memory, with kv that of its block; low[i]: the first position that row i sees.
 * The scratch that it takes, of any number of rows (mtp.c). */
void sl_stage_run_mtp(const sl_stage_model *s, const sl_stage_call *c, const uint32_t *low);
size_t sl_stage_mtp_bytes(const sl_model *m);

/* Kernels by name; SL_ERR_UNSUPPORTED names those that cannot run here. */
sl_status sl_stage_kernels(const char *isa, const sl_kernels **out, sl_err *err) SL_MUST_CHECK;

/* PACK, UNPACK, MOVE and MERGE in host memory, by the caller's thread; false: another stage. sum: 2
 * * d_model floats of scratch. */
bool sl_stage_run_rows(const sl_exec *ex, const sl_model_spec *m, const sl_stage_call *c,
                       float *sum);

/* Ops of devices whose memory is the host's. */
sl_status sl_host_take(sl_device *d, size_t bytes, sl_mem *out, sl_err *err) SL_MUST_CHECK;
void sl_host_give(sl_device *d, sl_mem m);

#endif
