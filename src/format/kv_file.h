/* KV pages in a file, so that they outlive the process that computed them: each with its key and a
 * hash of both, behind a head that says on what else its rows depend.
 *
 *   head    "SLUICEK" 0x0A, u32 version, u32 0, u64 bytes of a page, u64 n, 32 bytes that stand for
 *           all that rows depend on beside their keys; a hash of these 64, 32 bytes
 *   page    16 bytes of key, 32 bytes of hash, its bytes; n of them and nothing behind
 *
 * Numbers are little-endian. Hashes are BLAKE2b, those of pages with the 32 bytes as their key, so
 * that a page of another file fits no better than a damaged one. The page that is of most use comes
 * last. Nothing of a file is believed before its hash fits. Thread: owner. */
#ifndef SL_FORMAT_KV_FILE_H
#define SL_FORMAT_KV_FILE_H

#include "base/output.h"
#include "base/status.h"
#include "spec/page_key.h"

#include <stdbool.h>
#include <stdio.h>

#define SL_KV_FILE_VERSION    1u
#define SL_KV_FILE_HEAD_BYTES 96u
#define SL_KV_FILE_PAGE_EXTRA 48u /* bytes of a page beside its own */

/* What a file is of: other bytes, other rows. */
typedef struct sl_kv_stamp {
    uint8_t byte[32];
} sl_kv_stamp;

/* ---- writing ---- */

typedef struct sl_kv_writer {
    sl_output out;
    sl_kv_stamp of;
    size_t page; /* bytes */
    uint64_t left;
} sl_kv_writer;

/* A file of n pages of so many bytes takes the place of what is at `path` when it is whole and
 * durable, mode 0600. Errors: sl_output_open_private. */
sl_status sl_kv_writer_open(const char *path, const sl_kv_stamp *of, size_t page, uint64_t n,
                            sl_kv_writer *out, sl_err *err) SL_MUST_CHECK;
/* The next one; key: not none. SL_ERR_IO: it cannot be written. */
sl_status sl_kv_writer_put(sl_kv_writer *w, sl_page_key key, const void *bytes,
                           sl_err *err) SL_MUST_CHECK;
/* The file is there if `st` is SL_OK and all n were put; else what was there is. Returns `st`, or
 * SL_ERR_IO. */
sl_status sl_kv_writer_end(sl_kv_writer *w, sl_status st, sl_err *err) SL_MUST_CHECK;

/* ---- reading ---- */

typedef struct sl_kv_reader {
    FILE *f;
    sl_kv_stamp of;
    size_t page;
    uint64_t n, next; /* pages; the one that is read next */
} sl_kv_reader;

/* SL_ERR_NOTFOUND: there is none. SL_ERR_ARG: it is a link, or no regular file, or another user's,
 * or others may read or write it. SL_ERR_FORMAT: its head is damaged, or its size is not what that
 * says. SL_ERR_UNSUPPORTED: it is of another stamp, size of page, or version, and no error. */
sl_status sl_kv_reader_open(const char *path, const sl_kv_stamp *of, size_t page, sl_kv_reader *out,
                            sl_err *err) SL_MUST_CHECK;
/* The next n are not read. */
sl_status sl_kv_reader_skip(sl_kv_reader *r, uint64_t n, sl_err *err) SL_MUST_CHECK;
/* The next one, r->next < r->n, to bytes[r->page]. SL_ERR_FORMAT: it is damaged, those behind it
 * may be whole. SL_ERR_IO: it cannot be read, nor what is behind it. */
sl_status sl_kv_reader_next(sl_kv_reader *r, sl_page_key *key, void *bytes,
                            sl_err *err) SL_MUST_CHECK;
void sl_kv_reader_close(sl_kv_reader *r); /* zeroed is fine */

#endif
