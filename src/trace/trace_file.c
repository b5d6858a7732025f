/* Events of workers to a trace file. */
#include "trace/trace_file.h"

#include "base/mem.h"
#include "trace/trace_links.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define MAX_LANES 64u /* that get a row of their own */

typedef struct writer {
    FILE *f;
    const sl_trace_about *about;
    uint64_t origin_ns;
    bool any;
} writer;

static void put_string(FILE *f, const char *text) {
    fputc('"', f);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(f, "\\%c", *c);
        else if (*c < 0x20 || *c >= 0x7F)
            fprintf(f, "\\u%04x", *c); /* bytes of a path, not characters: still valid JSON */
        else
            fputc(*c, f);
    }
    fputc('"', f);
}

/* ---- the head ---- */

static void put_worker(const writer *w, const sl_trace_log *log) {
    FILE *f = w->f;
    uint64_t error = SL_MAX(log->first.error_ns, log->last.error_ns);
    fprintf(f, "{\"id\":%" PRIu32 ",\"role\":\"%s\",\"events\":%" PRIu64 ",\"dropped\":%" PRIu64,
            log->id, log->role, log->n, log->dropped);
    fprintf(f, ",\"same_clock\":%s,\"clock_offset_us\":[%.3f,%.3f],\"clock_error_us\":%.3f",
            log->same_clock ? "true" : "false", (double)log->first.offset_ns / 1e3,
            (double)log->last.offset_ns / 1e3, log->same_clock ? 0.0 : (double)error / 1e3);
    if (log->missing) {
        fputs(",\"missing\":", f);
        put_string(f, log->missing);
    }
    fputc('}', f);
}

static void put_head(const writer *w, const sl_trace_log *logs, uint32_t n, uint64_t unpaired) {
    const sl_trace_about *a = w->about;
    FILE *f = w->f;
    fputs("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"sluice\":", f);
    put_string(f, a->version);
    fputs(",\"model\":", f);
    put_string(f, a->model);
    fprintf(f,
            ",\"schedule\":\"%s\",\"transport\":\"%s\",\"lanes\":%" PRIu32 ",\"layers\":%" PRIu32
            ",\"origin_ns\":%" PRIu64 ",\"messages_without_partner\":%" PRIu64 ",\"workers\":[",
            a->schedule, a->transport, a->lanes, a->layers, w->origin_ns, unpaired);
    for (uint32_t i = 0; i < n; i++) {
        if (i) fputc(',', f);
        put_worker(w, &logs[i]);
    }
    fputs("]},\n\"traceEvents\":[", f);
}

/* ---- events ---- */

static void next_line(writer *w) {
    fputs(w->any ? ",\n" : "\n", w->f);
    w->any = true;
}

static void put_name(writer *w, const char *what, uint32_t pid, uint32_t tid, const char *name) {
    next_line(w);
    fprintf(w->f, "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"%s\",\"args\":{\"name\":\"%s\"}}",
            pid, tid, what, name);
}

static void put_span(writer *w, uint32_t pid, uint32_t tid, const char *category, const char *name,
                     uint64_t begin_ns, uint64_t end_ns) {
    uint64_t ts = begin_ns - w->origin_ns, dur = end_ns > begin_ns ? end_ns - begin_ns : 0;
    next_line(w);
    fprintf(w->f,
            "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"cat\":\"%s\",\"name\":\"%s\",\"ts\":%" PRIu64
            ".%03u,\"dur\":%" PRIu64 ".%03u,\"args\":{",
            pid, tid, category, name, ts / 1000, (unsigned)(ts % 1000), dur / 1000,
            (unsigned)(dur % 1000));
}

