/* The file of the journal: records that are whole or not there.
 *
 *   head    "SLUICEJ" 0x0A, u32 version, 16 bytes of salt, 32 bytes
 *           fingerprint of the model, 32 of the service, u32 CRC-32C of all that
 *   record  u32 type, u32 bytes, u32 check of these two; the bytes; u32 CRC-32C of type to bytes
 *
 * Numbers are little-endian. The check is a CRC-32C that is mixed with the salt: what clients send
 * cannot look like a record. A record that is not whole and behind which no whole one follows is a
 * torn tail, as a machine leaves that stopped while it wrote: it is cut off, with a line of the
 * log. With a whole one behind it the file is damaged: it is refused, with the offset.
 *
 * One process has it at a time (flock). It is for its owner alone (0600): it holds prompts. A
 * record is written by one write(2) before sl_journal_commit returns, so it outlives the process;
 * sl_journal_sync makes it outlive the machine. When a write fails what is there of it is taken
 * back, and nothing more is written until the file has been written anew (sl_journal_renew).
 *
 * src/base/output.h does not fit: the old file takes records until the new one has its name.
 * Thread: any after sl_journal_read; one at a time for renewals. */
#ifndef SL_SERVE_JOURNAL_H
#define SL_SERVE_JOURNAL_H

#include "base/span.h"
#include "base/status.h"

#define SL_JOURNAL_VERSION      2u
#define SL_JOURNAL_HEAD_BYTES   96u
#define SL_JOURNAL_SALT_BYTES   16u
#define SL_JOURNAL_RECORD_BYTES ((size_t)64 << 20) /* of one at most, without its frame */

typedef struct sl_journal sl_journal;

/* What a journal belongs to: one of another model is refused. */
typedef struct sl_journal_about {
    uint8_t model[32];   /* sl_model_spec.hash */
    uint8_t service[32]; /* of tokenizer and standards of sampling */
} sl_journal_about;

typedef enum sl_journal_where {
    SL_JOURNAL_NOWHERE, /* nothing is written */
    SL_JOURNAL_HERE,
    SL_JOURNAL_BOTH, /* and in the file that is to replace it, if there is one */
    SL_JOURNAL_NEW,  /* there alone */
} sl_journal_where;

/* Opens what is there, or creates it. SL_ERR_ARG: no regular file, or one that others may read;
 * SL_ERR_AGAIN: another process has it; SL_ERR_FORMAT: no journal, or a damaged one;
 * SL_ERR_UNSUPPORTED: of another version; SL_ERR_INFEASIBLE: of another model or service. */
sl_status sl_journal_open(const char *path, const sl_journal_about *about, sl_journal **out,
                          sl_err *err) SL_MUST_CHECK;
void sl_journal_close(sl_journal *j); /* NULL-safe */

/* Hands over every record in order, once, before the first one is written; what `take` refuses is
 * refused, with the offset. */
typedef sl_status (*sl_journal_take)(void *ctx, uint32_t type, sl_span payload, sl_err *err);
sl_status sl_journal_read(sl_journal *j, sl_journal_take take, void *ctx,
                          sl_err *err) SL_MUST_CHECK;

/* [SL_JOURNAL_SALT_BYTES] that were drawn when the file was made, and stay. */
const uint8_t *sl_journal_salt(const sl_journal *j);

/* Room for a record of at most n bytes, to be filled in and committed; it keeps others out until
 * then. NULL: no memory, or nothing can be written; then there is nothing to commit. */
uint8_t *sl_journal_begin(sl_journal *j, size_t n);
/* n bytes of it. False: not written, see above; the log says so once. *upto: what has to be synced
 * for it to be durable. */
bool sl_journal_commit(sl_journal *j, sl_journal_where where, uint32_t type, size_t n,
                       uint64_t *upto);

/* All that was written up to there is on the disk when it returns. Waits for the disk. False: it
 * may not be. */
bool sl_journal_sync(sl_journal *j, uint64_t upto);
/* Of all records so far. */
uint64_t sl_journal_end(sl_journal *j);

/* Between begin and commit: the number of the file that records go to; 0: the one that was opened.
 */
uint32_t sl_journal_file(const sl_journal *j);
/* A new file beside, with nothing in it and that number; records go to it as their writers say. One
 * at a time. */
sl_status sl_journal_renew(sl_journal *j, uint32_t number, sl_err *err) SL_MUST_CHECK;
/* It has all that counts and takes the place of the old one, durably; or (keep false, or an error)
 * it is given up. */
sl_status sl_journal_renewed(sl_journal *j, bool keep, sl_err *err) SL_MUST_CHECK;

bool sl_journal_is_broken(sl_journal *j);
size_t sl_journal_bytes(sl_journal *j); /* of the file */

#endif
