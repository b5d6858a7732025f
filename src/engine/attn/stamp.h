/* What rows of KV depend on besides the tokens and whose they are, which is in the keys of their
 * pages: pages that wait for another plan, or another program, are of use there only where this is
 * the same. Thread: any. */
#ifndef SL_ENGINE_STAMP_H
#define SL_ENGINE_STAMP_H

#include "format/kv_file.h"
#include "spec/model.h"
#include "spec/plan.h"

/* Of worker `id` by this plan, of the model in `folder`: the checkpoint (its headers, and its files
 * by inode, size and time), numerics, bytes of a page, how many ranks it has, and the version of
 * this program. */
void sl_kv_stamp_of(uint32_t id, const sl_plan *p, const sl_model_spec *m, const char *folder,
                    sl_kv_stamp *out);

#endif
