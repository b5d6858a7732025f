/* One line on a terminal about work that takes long: what, how much of it, how fast, and how long
 * it will still take.
 *
 * Libraries that take long report through sl_progress_fn; a verb hands them sl_progress_set and its
 * line. Nothing is written where stderr is no terminal. Thread: owner. */
#ifndef SL_BASE_PROGRESS_H
#define SL_BASE_PROGRESS_H

#include "base/status.h"

#include <stdbool.h>

/* `done` of `total` units of work are there. Cheap: may be called for every piece. */
typedef void (*sl_progress_fn)(void *ctx, uint64_t done, uint64_t total);

typedef enum sl_progress_unit {
    SL_PROGRESS_BYTES,
    SL_PROGRESS_STEPS, /* whatever the work counts */
} sl_progress_unit;

/* The caller's memory; fields are the module's. */
typedef struct sl_progress {
    bool shown, drawn;
    sl_progress_unit unit;
    char what[96];
    char note[96]; /* replaces figures while it is not empty */
    uint64_t done, total, last_done;
    uint64_t begun_ns, last_ns; /* 0: nothing was reported yet */
    double rate;                /* units a second, smoothed over some seconds */
} sl_progress;

/* `what` is copied, as "fetch" or a file's name. wanted false: never shows anything. */
void sl_progress_begin(sl_progress *p, const char *what, sl_progress_unit unit, bool wanted);
/* The part of the work that is done now has this name. NULL-safe. */
void sl_progress_name(sl_progress *p, const char *what);
/* An sl_progress_fn; ctx is the sl_progress, or NULL. */
void sl_progress_set(void *ctx, uint64_t done, uint64_t total);
/* Text instead of figures, as "waits for another process", until it is "". NULL-safe. */
void sl_progress_say(sl_progress *p, const char *note);
/* Erases the line. NULL-safe, and may be called again. */
void sl_progress_end(sl_progress *p);
/* The line's text without colours or line ends: what a status line shows, too. */
void sl_progress_text(const sl_progress *p, char *out, size_t cap);

#endif
