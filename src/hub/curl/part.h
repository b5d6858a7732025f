/* A file that is on its way: its bytes so far, in pieces that come in any order, and beside them
 * how much of each piece is there, so that whoever comes later goes on. The lock over a blob is the
 * one that the hub's tools take. */
#ifndef SL_HUB_CURL_PART_H
#define SL_HUB_CURL_PART_H

#include "hub/hub_int.h"

#define SL_HUB_MAX_PIECES 4096u

/* The lock file's descriptor in *out, -1 while another process holds it. close() gives it back. */
sl_status sl_hub_lock(const sl_hub_settings *s, const sl_hub_name *n, const char *id, int *out,
                      sl_err *err) SL_MUST_CHECK;

typedef struct sl_hub_part {
    char path[SL_HUB_PATH + 16], state_path[SL_HUB_PATH + 16];
    int fd, state_fd;
    uint64_t bytes, piece; /* of the file; of every piece but the last */
    uint32_t n;
    uint64_t *done, *saved; /* bytes of each piece: there; as the state file says */
} sl_hub_part;

/* Opens what is there of the blob at `path`, or begins it; anything that does not fit begins anew.
 * *p is zeroed by the caller; sl_hub_part_close either way. */
sl_status sl_hub_part_open(sl_hub_part *p, const char *path, uint64_t bytes,
                           sl_err *err) SL_MUST_CHECK;
void sl_hub_part_close(sl_hub_part *p); /* what is there stays */
/* All of it comes anew; whole: in one piece, from a server that gives no ranges. */
sl_status sl_hub_part_reset(sl_hub_part *p, bool whole, sl_err *err) SL_MUST_CHECK;
uint64_t sl_hub_part_begin(const sl_hub_part *p, uint32_t piece); /* its place in the file */
uint64_t sl_hub_part_length(const sl_hub_part *p, uint32_t piece);
uint64_t sl_hub_part_have(const sl_hub_part *p);  /* bytes in all */
uint64_t sl_hub_part_front(const sl_hub_part *p); /* bytes from the file's begin without a gap */
/* The next bytes of a piece, which must fit into it. */
sl_status sl_hub_part_write(sl_hub_part *p, uint32_t piece, const void *bytes, size_t n,
                            sl_err *err) SL_MUST_CHECK;
sl_status sl_hub_part_save(sl_hub_part *p, uint32_t piece, sl_err *err) SL_MUST_CHECK;
/* Shows who waits for the lock that something moves, although no bytes come. */
void sl_hub_part_touch(const sl_hub_part *p);
/* It is whole and right: becomes the blob at `path`. */
sl_status sl_hub_part_finish(sl_hub_part *p, const char *path, sl_err *err) SL_MUST_CHECK;

#endif
