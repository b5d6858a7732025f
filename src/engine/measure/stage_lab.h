/* Stages of a model on a device of this machine, one call after the other, asked of it as an
 * engine's worker asks: what plans and profiles time. Thread: owner. */
#ifndef SL_ENGINE_STAGE_LAB_H
#define SL_ENGINE_STAGE_LAB_H

#include "base/status.h"
#include "spec/activations.h"
#include "spec/costs.h"
#include "spec/gang.h"
#include "spec/model.h"

typedef struct sl_lab sl_lab;

typedef struct sl_lab_opts {
    const char *model_folder;
    const sl_model_spec *m; /* borrowed until sl_lab_close */
    const char *isa;        /* as of sl_kernels_select; NULL or "": its base */
    uint32_t threads;       /* of one worker */
    sl_activations activations;
    uint32_t roles;               /* whose stages there will be */
    const sl_device_spec *device; /* what computes, not emulated; NULL: processors. Borrowed */
    sl_extent blocks;             /* of the model; calls for them take turns */
    uint32_t experts;             /* of each block with experts: they take turns */
    uint32_t head_rows;           /* of the embedding and the head; 0: they are not measured */
    uint32_t max_rows, max_pairs; /* of a call; max_pairs: rows of its experts, of all together */
    uint32_t pages;               /* of KV */
    void (*tick)(void *ctx);      /* called now and then meanwhile; NULL: never */
    void *ctx;
} sl_lab_opts;

typedef struct sl_lab_task {
    sl_cost_kind kind;
    uint32_t rows;    /* of experts: of each */
    uint32_t context; /* keys that a row of attention sees, as requests of their own; 0: rows are a
                       * prompt, from position 0 on. What it needs of pages there is */
    uint32_t experts; /* of one block, at most those that take turns */
} sl_lab_task;

/* About n blocks from the first on, which is another kind than the others in some models; one with
 * experts is among them, and of blocks of linear attention as large a part as in the model. */
sl_extent sl_lab_first_blocks(const sl_model_spec *m, uint32_t n);
/* Weights of the blocks are opened: read where they are used, or copied to a GPU. */
sl_status sl_lab_open(const sl_lab_opts *o, sl_lab **out, sl_err *err) SL_MUST_CHECK;
/* One call, to its end: what whoever waits for its results waits for is in it, copies, too. HEAD is
 * the embedding and all logits. A device that fails is through at once. Returns how many calls it
 * was: of ATTENTION one of each block, where some have linear attention. */
uint32_t sl_lab_run(sl_lab *l, const sl_lab_task *t);
/* Rows as they leave in f32 for other workers, or come from there. */
void sl_lab_copy(sl_lab *l, bool leave, uint32_t rows);
/* SHARED works in place: what it made of its rows is undone. */
void sl_lab_renew(sl_lab *l);
/* NULL-safe. st, or why the device failed meanwhile. */
sl_status sl_lab_close(sl_lab *l, sl_status st, sl_err *err) SL_MUST_CHECK;

#endif
