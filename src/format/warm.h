/* A checkpoint's files in the file cache, in pages of 2 MB where the system has them.
 *
 * Weights are used where they are mapped. Decode of one request reads most of them once a token,
 * and with pages of 4 KB every page costs a walk through the page tables of guest and host, and
 * hints to the cache that miss in the TLB are lost. What a process writes in small pieces (a
 * download, a quantiser) stays in the cache in small pages; what is read from a disk afterwards
 * comes in large ones. Thread: any. */
#ifndef SL_FORMAT_WARM_H
#define SL_FORMAT_WARM_H

#include "base/progress.h"

#include <stdbool.h>

typedef struct sl_warm_report {
    uint64_t bytes;       /* of the file */
    uint64_t possible;    /* of them that pages of 2 MB can hold: none of a small file */
    uint64_t huge_before; /* of them in pages of 2 MB, as they were found or first read */
    uint64_t huge;        /* at the end */
    bool again;           /* dropped from the cache and read once more */
} sl_warm_report;

/* Reads the file into the cache; when less than `want` (0 to 1) of what can be is in large pages
 * and more than 1 - want of the file was in the cache before, drops it and reads it from the disk
 * again. Pages that other processes have mapped, or that
 * are not on the disk yet, cannot be dropped: the report tells. SL_ERR_NOTFOUND, SL_ERR_IO,
 * SL_ERR_FORMAT as sl_map_open. progress counts bytes, and may be NULL. */
sl_status sl_warm_file(const char *path, double want, sl_progress_fn progress, void *ctx,
                       sl_warm_report *out, sl_err *err) SL_MUST_CHECK;

#endif
