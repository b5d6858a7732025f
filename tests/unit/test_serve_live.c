/* One sample of what goes on: which spans of a worker become which numbers. */
#include "serve/live.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MS 1000000ull

static sl_trace_event span(uint8_t kind, uint64_t from_ns, uint64_t to_ns, uint16_t layer) {
    return (sl_trace_event){.kind = kind, .begin_ns = from_ns, .end_ns = to_ns, .layer = layer};
}

/* The sample of one attention worker that did `n` things until now; freed by the caller. */
static char *sample_of(sl_trace_event *event, uint32_t n, uint64_t now_ns) {
    static sl_model_spec spec = {.n_layers = 1, .n_moe = 1, .n_experts = 2};
    sl_worker_stats worker = {.roles = SL_ROLE_ATTENTION, .life = SL_WORKER_SERVING, .pid = 7};
    sl_layer_stats layer = {.attention_ns = 5};
    uint64_t rows[2] = {3, 4};
    sl_worker_view view = {.taken_ns = now_ns, .same_clock = true, .n = n, .event = event};
    const sl_live_sample s = {
        .model = "m",
        .spec = &spec,
        .stats = {.schedule = SL_SCHED_EP, .lanes = 1},
        .detail = {.n_workers = 1, .n_layers = 1, .worker = &worker, .layer = &layer},
        .view = {.n_workers = 1, .n_moe = 1, .n_experts = 2, .worker = &view, .expert_rows = rows}};
    sl_jbuf b = sl_jbuf_init();
    sl_live_json(&s, &b);
    assert_true(b.ok);
    char *text = strdup(b.data);
    sl_jbuf_free(&b);
    return text;
}

static void test_short_neighbours_are_one_span(void **state) {
    (void)state;
    uint64_t now = sl_now_ns(), t = now - 100 * MS;
    sl_trace_event e[] = {
        span(SL_TRACE_ATTENTION, t, t + 200000, 3),
        span(SL_TRACE_ATTENTION, t + 210000, t + 300000, 4), /* near and short: the same span */
        span(SL_TRACE_POLL, t + 300000, t + 305000, 0),      /* too short to be seen */
        span(SL_TRACE_ATTENTION, t + 2 * MS, t + 5 * MS, 5),
        span(SL_TRACE_IDLE, t + 5 * MS, t + 90 * MS, 0), /* nothing is nothing */
    };
    char *text = sample_of(e, SL_LEN(e), now);
    char want[128];
    snprintf(want, sizeof want, "\"spans\":[[%d,100000,300,0,3,0],[%d,102000,3000,0,5,0]]",
             SL_TRACE_ATTENTION, SL_TRACE_ATTENTION);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "\"experts\":[[3,4]]"));
    assert_true(strncmp(text, "data: {", 7) == 0 && strstr(text, "}\n\n"));
    free(text);
}

static void test_what_began_before_the_window(void **state) {
    (void)state;
    uint64_t now = sl_now_ns(), from = now - SL_VIEW_NS;
    sl_trace_event e[] = {
        span(SL_TRACE_WAIT, from - 9 * MS, from - 8 * MS, 0),  /* over before */
        span(SL_TRACE_WAIT, from - 5 * MS, from + 2 * MS, 0),  /* cut */
        span(SL_TRACE_STEP, from - 50 * MS, from + 1 * MS, 0), /* of a micro-batch: whole */
        span(SL_TRACE_WAIT, from + 9 * MS, from + 8 * MS, 0),  /* of a clock that lies */
    };
    char *text = sample_of(e, SL_LEN(e), now);
    char want[128];
    snprintf(want, sizeof want,
             "\"spans\":[[%d,0,2000,0,0,0]],\"flights\":[[%d,-50000,51000,0,0,0]]", SL_TRACE_WAIT,
             SL_TRACE_STEP);
    assert_non_null(strstr(text, want));
    free(text);
}

/* More spans than a sample has, and more events than a view holds: the beginning is missing. */
static void test_from_where_on_a_view_is_whole(void **state) {
    (void)state;
    static sl_trace_event e[SL_VIEW_EVENTS];
    uint64_t now = sl_now_ns(), from = now - SL_VIEW_NS;
    for (uint32_t i = 0; i < SL_LEN(e); i++)
        e[i] = span(i % 2 ? SL_TRACE_SEND : SL_TRACE_EXPERT, from + i * 30000,
                    from + i * 30000 + 25000, 0);
    const struct {
        uint32_t n;
        const char *want;
    } cases[] = {{3, "\"whole_from_us\":0,"},
                 {1600, "\"whole_from_us\":3000,"}, /* the latest 1500 are kept */
                 {SL_VIEW_EVENTS, "\"whole_from_us\":77880,"}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        char *text = sample_of(e, cases[i].n, now);
        assert_non_null(strstr(text, cases[i].want));
        free(text);
    }
    for (uint32_t i = 0; i < SL_LEN(e); i++) /* the first event's end */
        e[i] =
            span(SL_TRACE_EXPERT, from + 100 * MS + i * 1000, from + 100 * MS + i * 1000 + 900, 0);
    char *text = sample_of(e, SL_LEN(e), now);
    assert_non_null(strstr(text, "\"whole_from_us\":100000,"));
    free(text);
}

static void test_silent_workers_have_no_view(void **state) {
    (void)state;
    sl_trace_event e[] = {span(SL_TRACE_WAIT, 1, 2, 0)};
    char *text = sample_of(e, 1, sl_now_ns() - 10000 * MS);
    assert_non_null(strstr(text, "\"view\":null"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_neighbours_are_one_span),
                                       cmocka_unit_test(test_what_began_before_the_window),
                                       cmocka_unit_test(test_from_where_on_a_view_is_whole),
                                       cmocka_unit_test(test_silent_workers_have_no_view)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
