/* Traces: the ring and its codec, what is written is read again, links are paired, figures of a
 * trace made by hand have the values worked out beside it, files that nobody should trust. */
#include "base/mem.h"
#include "base/trace.h"
#include "trace/trace_file.h"
#include "trace/trace_stats.h"
#include "trace/trace_svg.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void ring(void **state) {
    (void)state;
    sl_trace *t = NULL;
    sl_err err;
    assert_int_equal(sl_trace_create(0, &t, &err), SL_ERR_ARG);
    assert_int_equal(sl_trace_create(UINT64_MAX, &t, &err), SL_ERR_ARG);
    sl_trace_add(NULL, &(sl_trace_event){0});
    assert_int_equal(sl_trace_count(NULL) + sl_trace_dropped(NULL), 0);
    sl_trace_free(NULL);
    assert_int_equal(sl_trace_create(4, &t, &err), SL_OK);
    for (uint64_t i = 1; i <= 3; i++) sl_trace_add(t, &(sl_trace_event){.begin_ns = i});
    assert_int_equal(sl_trace_count(t), 3);
    assert_int_equal(sl_trace_dropped(t), 0);
    for (uint64_t i = 4; i <= 9; i++) sl_trace_add(t, &(sl_trace_event){.begin_ns = i});
    assert_int_equal(sl_trace_count(t), 4);
    assert_int_equal(sl_trace_dropped(t), 5);
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(sl_trace_at(t, i)->begin_ns, 6 + i);
    sl_trace_stop(t);
    sl_trace_add(t, &(sl_trace_event){.begin_ns = 10});
    assert_int_equal(sl_trace_at(t, 3)->begin_ns, 9);
    sl_trace_free(t);
}

static void codec(void **state) {
    (void)state;
    uint8_t bytes[SL_TRACE_EVENT_BYTES];
    sl_err err;
    const sl_trace_event e = {.begin_ns = 5,
                              .end_ns = 77,
                              .round = 3,
                              .queued_us = 4,
                              .poll_ns = 6,
                              .rows = 7,
                              .bytes = 8,
                              .tokens = 9,
                              .layer = 10,
                              .lane = 11,
                              .chunk = 12,
                              .group = 13,
                              .peer = 14,
                              .kind = SL_TRACE_WAIT,
                              .why = SL_TRACE_WHY_MEMBERS};
    sl_trace_event got;
    sl_trace_event_encode(&e, bytes);
    sl_span span = {bytes, sizeof bytes};
    assert_int_equal(sl_trace_event_decode(span, &got, &err), SL_OK);
    assert_int_equal(got.begin_ns, 5);
    assert_int_equal(got.end_ns, 77);
    assert_int_equal(got.peer, 14);
    assert_int_equal(got.why, SL_TRACE_WHY_MEMBERS);
    assert_int_equal(got.tokens, 9);
    span.len--;
    assert_int_equal(sl_trace_event_decode(span, &got, &err), SL_ERR_PROTOCOL);
    span.len++;
    const struct {
        size_t at;
        uint8_t value;
    } bad[] = {{SL_TRACE_EVENT_BYTES - 1, SL_TRACE_WHY_COUNT},
               {SL_TRACE_EVENT_BYTES - 2, SL_TRACE_KIND_COUNT},
               {15, 0x20}, /* end past the limit */
               {7, 1}};    /* begin after end */
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_trace_event_encode(&e, bytes);
        bytes[bad[i].at] = bad[i].value;
        assert_int_equal(sl_trace_event_decode(span, &got, &err), SL_ERR_PROTOCOL);
    }
}

/* ---- written and read ---- */

#define MS 1000000ull

static const char *kind_name(uint16_t kind) {
    return kind == 32 ? "DISPATCH" : "RETURN";
}

static sl_trace_event span(uint8_t kind, double from_ms, double to_ms, uint16_t layer,
                           uint32_t rows) {
    return (sl_trace_event){.kind = kind,
                            .begin_ns = 1000 * MS + (uint64_t)(from_ms * MS),
                            .end_ns = 1000 * MS + (uint64_t)(to_ms * MS),
                            .layer = layer,
                            .rows = rows};
}

static sl_trace_event on_link(uint8_t kind, uint16_t peer, double ms, uint8_t message,
                              uint32_t bytes) {
    sl_trace_event e = span(kind, ms, kind == SL_TRACE_SEND ? ms + 0.5 : ms, 1, 6);
    e.peer = peer;
    e.why = message;
    e.bytes = bytes;
    return e;
}