static void put_fields(writer *w, const sl_trace_event *e, uint32_t fields) {
    const struct {
        uint32_t bit;
        const char *name;
        uint64_t value;
    } rows[] = {
        {SL_TF_LANE, "lane", e->lane},    {SL_TF_LAYER, "layer", e->layer},
        {SL_TF_CHUNK, "chunk", e->chunk}, {SL_TF_GROUP, "group", e->group},
        {SL_TF_LANES, "lanes", e->group}, {SL_TF_ROUND, "round", e->round},
        {SL_TF_ROWS, "rows", e->rows},    {SL_TF_TOKENS, "tokens", e->tokens},
        {SL_TF_BYTES, "bytes", e->bytes}, {SL_TF_QUEUED, "queued_us", e->queued_us},
    };
    const char *comma = "";
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        if (!(fields & rows[i].bit)) continue;
        fprintf(w->f, "%s\"%s\":%" PRIu64, comma, rows[i].name, rows[i].value);
        comma = ",";
    }
    if ((fields & SL_TF_PEER) && e->peer != SL_TRACE_NO_PEER)
        fprintf(w->f, "%s\"peer\":%u", comma, e->peer);
    if (fields & SL_TF_WHY) fprintf(w->f, "%s\"for\":\"%s\"", comma, sl_trace_why_name(e->why));
    if (e->poll_ns)
        fprintf(w->f, "%s\"poll_us\":%.3f", *comma ? "," : "", (double)e->poll_ns / 1e3);
}

/* Rows by expert, from the EXPERT_ROWS events before an EXPERT event; left out when some of them
 * were overwritten. */
static void put_expert_rows(writer *w, const sl_trace_event *first, uint64_t n, uint32_t rows) {
    uint64_t sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        const char *comma = "";
        for (uint64_t i = 0; i < n; i++) {
            const uint32_t word[] = {first[i].round, first[i].queued_us, first[i].poll_ns,
                                     first[i].rows,  first[i].bytes,     first[i].tokens};
            for (size_t j = 0; j < SL_LEN(word) && word[j] != UINT32_MAX; j++) {
                if (pass == 0) {
                    sum += word[j] & 0xFFFF;
                    continue;
                }
                fprintf(w->f, "%s%u,%u", comma, word[j] >> 16, word[j] & 0xFFFF);
                comma = ",";
            }
        }
        if (pass == 0 && (sum != rows || rows == 0)) return;
        if (pass == 0) fputs(",\"experts\":[", w->f);
    }
    fputc(']', w->f);
}

static void put_names(writer *w, const sl_trace_log *log) {
    bool lane[MAX_LANES] = {false}, device = false;
    char name[64];
    snprintf(name, sizeof name, "worker %u (%s)", log->id, log->role);
    put_name(w, "process_name", log->id, 0, name);
    put_name(w, "thread_name", log->id, 0, "execution");
    for (uint64_t i = 0; i < log->n; i++) {
        const sl_trace_event *e = &log->events[i];
        if (sl_trace_kind_category(e->kind) == SL_TRACE_CAT_LANE)
            lane[SL_MIN(e->lane, MAX_LANES - 1)] = true;
        device |= sl_trace_kind_category(e->kind) == SL_TRACE_CAT_DEVICE;
    }
    if (device) put_name(w, "thread_name", log->id, SL_TRACE_DEVICE_TID, "device");
    for (uint32_t l = 0; l < MAX_LANES; l++) {
        if (!lane[l]) continue;
        snprintf(name, sizeof name, "lane %u", l);
        put_name(w, "thread_name", log->id, 1 + l, name);
    }
}

static void put_log(writer *w, const sl_trace_log *log) {
    uint64_t first_rows = 0, n_rows = 0;
    put_names(w, log);
    for (uint64_t i = 0; i < log->n; i++) {
        const sl_trace_event *e = &log->events[i];
        sl_trace_category category = sl_trace_kind_category(e->kind);
        if (e->kind == SL_TRACE_EXPERT_ROWS) {
            if (n_rows == 0) first_rows = i;
            n_rows++;
            continue;
        }
        if (category == SL_TRACE_CAT_NOTE) continue; /* arrivals are on the links' rows */
        uint32_t tid = category == SL_TRACE_CAT_LANE     ? 1 + SL_MIN(e->lane, MAX_LANES - 1)
                       : category == SL_TRACE_CAT_DEVICE ? SL_TRACE_DEVICE_TID
                                                         : 0;
        put_span(w, log->id, tid, sl_trace_category_name(category), sl_trace_kind_name(e->kind),
                 sl_trace_log_time(log, e->begin_ns), sl_trace_log_time(log, e->end_ns));
        put_fields(w, e, sl_trace_kind_fields(e->kind));
        if (e->kind == SL_TRACE_EXPERT) {
            put_expert_rows(w, log->events + first_rows, n_rows, e->rows);
            n_rows = 0;
        }
        fputs("}}", w->f);
    }
}

