/* What a worker did and when, in memory: a ring of fixed-size events that one thread writes; the
 * oldest are overwritten when it is full, and counted. Written to a file by src/trace.
 * Thread: owner; sl_trace_event_* any. */
#ifndef SL_BASE_TRACE_H
#define SL_BASE_TRACE_H

#include "base/span.h"
#include "base/status.h"

typedef enum sl_trace_category {
    SL_TRACE_CAT_EXECUTE, /* kernels */
    SL_TRACE_CAT_PACK,    /* rows into and out of messages, sums of returned rows */
    SL_TRACE_CAT_SEND,    /* in the fabric's send */
    SL_TRACE_CAT_POLL,    /* in the fabric's progress, and handling what came */
    SL_TRACE_CAT_WAIT,    /* nothing to do, work of this worker is elsewhere */
    SL_TRACE_CAT_IDLE,    /* nothing to do, no work anywhere */
    SL_TRACE_CAT_THREAD_COUNT,
    SL_TRACE_CAT_LANE = SL_TRACE_CAT_THREAD_COUNT,
    SL_TRACE_CAT_DEVICE, /* of a device beside the thread, as a GPU: when what it was given ran */
    SL_TRACE_CAT_NOTE,
    SL_TRACE_CAT_COUNT
} sl_trace_category;

/* Fields of an event that count for its kind. */
#define SL_TF_LANE   0x001u
#define SL_TF_LAYER  0x002u
#define SL_TF_CHUNK  0x004u
#define SL_TF_GROUP  0x008u
#define SL_TF_ROWS   0x010u
#define SL_TF_BYTES  0x020u
#define SL_TF_PEER   0x040u
#define SL_TF_TOKENS 0x080u
#define SL_TF_ROUND  0x100u
#define SL_TF_QUEUED 0x200u
#define SL_TF_WHY    0x400u
#define SL_TF_LANES  0x800u /* in `group` */

typedef enum sl_trace_kind {
#define SL_TRACE_KIND(id, name, category, fields) SL_TRACE_##id,
#include "base/trace.def"
#undef SL_TRACE_KIND
    SL_TRACE_KIND_COUNT
} sl_trace_kind;

/* What a worker waits for. */
typedef enum sl_trace_why {
    SL_TRACE_WHY_NONE,
    SL_TRACE_WHY_EXPERTS,  /* replies of (lane, layer) */
    SL_TRACE_WHY_ROUND,    /* a lane's next round to open */
    SL_TRACE_WHY_MEMBERS,  /* (lane, layer) lacks rows of some attention workers */
    SL_TRACE_WHY_DISPATCH, /* rows of (lane, layer) */
    /* CHOICE: order of shared experts, what chunks are (sched/resolve.h); `group` lanes are open,
     * and steps of up to `rows` rows, if that is not 0, go into `chunk` chunks */
    SL_TRACE_WHY_ASAS_TOKENS,
    SL_TRACE_WHY_ASAS_EXPERTS,
    SL_TRACE_WHY_AASS_TOKENS,
    SL_TRACE_WHY_AASS_EXPERTS,
    SL_TRACE_WHY_COUNT
} sl_trace_why;

/* Times in ns of CLOCK_MONOTONIC. Counts that do not fit saturate (sl_trace_u16). */
typedef struct sl_trace_event {
    uint64_t begin_ns, end_ns;
    uint32_t round;     /* low bits */
    uint32_t queued_us; /* of the task's oldest rows, until it began */
    uint32_t poll_ns;   /* of this span: the fabric's progress between chunks of a kernel */
    uint32_t rows, bytes, tokens;
    uint16_t layer; /* block of the model, not index among MoE blocks */
    uint16_t lane, chunk, group, peer;
    uint8_t kind; /* sl_trace_kind */
    uint8_t why;  /* WAIT, CHOICE: sl_trace_why; SEND, RECV: kind of message */
} sl_trace_event;

#define SL_TRACE_MAX_NS      (1ull << 61)
#define SL_TRACE_NO_PEER     0xFFFFu /* the coordinator */
#define SL_TRACE_EVENT_BYTES 52u     /* encoded */

/* EXPERT_ROWS, before the EXPERT event whose rows it splits: pairs (expert, rows) in the words from
 * `round` to `tokens`, expert in the upper half; an unused word is UINT32_MAX. */
#define SL_TRACE_ROWS_PER_EVENT 6u

const char *sl_trace_kind_name(uint32_t kind); /* NULL: none of ours */
sl_trace_category sl_trace_kind_category(uint32_t kind);
uint32_t sl_trace_kind_fields(uint32_t kind);
const char *sl_trace_category_name(uint32_t category);
const char *sl_trace_why_name(uint32_t why);

static inline uint16_t sl_trace_u16(uint64_t v) {
    return v > UINT16_MAX ? UINT16_MAX : (uint16_t)v;
}

void sl_trace_event_encode(const sl_trace_event *e, uint8_t out[SL_TRACE_EVENT_BYTES]);
/* Refuses unknown kinds and reasons, times from SL_TRACE_MAX_NS on, an end before the beginning. */
sl_status sl_trace_event_decode(sl_span in, sl_trace_event *out, sl_err *err) SL_MUST_CHECK;

/* ---- the ring ---- */

#define SL_TRACE_EVENTS     (1u << 20) /* kept by default */
#define SL_TRACE_MAX_EVENTS (1u << 26)

typedef struct sl_trace sl_trace;

/* Reserves address space for max_events; memory is touched as events come. */
sl_status sl_trace_create(uint64_t max_events, sl_trace **out, sl_err *err) SL_MUST_CHECK;
void sl_trace_free(sl_trace *t); /* NULL-safe */
/* No-op when t is NULL or stopped. */
void sl_trace_add(sl_trace *t, const sl_trace_event *e);
/* Adds EXPERT_ROWS events for n groups: rows of group i are first[i+1] - first[i]. */
void sl_trace_add_rows(sl_trace *t, const uint32_t *expert, const uint32_t *first, uint32_t n);
/* From now on nothing is added. */
void sl_trace_stop(sl_trace *t);
bool sl_trace_records(const sl_trace *t);     /* false for NULL */
uint64_t sl_trace_count(const sl_trace *t);   /* events that can be read */
uint64_t sl_trace_dropped(const sl_trace *t); /* overwritten */
/* The i-th oldest, i < count; borrowed until the next add. */
const sl_trace_event *sl_trace_at(const sl_trace *t, uint64_t i);

#endif
