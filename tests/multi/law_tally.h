/* What a run of the law has drawn and run: its deployments by schedule and by what their workers
 * are, as a table at the end. Included once, by test_law. Thread: one. */
#ifndef SL_TESTS_LAW_TALLY_H
#define SL_TESTS_LAW_TALLY_H

#include "format/plan_json.h"
#include "spec/plan.h"

#include <stdio.h>

/* id, heading. One worker of a deployment that is a gang makes it one of gangs. */
#define LAW_RANKS(X)                                                                               \
    X(NONE, "no ranks")                                                                            \
    X(TP_THREADS, "TP threads")                                                                    \
    X(TP_PROCESSES, "TP processes")                                                                \
    X(TP_MACHINES, "TP machines")                                                                  \
    X(PP_THREADS, "PP threads")                                                                    \
    X(PP_MACHINES, "PP machines")                                                                  \
    X(PP_GANGS, "PP of gangs")

typedef enum law_ranks {
#define LAW_RANK(id, heading) LAW_##id,
    LAW_RANKS(LAW_RANK) LAW_RANKS_N
#undef LAW_RANK
} law_ranks;

static uint32_t law_tally[SL_SCHED_COUNT][LAW_RANKS_N];

static law_ranks law_ranks_of(const sl_plan *p) {
    const bool gangs = sl_plan_has_gangs(p), far = p->rank_kind == SL_RANKS_MACHINES;
    if (sl_plan_pipeline(p) > 1)
        return gangs ? LAW_PP_GANGS : far ? LAW_PP_MACHINES : LAW_PP_THREADS;
    if (!gangs) return LAW_NONE;
    if (far) return LAW_TP_MACHINES;
    return p->rank_kind == SL_RANKS_THREADS ? LAW_TP_THREADS : LAW_TP_PROCESSES;
}

/* A row of the table, with its sum. */
static void law_tally_row(const char *name, const uint32_t count[LAW_RANKS_N]) {
    uint32_t sum = 0;
    printf("%-10s", name);
    for (int r = 0; r < LAW_RANKS_N; sum += count[r++]) printf(" %12u", count[r]);
    printf(" %8u\n", sum);
}

static void law_tally_print(void) {
    static const char *const headings[] = {
#define LAW_RANK(id, heading) heading,
        LAW_RANKS(LAW_RANK)
#undef LAW_RANK
    };
    uint32_t all[LAW_RANKS_N] = {0};
    printf("%-10s", "ran");
    for (int r = 0; r < LAW_RANKS_N; r++) printf(" %12s", headings[r]);
    printf(" %8s\n", "all");
    for (int s = 0; s < SL_SCHED_COUNT; s++) {
        law_tally_row(sl_schedule_name((sl_schedule)s), law_tally[s]);
        for (int r = 0; r < LAW_RANKS_N; r++) all[r] += law_tally[s][r];
    }
    law_tally_row("all", all);
}

#endif
