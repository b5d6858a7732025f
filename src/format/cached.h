/* How much of a checkpoint's files the system holds in memory: what a start from a cold disk still
 * has to read. */
#ifndef SL_FORMAT_CACHED_H
#define SL_FORMAT_CACHED_H

#include "base/status.h"

typedef struct sl_cached sl_cached;

/* Maps the weight files of a model and reads none of their bytes. *out is NULL, with SL_OK, where
 * there is nothing to tell: fewer than 16 MB, or files that this user neither owns nor may write,
 * of which the system says nothing. Errors as sl_ckpt_open. */
sl_status sl_cached_open(const char *model, sl_cached **out, sl_err *err) SL_MUST_CHECK;
void sl_cached_free(sl_cached *c); /* NULL-safe */
/* Bytes of all files. */
uint64_t sl_cached_total(const sl_cached *c);
/* Of them in memory, as one page in so many says (8,192 looks at most: about a millisecond).
 * Thread: any. */
uint64_t sl_cached_now(const sl_cached *c);

#endif
