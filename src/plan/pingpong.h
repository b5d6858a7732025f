/* The law of the ping-pong pipeline (MegaScale-Infer 4.1): what m micro-batches that go round
 * attention -> link -> experts -> link back cost a layer, a token and a pass.
 *
 *   C = Ta + Te + 2 Tc, Tb = max(Ta, Te, Tc), P = max(m Tb, C)
 *   period of a layer for all m: P     time per output token: L P
 *   first pass from cold:        C + (L - 1) P + (m - 1) Tb
 *
 * Exact for stations that take one micro-batch at a time in order, held against discrete events in
 * tests/unit/test_plan_pingpong.c. The published forms (their Eq. 3 to 5) are beside it.
 * Pure. Thread: any. */
#ifndef SL_PLAN_PINGPONG_H
#define SL_PLAN_PINGPONG_H

#include <stdbool.h>
#include <stdint.h>

typedef enum sl_pingpong_links {
    SL_PINGPONG_DUPLEX,   /* each direction carries one micro-batch at a time */
    SL_PINGPONG_PARALLEL, /* transfers of different micro-batches do not share anything */
    SL_PINGPONG_HALF,     /* both directions share one link: the law is a lower bound */
} sl_pingpong_links;

/* Times of one micro-batch in one layer; any unit, the same for all. */
typedef struct sl_pingpong {
    double attn, expert;
    double link; /* one direction */
    uint32_t lanes, layers;
    sl_pingpong_links links;
} sl_pingpong;

typedef struct sl_pingpong_times {
    double period; /* one layer, all micro-batches */
    double token;  /* between two output tokens of a sequence: layers * period */
    double cold;   /* makespan of the first pass */
    bool exact;    /* false: no schedule is faster, but real ones may be slower (half duplex) */
} sl_pingpong_times;

sl_pingpong_times sl_pingpong_law(const sl_pingpong *p);

/* What the paper prints, for comparison. `total` (Eq. 5) holds when eq2 and m Tf >= C do; outside
 * it is too low. */
typedef struct sl_pingpong_published {
    bool eq2;         /* Tc < Tf */
    bool eq3;         /* m Tf >= 2 (Tf + Tc): sufficient; exact is m Tf >= C */
    double iter_low;  /* Eq. 4 */
    double iter_high; /* Eq. 4: m Tf L */
    double total;     /* Eq. 5 */
    uint32_t lanes;   /* smallest m that satisfies Eq. 3 */
} sl_pingpong_published;

sl_pingpong_published sl_pingpong_as_published(const sl_pingpong *p);

#endif
