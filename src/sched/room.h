/* Whether machines have the memory for what a change of plans gives their workers. One rule for all
 * changes on purpose: experts that move by their load (sched/adapt.h), workers that leave or come
 * (sched/drain.h). A change that makes a loss good is not held up by it, and said to lack memory.
 *
 * Experts that a worker gets stand beside those that it has until the change is over, so nothing is
 * taken off. What all workers of a machine get comes out of what is left there: the least that any
 * of them says. A device with memory of its own, as a GPU, is a machine of this kind. KV of
 * requests that go on elsewhere goes to whoever of several workers, so to what their machines have
 * left after that, together.
 *
 * Pure; nothing allocates. Thread: any. */
#ifndef SL_SCHED_ROOM_H
#define SL_SCHED_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_ROOM_NONE UINT32_MAX

/* What there is. Borrowed. */
typedef struct sl_room {
    uint32_t n_workers;      /* of the plan */
    const uint64_t *free;    /* [n_workers] bytes that its machine has left; UINT64_MAX: unknown */
    const uint64_t *machine; /* [n_workers] those on one machine share what is free */
    const uint8_t *own; /* [n_workers] that is not a machine's memory, but a device's own. NULL:
                         * nowhere */
} sl_room;

/* What is to be there. Borrowed. */
typedef struct sl_room_need {
    const uint32_t *added; /* [n_workers] experts of one block that each worker gets */
    uint64_t expert_bytes; /* of one of them */
    const uint8_t *takes;  /* [n_workers] may take some of kv_bytes; NULL: there are none */
    uint64_t kv_bytes;
} sl_room_need;

typedef struct sl_room_lack {
    uint32_t worker; /* on the machine that lacks it; SL_ROOM_NONE: all together, of KV */
    uint64_t needs, has;
    bool own; /* of the worker's device */
} sl_room_lack;

/* False: it does not fit, *out says where. */
bool sl_room_has(const sl_room *r, const sl_room_need *n, sl_room_lack *out);
/* What is missing, in words that go on after "...: ". */
void sl_room_say(const sl_room_lack *l, char *out, size_t cap);

#endif
