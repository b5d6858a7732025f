/* Where threads of a gang meet: who comes waits for all. Polls briefly, then sleeps on a futex.
 * Thread: each of the n. */
#ifndef SL_STAGE_GANG_MEET_H
#define SL_STAGE_GANG_MEET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct sl_meeting {
    uint32_t n;
    uint32_t poll_ns;              /* before who waits sleeps */
    _Atomic uint32_t came, number; /* number: of meetings that were; a futex */
    _Atomic uint32_t sleepers;
} sl_meeting;

/* What a thread does while it waits. */
typedef struct sl_meeting_guest {
    uint32_t rank;
    void (*tick)(void *ctx); /* about every tick_us; NULL: nothing */
    void *ctx;
    uint32_t tick_us;
    uint32_t deadline_ms; /* then the process ends and says who was missed; 0: it waits for work */
} sl_meeting_guest;

void sl_meeting_join(sl_meeting *m, const sl_meeting_guest *g);

#endif