static sl_trace_event rows_of(uint32_t a, uint32_t ra, uint32_t b, uint32_t rb) {
    return (sl_trace_event){.kind = SL_TRACE_EXPERT_ROWS,
                            .round = a << 16 | ra,
                            .queued_us = b << 16 | rb,
                            .poll_ns = UINT32_MAX,
                            .rows = UINT32_MAX,
                            .bytes = UINT32_MAX,
                            .tokens = UINT32_MAX};
}

/* One step of 10 ms: attention 0-4 (of which the fabric took 1), dispatch 4-4.5, send 4.5-5, wait
 * 5-8, merge 8-9, head 9-10; the expert worker waits 0-6, computes 6-7, sends 7-7.5, waits 7.5-10.
 * The message 0 -> 1 is sent at 4.5 and arrives at 6, the other one is on its way from 7 to 8. */
static void write_sample(const char *path, int64_t offset_ns, bool same_clock) {
    sl_trace_event a[] = {
        span(SL_TRACE_ATTENTION, 0, 4, 1, 6),     span(SL_TRACE_DISPATCH, 4, 4.5, 1, 6),
        on_link(SL_TRACE_SEND, 1, 4.5, 32, 3000), span(SL_TRACE_WAIT, 5, 8, 1, 0),
        on_link(SL_TRACE_RECV, 1, 8, 33, 2000),   span(SL_TRACE_MERGE, 8, 9, 1, 6),
        span(SL_TRACE_FLIGHT, 4, 9, 1, 6),        span(SL_TRACE_HEAD, 9, 10, 1, 2),
        span(SL_TRACE_STEP, 0, 10, 0, 6),
    };
    sl_trace_event b[] = {
        span(SL_TRACE_WAIT, 0, 6, 1, 0),
        on_link(SL_TRACE_RECV, 0, 6, 32, 3000),
        rows_of(2, 4, 5, 8),
        span(SL_TRACE_EXPERT, 6, 7, 1, 12),
        on_link(SL_TRACE_SEND, 0, 7, 33, 2000),
        span(SL_TRACE_WAIT, 7.5, 10, 1, 0),
    };
    a[0].poll_ns = (uint32_t)MS;
    a[8].tokens = 2;
    b[3].queued_us = 250;
    for (size_t i = 0; i < SL_LEN(b); i++) {
        b[i].begin_ns -= b[i].kind == SL_TRACE_EXPERT_ROWS ? 0 : (uint64_t)offset_ns;
        b[i].end_ns -= b[i].kind == SL_TRACE_EXPERT_ROWS ? 0 : (uint64_t)offset_ns;
    }
    const sl_trace_log logs[] = {
        {.id = 0, .role = "attention", .events = a, .n = SL_LEN(a), .same_clock = true},
        {.id = 1,
         .role = "expert",
         .events = b,
         .n = SL_LEN(b),
         .dropped = 3,
         .same_clock = same_clock,
         .first = {0, offset_ns, 7000},
         .last = {2000 * MS, offset_ns, 9000}},
    };
    const sl_trace_about about = {.model = "models/\"odd\"",
                                  .schedule = "dep",
                                  .transport = "shm",
                                  .version = "0",
                                  .lanes = 1,
                                  .layers = 2,
                                  .message_name = kind_name};
    sl_err err;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(sl_trace_file_write(f, &about, logs, 2, &err), SL_OK);
    fclose(f);
}

