/* Planted bugs in engine and schedulers, for the test of the tests: compiled in only with
 * SL_MUTATIONS (tests/sim; those of windows: tests/unit/test_net_window.c), where the simulation
 * has to notice each of them. In every other build SL_MUTATION(x) is the constant 0. */
#ifndef SL_BASE_MUTATE_H
#define SL_BASE_MUTATE_H

typedef enum sl_mutation {
    SL_MUTATE_NONE,
    SL_MUTATE_DOUBLE_AGAIN, /* rows that were sent again are added twice */
    SL_MUTATE_LATE_COUNTS,  /* an answer counts although another one has counted */
    SL_MUTATE_BOTH_COUNT,   /* who is done without answers first, and the attempt counts, too */
    SL_MUTATE_HEDGED_ALONE, /* who lets others wait is left out although nobody stands in for it */
    SL_MUTATE_LONELY_STEP,  /* a step is given up where others can stand in for who is lost */
    SL_MUTATE_LOST_ROW,     /* a returned row is skipped now and then */
    SL_MUTATE_DOUBLE_MERGE, /* a returned row is added twice now and then */
    SL_MUTATE_STALE_GENERATION, /* a cancelled request's slot is free before its step ended */
    SL_MUTATE_FORGOTTEN_PAGE,   /* a preempted request gives back one page less than it has */
    SL_MUTATE_SKIPPED_ROW,   /* the first row of a request that continues is not computed again */
    SL_MUTATE_LOST_WAKE,     /* an acknowledgement does not wake a parked lane */
    SL_MUTATE_UNTOLD_DEATH,  /* the sequencer keeps a member's death to itself */
    SL_MUTATE_LOST_SHARED,   /* shared experts are left out when the batch is of 7, 14, ... rows */
    SL_MUTATE_UNAWAITED,     /* a lane goes on before the device is through with it */
    SL_MUTATE_KEPT_STEP,     /* a worker keeps its steps where it is told that somebody is gone */
    SL_MUTATE_OLD_HOSTS,     /* an attention worker that takes a plan sends by the one before */
    SL_MUTATE_HASTY_VERDICT, /* a suspect need not be alone when a worker crashes */
    SL_MUTATE_EARLIER_END,   /* a suspect is blamed for an end that is older than its start */
    SL_MUTATE_SURE_OF_NEXT,  /* a row counts as being in its page before it is computed */
    SL_MUTATE_EARLY_SUCCESSOR, /* a worker is started before the one at its place has ended */
    SL_MUTATE_EARLY_KEY,       /* a page counts as full when half of its last rows are missing */
    SL_MUTATE_EARLY_SHARE,     /* the same for those alone who would begin with it */
    SL_MUTATE_UNCOUNTED_SHARE, /* who shares a page is not one of its holders: others free it */
    SL_MUTATE_HASTY_HAND,      /* pages on their way count as there when a prompt is handed over */
    SL_MUTATE_SILENT_MEND,  /* a link that broke is called again, and nobody misses what it lost */
    SL_MUTATE_LOST_DAMAGED, /* a damaged message is left out, and its connection goes on */
    SL_MUTATE_UNCREDITED_SLOT, /* a slot of a window is written to before it was taken from */
    SL_MUTATE_ANY_GENERATION,  /* whatever lies in a slot is taken for what was announced */
} sl_mutation;

/* By value of sl_mutation, for the command line of the test. */
#define SL_MUTATION_NAMES                                                                          \
    "none", "double_again", "late_counts", "both_count", "hedged_alone", "lonely_step",            \
        "lost_row", "double_merge", "stale_generation", "forgotten_page", "skipped_row",           \
        "lost_wake", "untold_death", "lost_shared", "unawaited", "kept_step", "old_hosts",         \
        "hasty_verdict", "earlier_end", "sure_of_next", "early_successor", "early_key",            \
        "early_share", "uncounted_share", "hasty_hand", "silent_mend", "lost_damaged",             \
        "uncredited_slot", "any_generation"

#ifdef SL_MUTATIONS
extern sl_mutation sl_mutation_on; /* set by the test before anything runs */
#define SL_MUTATION(which) (sl_mutation_on == SL_MUTATE_##which)
#else
#define SL_MUTATION(which) 0
#endif

#endif
