/* Cached KV of an attention worker on a disk (--kv-disk): what the coordinator says is worth it as
 * it ends goes to the worker's file (format/kv_folder.h), and is told to the next coordinator by
 * the worker that finds it there. It is its process's, as engine/attn/keep.h is. Thread: owner of
 * the worker. */
#ifndef SL_ENGINE_DISK_H
#define SL_ENGINE_DISK_H

#include "base/status.h"

#include <stdint.h>

typedef struct sl_kv_disk sl_kv_disk;

/* A worker's file in `folder`, of at most so many bytes; 0: as many as it has pages. Nothing is
 * opened yet. SL_ERR_NOMEM, and what sl_kv_folder_check refuses. */
sl_status sl_kv_disk_create(const char *folder, uint64_t bytes, sl_kv_disk **out,
                            sl_err *err) SL_MUST_CHECK;
void sl_kv_disk_free(sl_kv_disk *d); /* NULL-safe */

#endif