static void check_figures(sl_trace_stats *s) {
    const sl_trace_worker_stats *a = &s->worker[0], *b = &s->worker[1];
    assert_float_equal(s->to_us - s->from_us, 10000, 0.01);
    assert_string_equal(a->name, "worker 0 (attention)");
    assert_float_equal(a->us[SL_TRACE_CAT_EXECUTE], 4000, 0.01); /* 3 of attention, 1 of the head */
    assert_float_equal(a->us[SL_TRACE_CAT_PACK], 1500, 0.01);
    assert_float_equal(a->us[SL_TRACE_CAT_SEND], 500, 0.01);
    assert_float_equal(a->us[SL_TRACE_CAT_POLL], 1000, 0.01);
    assert_float_equal(a->us[SL_TRACE_CAT_WAIT], 3000, 0.01);
    assert_float_equal(sl_trace_stats_busy(s, a), 0.6, 1e-6);
    assert_float_equal(sl_trace_stats_kernel_share(a), 4.0 / 6, 1e-6);
    assert_float_equal(sl_trace_stats_bubble(a), 0.3, 1e-6);
    assert_float_equal(sl_trace_stats_busy(s, b), 0.15, 1e-6);
    assert_float_equal(sl_trace_stats_bubble(b), 0.85, 1e-6);
    assert_int_equal(a->attention_rows, 6);
    assert_int_equal(b->expert_rows, 12);
    assert_int_equal(s->tokens, 2);
    assert_float_equal(sl_samples_quantile(&s->step_us, 0.99), 10000, 0.01);
    assert_int_equal(s->n_links, 2);
    assert_string_equal(s->link[0].name, "0 -> 1");
    assert_int_equal(s->link[0].bytes, 3000);
    assert_float_equal(s->link[0].busy_us, 1500, 0.01);
    assert_float_equal(s->link[1].busy_us, 1000, 0.01);
    assert_float_equal(sl_samples_quantile(&s->link[1].latency_us, 0.5), 1000, 0.01);
    assert_int_equal(s->n_layers, 2);
    assert_float_equal(s->layer[1].attention_us, 3000, 0.01);
    assert_float_equal(s->layer[1].expert_us, 1000, 0.01);
    assert_float_equal(sl_samples_quantile(&s->layer[1].flight_us, 0.5), 5000, 0.01);
    assert_int_equal(s->layer[1].worker_rows[1], 12);
    assert_int_equal(s->n_experts, 6);
    assert_int_equal(s->expert[2], 4);
    assert_int_equal(s->expert[5], 8);
    assert_int_equal(s->gemm[2], 1); /* 3-4 rows */
    assert_int_equal(s->gemm[3], 1); /* 5-8 rows */
    assert_float_equal(sl_trace_stats_expert_imbalance(s), 8.0 / 2, 1e-6);
    assert_float_equal(sl_trace_stats_worker_imbalance(s), 1, 1e-6);
    assert_float_equal(sl_samples_quantile(&s->queued_us, 0.5), 250, 0.01);
    double share;
    assert_string_equal(sl_trace_stats_busiest_worker(s, &share), "worker 0 (attention)");
    assert_string_equal(sl_trace_stats_busiest_link(s, &share), "0 -> 1");
    assert_float_equal(share, 0.15, 1e-6);
    assert_int_equal(s->dropped, 3);
}

static void figures(void **state) {
    (void)state;
    char path[] = "/tmp/sluice-trace-XXXXXX";
    close(mkstemp(path));
    sl_trace_stats s;
    sl_err err;
    /* The same figures whatever the expert worker's clock says. */
    for (int i = 0; i < 2; i++) {
        write_sample(path, i ? 123456789 : 0, i == 0);
        assert_int_equal(sl_trace_stats_read(path, -1, -1, &s, &err), SL_OK);
        check_figures(&s);
        assert_float_equal(s.clock_error_us, i ? 9.0 : 0, 1e-6);
        sl_trace_stats_free(&s);
    }
    /* A window: half of attention (and of its poll), no step ends in it. */
    assert_int_equal(sl_trace_stats_read(path, 2000, 4500, &s, &err), SL_OK);
    assert_float_equal(s.worker[0].us[SL_TRACE_CAT_EXECUTE], 1500, 0.01);
    assert_float_equal(s.worker[0].us[SL_TRACE_CAT_POLL], 500, 0.01);
    assert_float_equal(s.worker[0].us[SL_TRACE_CAT_PACK], 500, 0.01);
    assert_int_equal(s.tokens, 0);
    FILE *f = tmpfile();
    sl_trace_stats_print(&s, f);
    sl_trace_stats_print_json(&s, f);
    assert_true(ftell(f) > 1000);
    fclose(f);
    char *printed = NULL;
    size_t len;
    f = open_memstream(&printed, &len);
    sl_trace_stats_print(&s, f);
    fclose(f);
    assert_non_null(strstr(printed, "worker 0 (attention)      attention 60.0%\n"));
    free(printed);
    sl_trace_stats_free(&s);
    assert_int_equal(sl_trace_stats_read(path, 20000, -1, &s, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "window"));
    unlink(path);
    assert_int_equal(sl_trace_stats_read(path, -1, -1, &s, &err), SL_ERR_NOTFOUND);
}

