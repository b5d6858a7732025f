/* What is known of every schedule, from one table (schedules.def), and the names of what schedules
 * are made of. Pure. Thread: any. */
#ifndef SL_SPEC_SCHEDULES_H
#define SL_SPEC_SCHEDULES_H

#include "base/status.h"
#include "spec/plan.h"

/* How attention and experts lie on workers. */
typedef enum sl_sides { SL_SIDES_ANY, SL_SIDES_TOGETHER, SL_SIDES_APART } sl_sides;

/* What is chosen anew while it runs, by what is measured (sched/resolve.h): lanes, chunks and the
 * order, or groups of experts. */
typedef enum sl_anew { SL_ANEW_NOTHING, SL_ANEW_LANES, SL_ANEW_GROUPS } sl_anew;

typedef struct sl_schedule_traits {
    const char *name;
    sl_sides sides;
    bool barriers;          /* else queues per layer and expert */
    uint32_t lanes, chunks; /* unless the plan says otherwise; 1: there is never more than one */
    sl_chunking chunking;
    sl_anew anew;
} sl_schedule_traits;

const sl_schedule_traits *sl_schedule_traits_of(sl_schedule s);
static inline const char *sl_schedule_name(sl_schedule s) {
    return sl_schedule_traits_of(s)->name;
}

/* SL_ERR_ARG names those there are, SL_ERR_UNSUPPORTED: it can be planned only. */
sl_status sl_schedule_parse(const char *name, sl_schedule *out, sl_err *err) SL_MUST_CHECK;

/* In the order of their enums; [..._COUNT]. */
extern const char *const sl_schedule_names[SL_SCHED_COUNT],
    *const sl_chunking_names[SL_CHUNKING_COUNT], *const sl_order_names[SL_ORDER_COUNT],
                                                     *const sl_policy_names[SL_POLICY_COUNT];

/* The place of `name` in names[n]; the error calls it `what` and lists what there is. */
sl_status sl_name_parse(const char *what, const char *const *names, size_t n, const char *name,
                        size_t *out, sl_err *err) SL_MUST_CHECK;

#endif