static void put_links(writer *w, const sl_trace_hop *hop, size_t n) {
    uint32_t tid = 0;
    if (n) put_name(w, "process_name", SL_TRACE_LINKS_PID, 0, "links");
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || hop[i].src != hop[i - 1].src || hop[i].dst != hop[i - 1].dst) {
            char name[48];
            snprintf(name, sizeof name, "%u -> %u", hop[i].src, hop[i].dst);
            put_name(w, "thread_name", SL_TRACE_LINKS_PID, ++tid, name);
        }
        const char *kind = w->about->message_name(hop[i].send->why);
        put_span(w, SL_TRACE_LINKS_PID, tid, "link", kind ? kind : "?", hop[i].begin_ns,
                 hop[i].end_ns);
        put_fields(w,
                   &(sl_trace_event){.lane = hop[i].send->lane,
                                     .layer = hop[i].send->layer,
                                     .chunk = hop[i].send->chunk,
                                     .round = hop[i].send->round,
                                     .rows = hop[i].send->rows,
                                     .bytes = hop[i].send->bytes},
                   SL_TF_LANE | SL_TF_LAYER | SL_TF_CHUNK | SL_TF_ROUND | SL_TF_ROWS | SL_TF_BYTES);
        fprintf(w->f, ",\"latency_us\":%.3f}}", (double)(hop[i].end_ns - hop[i].sent_ns) / 1e3);
    }
}

static uint64_t earliest(const sl_trace_log *logs, uint32_t n) {
    uint64_t first = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < logs[i].n; j++) {
            const sl_trace_event *e = &logs[i].events[j];
            if (e->kind == SL_TRACE_EXPERT_ROWS) continue;
            first = SL_MIN(first, sl_trace_log_time(&logs[i], e->begin_ns));
        }
    }
    return first == UINT64_MAX ? 0 : first;
}

sl_status sl_trace_file_write(FILE *f, const sl_trace_about *about, const sl_trace_log *logs,
                              uint32_t n_logs, sl_err *err) {
    sl_trace_hop *hops = NULL;
    size_t n_hops = 0;
    uint64_t unpaired = 0;
    sl_status st = sl_trace_hops_find(logs, n_logs, &hops, &n_hops, &unpaired, err);
    if (st != SL_OK) return st;
    writer w = {.f = f, .about = about, .origin_ns = earliest(logs, n_logs)};
    put_head(&w, logs, n_logs, unpaired);
    for (uint32_t i = 0; i < n_logs; i++) put_log(&w, &logs[i]);
    put_links(&w, hops, n_hops);
    fputs("\n]}\n", f);
    sl_free(hops);
    if (fflush(f) != 0 || ferror(f))
        return sl_fail(err, SL_ERR_IO, "trace file: %s", strerror(errno));
    return SL_OK;
}

/* A ring's events in one piece, oldest first; NULL: no memory. Owned by the caller. */
static sl_trace_event *unrolled(const sl_trace *ring) {
    const uint64_t n = sl_trace_count(ring);
    sl_trace_event *e = sl_alloc(n, sizeof *e);
    for (uint64_t i = 0; e && i < n; i++) e[i] = *sl_trace_at(ring, i);
    return e;
}

sl_status sl_trace_rings_write(FILE *f, const sl_trace_about *about, sl_trace *const *ring,
                               const char *const *role, uint32_t n, sl_err *err) {
    sl_trace_log *log = sl_alloc(n, sizeof *log);
    sl_trace_event **events = sl_alloc(n, sizeof *events);
    bool room = log && events;
    for (uint32_t i = 0; room && i < n; i++) {
        events[i] = unrolled(ring[i]);
        room = events[i] != NULL;
        log[i] = (sl_trace_log){.id = i,
                                .role = role[i],
                                .events = events[i],
                                .n = sl_trace_count(ring[i]),
                                .dropped = sl_trace_dropped(ring[i]),
                                .same_clock = true};
    }
    sl_status st = room ? sl_trace_file_write(f, about, log, n, err)
                        : sl_fail(err, SL_ERR_NOMEM, "trace of %u workers", n);
    for (uint32_t i = 0; events && i < n; i++) sl_free(events[i]);
    sl_free(events);
    sl_free(log);
    return st;
}