static void picture(void **state) {
    (void)state;
    char path[] = "/tmp/sluice-trace-XXXXXX", *text = NULL;
    size_t len = 0;
    sl_err err;
    close(mkstemp(path));
    write_sample(path, 0, true);
    FILE *f = open_memstream(&text, &len);
    assert_int_equal(sl_trace_svg_write(path, -1, -1, f, &err), SL_OK);
    fclose(f);
    assert_non_null(strstr(text, "worker 0 (attention)"));
    assert_non_null(strstr(text, "link 0 -&gt; 1"));
    /* 1200 pixels are 10 ms: the expert runs from 6 to 7, after a margin of 150 */
    assert_non_null(strstr(text, "x=\"870.00\" y=\"91\" width=\"120.00\""));
    assert_non_null(strstr(text, "expert layer 1 lane 0: 1.000 ms, 12 rows"));
    free(text);
    f = tmpfile();
    assert_int_equal(sl_trace_svg_write(path, 5, 5, f, &err), SL_ERR_ARG);
    fclose(f);
    unlink(path);
}

/* A worker whose thread hands its calls to a device within 1 ms and polls until 10; the device has
 * them from 1 to 8: attention 1 to 3, a block that stays inside 3 to 7, what it leaves 7 to 8. */
static void write_device(const char *path) {
    const sl_trace_event a[] = {
        span(SL_TRACE_ATTENTION, 0, 1, 1, 6),    span(SL_TRACE_POLL, 1, 10, 0, 0),
        span(SL_TRACE_ON_ATTENTION, 1, 3, 1, 6), span(SL_TRACE_ON_INSIDE, 3, 7, 1, 6),
        span(SL_TRACE_ON_PACK, 7, 8, 1, 6),      span(SL_TRACE_STEP, 0, 10, 0, 6),
    };
    const sl_trace_log log = {
        .id = 0, .role = "both", .events = a, .n = SL_LEN(a), .same_clock = true};
    const sl_trace_about about = {
        .model = "", .schedule = "ep", .transport = "", .version = "", .message_name = kind_name};
    sl_err err;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(sl_trace_file_write(f, &about, &log, 1, &err), SL_OK);
    fclose(f);
}

static void devices(void **state) {
    (void)state;
    char path[] = "/tmp/sluice-trace-XXXXXX", *text = NULL;
    size_t len = 0;
    sl_trace_stats s;
    sl_err err;
    close(mkstemp(path));
    write_device(path);
    assert_int_equal(sl_trace_stats_read(path, 0, 10000, &s, &err), SL_OK);
    assert_int_equal(s.n_workers, 1);
    assert_int_equal(s.n_links, 0);
    assert_float_equal(s.worker[0].device_us, 7000, 0.01);
    assert_float_equal(s.worker[0].us[SL_TRACE_CAT_EXECUTE], 1000, 0.01);
    assert_float_equal(s.worker[0].kind_us[SL_TRACE_ATTENTION], 1000, 0.01);
    assert_float_equal(s.worker[0].kind_us[SL_TRACE_ON_ATTENTION], 2000, 0.01);
    assert_float_equal(sl_trace_stats_busy(&s, &s.worker[0]), 0.7, 1e-6);
    assert_float_equal(s.layer[1].attention_us, 3000, 0.01); /* with what the thread took */
    assert_float_equal(s.layer[1].expert_us, 4000, 0.01);
    FILE *f = open_memstream(&text, &len);
    sl_trace_stats_print(&s, f);
    sl_trace_stats_print_json(&s, f);
    fclose(f);
    assert_non_null(strstr(text, "computes 70.0%, attention 20.0%, pack 10.0%, inside 40.0%\n"));
    assert_non_null(
        strstr(text, "\"device_ms\": 7.000000, \"device_kinds_ms\": {\"attention\": 2.0"));
    free(text);
    sl_trace_stats_free(&s);
    f = open_memstream(&text, &len);
    assert_int_equal(sl_trace_svg_write(path, 0, 10000, f, &err), SL_OK);
    fclose(f);
    assert_non_null(strstr(text, ">device</text>"));
    /* under its worker's row, which begins at 58 and is 26 high */
    assert_non_null(strstr(text, "x=\"510.00\" y=\"91\" width=\"480.00\" height=\"18\""));
    assert_non_null(strstr(text, "inside layer 1 lane 0: 4.000 ms, 6 rows"));
    free(text);
    unlink(path);
}

