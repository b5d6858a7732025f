/* Read-only mappings of files nobody vouches for.
 *
 * A file that shrinks while it is mapped makes the next access fault (SIGBUS). Opening a
 * mapping sees to it that a handler names the file on stderr and leaves with exit code 1; a SIGBUS
 * anywhere else keeps its former effect. Thread: any. */
#ifndef SL_FORMAT_MAP_H
#define SL_FORMAT_MAP_H

#include "base/span.h"
#include "base/status.h"

/* Mappings that can exist at once in a process. */
#define SL_MAP_MAX 4096

/* Bytes of a file from which on a mapping asks for pages of 2 MB. */
#define SL_MAP_HUGE_MIN ((uint64_t)4 << 20)

typedef struct sl_map {
    sl_span bytes; /* the whole file, shared with every other process that maps it */
    char *path;    /* owned */
    uint64_t device, inode;
    uint32_t slot; /* where the handler finds it */
} sl_map;

/* Maps the regular file `path`. SL_ERR_NOTFOUND, SL_ERR_IO; SL_ERR_LIMIT above max_bytes;
 * SL_ERR_FORMAT for an empty file or one that is not regular. *out is touched only on success. */
sl_status sl_map_open(const char *path, uint64_t max_bytes, sl_map *out, sl_err *err) SL_MUST_CHECK;
void sl_map_close(sl_map *m); /* a zeroed sl_map is fine */

/* Whole pages within a part of a mapping, when they were copied: they leave the memory of the
 * process, and are read again should anyone look. */
void sl_map_drop(sl_span part);

/* The whole of the mapping that `at` lies in; empty: in none. Borrowed until it is closed. */
sl_span sl_map_around(const void *at);

/* Bytes of mapped files that this process reaches through pages of 2 MB; 0 where the system does
 * not say. */
uint64_t sl_map_huge_bytes(void);

/* The mapped file once more, for reading parts of it into memory. SL_ERR_IO when its path leads to
 * another one by now. The caller closes *out_fd. */
sl_status sl_map_reopen(const sl_map *m, int *out_fd, sl_err *err) SL_MUST_CHECK;

/* Opens a regular file for reading and reports its length; same errors as above, an empty file is
 * fine here. The caller closes *out_fd. */
sl_status sl_map_open_fd(const char *path, int *out_fd, uint64_t *out_bytes,
                         sl_err *err) SL_MUST_CHECK;

#endif
