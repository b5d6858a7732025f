/* The table of schedules, and the names of what they are made of. */
#include "spec/schedules.h"

#include <stdio.h>
#include <string.h>

#define BARRIERS true
#define QUEUES   false

#define SL_PLANNED(id, name, why)
#define SL_SCHEDULE(id, name, where, how, lanes, chunks, by, anew)                                 \
    [SL_SCHED_##id] = {name, SL_SIDES_##where, how, lanes, chunks, SL_CHUNK_##by, SL_ANEW_##anew},
static const sl_schedule_traits traits[SL_SCHED_COUNT] = {
#include "spec/schedules.def"
};
#undef SL_SCHEDULE

#define SL_SCHEDULE(id, name, where, how, lanes, chunks, chunking, anew) name,
const char *const sl_schedule_names[SL_SCHED_COUNT] = {
#include "spec/schedules.def"
};
#undef SL_SCHEDULE
#undef SL_PLANNED

const char *const sl_chunking_names[SL_CHUNKING_COUNT] = {"tokens", "experts"};
const char *const sl_order_names[SL_ORDER_COUNT] = {"asas", "aass"};
const char *const sl_policy_names[SL_POLICY_COUNT] = {"defrag", "mtfs", "flfs", "rmf"};

const sl_schedule_traits *sl_schedule_traits_of(sl_schedule s) {
    return &traits[s];
}

sl_status sl_name_parse(const char *what, const char *const *names, size_t n, const char *name,
                        size_t *out, sl_err *err) {
    char all[120] = "";
    for (*out = 0; *out < n; ++*out) {
        if (strcmp(name, names[*out]) == 0) return SL_OK;
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *out ? ", " : "",
                 names[*out]);
    }
    return sl_fail(err, SL_ERR_ARG, "%s '%s' is unknown: %s", what, name, all);
}

sl_status sl_schedule_parse(const char *name, sl_schedule *out, sl_err *err) {
    static const struct {
        const char *name, *why;
    } planned[] = {
#define SL_SCHEDULE(id, name, where, how, lanes, chunks, chunking, anew)
#define SL_PLANNED(id, name, why) {name, why},
#include "spec/schedules.def"
#undef SL_SCHEDULE
#undef SL_PLANNED
    };
    size_t i;
    for (i = 0; i < SL_LEN(planned); i++) {
        if (strcmp(name, planned[i].name) == 0)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "schedule '%s' %s", name, planned[i].why);
    }
    sl_status st = sl_name_parse("schedule", sl_schedule_names, SL_SCHED_COUNT, name, &i, err);
    if (st == SL_OK) *out = (sl_schedule)i;
    return st;
}
