/* Memory in a file without a name, sealed in size: several processes map it, and what lies in it
 * outlives each of them. Thread: any. */
#ifndef SL_BASE_MEMFD_H
#define SL_BASE_MEMFD_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/* A file of so many bytes (> 0), all zero, that is closed by exec; it takes memory as it is
 * touched. The caller closes it. SL_ERR_IO. */
sl_status sl_memfd_create(size_t bytes, int *out, sl_err *err) SL_MUST_CHECK;
/* SL_ERR_PROTOCOL unless fd is such a file, of this size: one that can shrink, or of huge pages
 * that run out, would be a SIGBUS at the will of who has it. */
sl_status sl_memfd_check(int fd, size_t bytes, sl_err *err) SL_MUST_CHECK;

/* Maps it to read and write, so that it begins where a large page may, if it has room for one.
 * NULL: no address space. */
void *sl_memfd_map(int fd, size_t bytes) SL_MUST_CHECK;
/* The same of its bytes from `from` on, a multiple of SL_LARGE_PAGE. */
void *sl_memfd_map_from(int fd, size_t from, size_t bytes) SL_MUST_CHECK;
void sl_memfd_unmap(void *p, size_t bytes); /* NULL-safe */
/* Gives bytes [from, to) of a mapping large pages, if the system has any: such files get none by
 * being touched, as private memory does (sl_reserve), unless it is told so. Both are multiples of
 * SL_LARGE_PAGE, or `to` the mapping's end. False: there never will be any. */
bool sl_memfd_enlarge(void *p, size_t from, size_t to);

#define SL_LARGE_PAGE ((size_t)1 << 21)

#endif