/* A ring that lost its oldest events lacks partners of messages; the rest is still paired. */
static void partners(void **state) {
    (void)state;
    sl_trace_event a[20], b[20];
    for (uint32_t i = 0; i < 20; i++) {
        a[i] = on_link(SL_TRACE_SEND, 1, i, 32, 100);
        b[i] = on_link(SL_TRACE_RECV, 0, i + 0.25, 32, 100);
        a[i].round = b[i].round = i;
    }
    sl_trace_log logs[] = {{.id = 0, .role = "a", .events = a + 7, .n = 13, .same_clock = true},
                           {.id = 1, .role = "b", .events = b, .n = 18, .same_clock = true}};
    const sl_trace_about about = {
        .model = "", .schedule = "", .transport = "", .version = "", .message_name = kind_name};
    char *text = NULL;
    size_t len = 0, n = 0;
    sl_err err;
    FILE *f = open_memstream(&text, &len);
    assert_int_equal(sl_trace_file_write(f, &about, logs, 2, &err), SL_OK);
    fclose(f);
    for (const char *p = text; (p = strstr(p, "\"cat\":\"link\"")); p++) n++;
    assert_int_equal(n, 11);
    assert_non_null(strstr(text, "\"messages_without_partner\":9"));
    assert_null(strstr(text, "\"latency_us\":249"));
    free(text);
}

/* ---- files that nobody should trust ---- */

static sl_status ignore_item(void *ctx, const sl_trace_item *it, sl_err *err) {
    (void)err;
    *(size_t *)ctx += !it->is_name;
    return SL_OK;
}

static sl_status read_text(const char *text, size_t *spans, sl_err *err) {
    const sl_trace_visitor v = {.on_item = ignore_item, .ctx = spans};
    *spans = 0;
    return sl_trace_read_span("t.json", (sl_span){(const uint8_t *)text, strlen(text)}, &v, err);
}

static void foreign_files(void **state) {
    (void)state;
    size_t spans;
    sl_err err;
    /* both forms, any spacing, other fields and phases */
    assert_int_equal(read_text("[]", &spans, &err), SL_OK);
    assert_int_equal(read_text(" [ {\"ph\":\"X\",\"ts\":1,\"dur\":2,\"name\":\"a}\\\"\"} ,\n"
                               "{\"ph\":\"B\"}, {\"ph\":\"X\",\"ts\":1.5e3,\"dur\":0} ] ",
                               &spans, &err),
                     SL_OK);
    assert_int_equal(spans, 2);
    assert_int_equal(read_text("{\"a\":[1,{\"b\":\"]\"}],\"otherData\":{},\"x\":1.5,\"y\":\"s\",\n"
                               "\"traceEvents\":[{\"ph\":\"X\",\"ts\":1,\"dur\":2}],\"z\":null}",
                               &spans, &err),
                     SL_OK);
    assert_int_equal(spans, 1);
    static const char *const bad[] = {
        "",
        "7",
        "{}",
        "{\"traceEvents\":7}",
        "[{\"ph\":\"X\",\"ts\":1,\"dur\":2}",
        "[{\"ph\":\"X\",\"ts\":1,\"dur\":2} {}]",
        "[7]",
        "[{\"ph\":\"X\",\"ts\":-1,\"dur\":2}]",
        "[{\"ph\":\"X\",\"ts\":1,\"dur\":-2}]",
        "[{\"ph\":\"X\",\"ts\":1e300,\"dur\":2}]",
        "[{\"ph\":\"X\",\"ph\":\"X\"}]",
        "]x",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        err.msg[0] = '\0';
        if (read_text(bad[i], &spans, &err) != SL_ERR_FORMAT) fail_msg("taken: %s", bad[i]);
        assert_non_null(strstr(err.msg, "t.json: line "));
    }
    size_t len = SL_TRACE_MAX_EVENT_BYTES + 100;
    char *big = malloc(len);
    memset(big, ' ', len);
    memcpy(big, "[{\"ph\":\"X\"", 10);
    memcpy(big + len - 3, "}]", 3);
    assert_int_equal(read_text(big, &spans, &err), SL_ERR_LIMIT);
    free(big);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ring),          cmocka_unit_test(codec),   cmocka_unit_test(figures),
        cmocka_unit_test(picture),       cmocka_unit_test(devices), cmocka_unit_test(partners),
        cmocka_unit_test(foreign_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
