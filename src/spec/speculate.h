/* Whether requests guess what they say next (sched/draft.h): a fact of the plan, the same for all
 * workers. It decides no bit. */
#ifndef SL_SPEC_SPECULATE_H
#define SL_SPEC_SPECULATE_H

#include <stdbool.h>

/* Rows of a request at most in a step that has guesses of it: devices keep as many to take wrong
 * ones back. The token drawn last, known ones behind it, guesses (sched/batcher.h, sched/draft.h).
 */
#define SL_GUESSED_ROWS 17u

typedef enum sl_speculate {
    SL_SPECULATE_OFF,
    SL_SPECULATE_LOOKUP, /* what followed where the last tokens stood before, where it is worth it
                          */
    SL_SPECULATE_ALWAYS, /* the same, whatever it costs: for measurements and tests */
    SL_SPECULATE_MTP,    /* what the checkpoint's own block predicts, where it is worth it */
    SL_SPECULATE_MTP_ALWAYS,
    SL_SPECULATE_BOTH, /* what followed before or the block, whichever was right more often */
    SL_SPECULATE_BOTH_ALWAYS,
    SL_SPECULATE_COUNT
} sl_speculate;

/* The block that predicts a further token guesses (model/mtp.c). */
static inline bool sl_speculates_by_mtp(sl_speculate s) {
    return s >= SL_SPECULATE_MTP && s <= SL_SPECULATE_BOTH_ALWAYS;
}
/* What followed the last tokens before is looked up. */
static inline bool sl_speculates_by_lookup(sl_speculate s) {
    return s != SL_SPECULATE_OFF && s != SL_SPECULATE_MTP && s != SL_SPECULATE_MTP_ALWAYS;
}
/* Nobody asks what guesses cost. */
static inline bool sl_speculates_always(sl_speculate s) {
    return s == SL_SPECULATE_ALWAYS || s == SL_SPECULATE_MTP_ALWAYS ||
           s == SL_SPECULATE_BOTH_ALWAYS;
}

/* By sl_speculate. */
extern const char *const sl_speculate_names[SL_SPECULATE_COUNT];

#endif
