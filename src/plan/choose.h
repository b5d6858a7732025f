/* Which schedule a deployment should run: every schedule that its roles allow, its period a MoE
 * block predicted by the closed forms from what stages and the link cost, at two points: all
 * requests decode, and all rows of a step are a prompt's. Pure. Thread: any. */
#ifndef SL_PLAN_CHOOSE_H
#define SL_PLAN_CHOOSE_H

#include "base/status.h"
#include "spec/costs.h"
#include "spec/model.h"
#include "spec/plan.h"

#define SL_CHOOSE_MAX 64u
/* A schedule is preferred to a simpler one only if it is so much faster: measurements are noisy. */
#define SL_CHOOSE_MARGIN 1.08

typedef struct sl_choose_load {
    uint32_t attention_workers, expert_workers;
    bool colocated; /* they are the same ones */
    uint32_t n_experts, top_k;
    bool shared; /* blocks have shared experts */
    /* rows of one attention worker in all its lanes, and keys that a decoding row attends to */
    uint32_t decode_rows, prefill_rows, keys;
    uint32_t max_lanes;
    double row_bytes; /* of a row on the wire */
    bool exact;       /* a row comes back once for each of its experts */
    bool regroup;     /* schedules that sum a row's experts in other groups may be chosen */
    double skew;      /* rows of a block's busiest worker over the mean, mean of all blocks; >= 1 */
    double skew_total; /* the same of all blocks together: what is left without a barrier */
    /* Cores that some workers share, so many with attention and with experts; 0: each has its own
     * device. */
    double cores;
    uint32_t core_attention, core_experts;
    uint32_t threads; /* of one worker */
    /* Ports of a worker over which its ranks send stripes of messages of so many bytes: 1 but under
     * hybrid, which is a candidate where there are more. */
    uint32_t rails;
    double rail_bytes;
    /* Of gangs whose ranks are on machines: ranks beside the first, to which this one carries rows
     * of stream_bytes that a call reads, and which send it their columns of results; but for what
     * goes in stripes, which ranks send and get themselves. 0: ranks see rows where they lie. */
    uint32_t beside_attention, beside_expert;
    double stream_bytes;
} sl_choose_load;

typedef struct sl_choice {
    sl_schedule schedule;
    uint32_t lanes, chunks;
    sl_chunking chunking;
    sl_order order;
    double decode_us, prefill_us; /* period a block for all rows of the point */
    double score;                 /* mean of both over the fastest's: 1 is best at both */
} sl_choice;

/* What one block costs the base schedule (one lane, one chunk) at a point: for explanations. */
typedef struct sl_choose_times {
    double attention_us, shared_us, out_us, expert_us, back_us;
} sl_choose_times;
sl_choose_times sl_choose_times_at(const sl_costs *c, const sl_choose_load *l, bool prefill);

/* Who works on how many rows in a plan whose lanes are full, on `requests` requests at once (0: as
 * many as it has room for), with row_bytes a row on the wire; skew is 1, and a worker has one port,
 * or, where it is a gang of machines that hybrid can run, one for each rank. */
void sl_choose_describe(const sl_plan *p, const sl_model_spec *m, size_t row_bytes,
                        uint32_t requests, sl_choose_load *out);

/* x->decode_us and x->prefill_us: periods of that schedule. */
void sl_choose_predict(const sl_costs *c, const sl_choose_load *l, sl_choice *x);

/* How many chunks, of 1 to x->chunks, the rows of one lane's step are best cut into when x runs
 * (findep, by tokens): `rows` that attend to `keys` keys each. Ties: the fewest. */
uint32_t sl_choose_chunks(const sl_costs *c, const sl_choose_load *l, const sl_choice *x,
                          double rows, double keys);

/* All candidates, simplest first, and the index of the one to run: the simplest within
 * SL_CHOOSE_MARGIN of the best score. aep is a candidate only when skew is above 1, as without skew
 * the barrier wins. SL_ERR_ARG: a count is 0. */
sl_status sl_choose(const sl_costs *c, const sl_choose_load *l, sl_choice out[SL_CHOOSE_MAX],
                    uint32_t *n, uint32_t *best, sl_err *err) SL_MUST_CHECK;

#endif
