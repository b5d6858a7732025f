/* The one way in which a file is written: whole or not at all.
 *
 * Where the path names a regular file or nothing, bytes go to a new file beside it, which takes its
 * name when all are there; a failure leaves what was there. Behind a symbolic link the file that it
 * points to is replaced, and the link stays. Devices and pipes are written as they are; "-" is
 * stdout. Folders, sockets, links to nothing and files that may not be written are refused by name.
 * Thread: owner. */
#ifndef SL_BASE_OUTPUT_H
#define SL_BASE_OUTPUT_H

#include "base/status.h"

#include <stdio.h>

typedef struct sl_output {
    FILE *f;      /* to write to; its errors are seen by sl_output_close */
    char *path;   /* as it was given, for messages */
    char *target; /* what `part` is renamed to; NULL with `part`: written as it is */
    char *part;
} sl_output;

/* SL_ERR_ARG, SL_ERR_IO, SL_ERR_NOMEM. On failure there is nothing to close. */
sl_status sl_output_open(const char *path, sl_output *out, sl_err *err) SL_MUST_CHECK;

/* The same for what only its owner may read: a file of mode 0600 from its first byte on, in place
 * of a regular file, or of nothing. SL_ERR_ARG beside the others: a link is there, or what is no
 * file, or another user's. */
sl_status sl_output_open_private(const char *path, sl_output *out, sl_err *err) SL_MUST_CHECK;

/* All bytes were written: makes them durable and gives the file its name. SL_ERR_IO when any write
 * since the opening failed: then the target is as it was. `out` is closed either way. */
sl_status sl_output_close(sl_output *out, sl_err *err) SL_MUST_CHECK;

/* Gives up what was written; the target is as it was. Of a closed or zeroed one: nothing. */
void sl_output_abandon(sl_output *out);

/* sl_output_close where `st` is SL_OK, otherwise sl_output_abandon and `st`. */
sl_status sl_output_end(sl_output *out, sl_status st, sl_err *err) SL_MUST_CHECK;

#endif
