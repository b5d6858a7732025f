/* Names of what is traced, events as bytes, and the ring that a worker writes into. */
#include "base/trace.h"
#include "base/mem.h"

#include <sys/mman.h>

static const struct kind_row {
    const char *name;
    sl_trace_category category;
    uint32_t fields;
} kinds[] = {
#define SL_TRACE_KIND(id, name, category, fields) {name, SL_TRACE_CAT_##category, fields},
#include "base/trace.def"
#undef SL_TRACE_KIND
};

const char *sl_trace_kind_name(uint32_t kind) {
    return kind < SL_TRACE_KIND_COUNT ? kinds[kind].name : NULL;
}

sl_trace_category sl_trace_kind_category(uint32_t kind) {
    return kind < SL_TRACE_KIND_COUNT ? kinds[kind].category : SL_TRACE_CAT_COUNT;
}

uint32_t sl_trace_kind_fields(uint32_t kind) {
    return kind < SL_TRACE_KIND_COUNT ? kinds[kind].fields : 0;
}

const char *sl_trace_category_name(uint32_t category) {
    static const char *const names[] = {"execute", "pack", "send",   "poll", "wait",
                                        "idle",    "lane", "device", "note"};
    _Static_assert(SL_LEN(names) == SL_TRACE_CAT_COUNT, "one name per category");
    return category < SL_TRACE_CAT_COUNT ? names[category] : NULL;
}

const char *sl_trace_why_name(uint32_t why) {
    static const char *const names[] = {"",
                                        "experts",
                                        "round",
                                        "members",
                                        "dispatch",
                                        "asas, by tokens",
                                        "asas, by experts",
                                        "aass, by tokens",
                                        "aass, by experts"};
    _Static_assert(SL_LEN(names) == SL_TRACE_WHY_COUNT, "one name per reason");
    return why < SL_TRACE_WHY_COUNT ? names[why] : NULL;
}

void sl_trace_event_encode(const sl_trace_event *e, uint8_t out[SL_TRACE_EVENT_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_TRACE_EVENT_BYTES);
    sl_wr_u64(&w, e->begin_ns);
    sl_wr_u64(&w, e->end_ns);
    sl_wr_u32(&w, e->round);
    sl_wr_u32(&w, e->queued_us);
    sl_wr_u32(&w, e->poll_ns);
    sl_wr_u32(&w, e->rows);
    sl_wr_u32(&w, e->bytes);
    sl_wr_u32(&w, e->tokens);
    sl_wr_u16(&w, e->layer);
    sl_wr_u16(&w, e->lane);
    sl_wr_u16(&w, e->chunk);
    sl_wr_u16(&w, e->group);
    sl_wr_u16(&w, e->peer);
    sl_wr_u8(&w, e->kind);
    sl_wr_u8(&w, e->why);
    SL_ASSERT(w.ok && w.len == SL_TRACE_EVENT_BYTES);
}

sl_status sl_trace_event_decode(sl_span in, sl_trace_event *out, sl_err *err) {
    sl_cur c = sl_cur_of(in);
    sl_trace_event e = {.begin_ns = sl_cur_u64(&c)};
    e.end_ns = sl_cur_u64(&c);
    e.round = sl_cur_u32(&c);
    e.queued_us = sl_cur_u32(&c);
    e.poll_ns = sl_cur_u32(&c);
    e.rows = sl_cur_u32(&c);
    e.bytes = sl_cur_u32(&c);
    e.tokens = sl_cur_u32(&c);
    e.layer = sl_cur_u16(&c);
    e.lane = sl_cur_u16(&c);
    e.chunk = sl_cur_u16(&c);
    e.group = sl_cur_u16(&c);
    e.peer = sl_cur_u16(&c);
    e.kind = sl_cur_u8(&c);
    e.why = sl_cur_u8(&c);
    if (!c.ok || sl_cur_left(&c) || e.kind >= SL_TRACE_KIND_COUNT || e.end_ns < e.begin_ns ||
        e.end_ns >= SL_TRACE_MAX_NS ||
        ((e.kind == SL_TRACE_WAIT || e.kind == SL_TRACE_CHOICE) && e.why >= SL_TRACE_WHY_COUNT))
        return sl_fail(err, SL_ERR_PROTOCOL,
                       "trace event of %zu bytes, kind %u, from %llu to %llu ns", in.len, e.kind,
                       (unsigned long long)e.begin_ns, (unsigned long long)e.end_ns);
    *out = e;
    return SL_OK;
}

/* ---- the ring ---- */

struct sl_trace {
    sl_trace_event *ring;
    size_t ring_bytes;
    uint64_t cap, added;
    bool stopped;
};

sl_status sl_trace_create(uint64_t max_events, sl_trace **out, sl_err *err) {
    size_t bytes;
    if (max_events == 0 || __builtin_mul_overflow(max_events, sizeof(sl_trace_event), &bytes))
        return sl_fail(err, SL_ERR_ARG, "trace of %llu events", (unsigned long long)max_events);
    sl_trace *t = sl_alloc(1, sizeof *t);
    if (!t) return sl_fail(err, SL_ERR_NOMEM, "trace");
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED) {
        sl_free(t);
        return sl_fail(err, SL_ERR_NOMEM, "trace of %llu events, %zu bytes",
                       (unsigned long long)max_events, bytes);
    }
    t->ring = p;
    t->ring_bytes = bytes;
    t->cap = max_events;
    *out = t;
    return SL_OK;
}

void sl_trace_free(sl_trace *t) {
    if (!t) return;
    munmap(t->ring, t->ring_bytes);
    sl_free(t);
}

void sl_trace_add(sl_trace *t, const sl_trace_event *e) {
    if (t && !t->stopped) t->ring[t->added++ % t->cap] = *e;
}

void sl_trace_add_rows(sl_trace *t, const uint32_t *expert, const uint32_t *first, uint32_t n) {
    if (!t) return;
    for (uint32_t i = 0; i < n; i += SL_TRACE_ROWS_PER_EVENT) {
        uint32_t word[SL_TRACE_ROWS_PER_EVENT];
        for (uint32_t j = 0; j < SL_TRACE_ROWS_PER_EVENT; j++) {
            word[j] = i + j < n ? (uint32_t)sl_trace_u16(expert[i + j]) << 16 |
                                      sl_trace_u16(first[i + j + 1] - first[i + j])
                                : UINT32_MAX;
        }
        const sl_trace_event e = {.kind = SL_TRACE_EXPERT_ROWS,
                                  .round = word[0],
                                  .queued_us = word[1],
                                  .poll_ns = word[2],
                                  .rows = word[3],
                                  .bytes = word[4],
                                  .tokens = word[5]};
        sl_trace_add(t, &e);
    }
}

void sl_trace_stop(sl_trace *t) {
    if (t) t->stopped = true;
}

bool sl_trace_records(const sl_trace *t) {
    return t && !t->stopped;
}

uint64_t sl_trace_count(const sl_trace *t) {
    return t ? SL_MIN(t->added, t->cap) : 0;
}

uint64_t sl_trace_dropped(const sl_trace *t) {
    return t && t->added > t->cap ? t->added - t->cap : 0;
}

const sl_trace_event *sl_trace_at(const sl_trace *t, uint64_t i) {
    uint64_t oldest = sl_trace_dropped(t);
    return &t->ring[(oldest + i) % t->cap];
}
