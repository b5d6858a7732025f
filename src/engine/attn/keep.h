/* What a worker keeps while it has no coordinator: of its KV the file that the pages lie in, and
 * what is in which of them; and what it has measured. It outlives the worker's sides and devices,
 * is its process's, and is of use only where the next plan would compute the same rows. Thread:
 * owner of the worker. */
#ifndef SL_ENGINE_KEEP_H
#define SL_ENGINE_KEEP_H

#include "base/status.h"
#include "spec/model.h"
#include "spec/plan.h"

typedef struct sl_keep sl_keep;

/* Empty. NULL: no memory. */
sl_keep *sl_keep_create(void) SL_MUST_CHECK;
void sl_keep_free(sl_keep *k); /* NULL-safe; what is kept goes */

/* The file for the KV of worker `id` by this plan, of the model in `folder`: owned by k, as of
 * sl_device_opts.kv_fd. It is the one there was if everything is the same on which rows
 * depend here: the checkpoint (its headers, and its files by inode, size and time), numerics, the
 * pool. Else what was kept goes. 0: none is needed, or can be had, which is logged; KV of a GPU
 * lies in its memory and ends with the worker. */
int sl_keep_file(sl_keep *k, uint32_t id, const sl_plan *p, const sl_model_spec *m,
                 const char *folder);

/* What the worker has measured for a coordinator (engine/measure/survey.h): the answer to the same
 * question, for the next one; NULL: it has not been asked. Texts are copied. */
const char *sl_keep_answer(const sl_keep *k, const char *question);
void sl_keep_note_answer(sl_keep *k, const char *question, const char *answer);
#endif
