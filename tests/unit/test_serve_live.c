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
    uint8_t hosts[1] = {0};
    sl_worker_view view = {.taken_ns = now_ns, .same_clock = true, .n = n, .event = event};
    const sl_live_sample s = {
        .model = "m",
        .spec = &spec,
        .stats = {.schedule = SL_SCHED_EP, .lanes = 1},
        .detail = {.n_workers = 1, .n_layers = 1, .worker = &worker, .layer = &layer},
        .view = {.n_workers = 1,
                 .n_moe = 1,
                 .n_experts = 2,
                 .worker = &view,
                 .expert_rows = rows,
                 .hosts = hosts,
                 .sequencer = 1}};
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

static double dense_s[2]; /* predicted */

static char *deployment_of(const sl_engine_stats *stats, uint32_t n_moe, uint8_t *hosts,
                           uint32_t sequencer) {
    static sl_model_spec spec = {.n_layers = 1, .top_k = 2};
    static uint64_t rows[4];
    static sl_worker_view views[3];
    const sl_live_sample s = {.model = "m",
                              .spec = &spec,
                              .stats = *stats,
                              .view = {.n_workers = 3,
                                       .n_moe = n_moe,
                                       .n_experts = 1,
                                       .worker = views,
                                       .expert_rows = rows,
                                       .hosts = hosts,
                                       .sequencer = sequencer},
                              .cpu_us = 77,
                              .predicted_dense_s = {dense_s[0], dense_s[1]}};
    sl_jbuf b = sl_jbuf_init();
    sl_live_json(&s, &b);
    assert_true(b.ok);
    char *text = strdup(b.data);
    sl_jbuf_free(&b);
    return text;
}

static void expect(char *text, const char *want) {
    if (!strstr(text, want)) fail_msg("no %s in %s", want, text);
}

/* Once where all blocks have the same, else block by block. */
static void test_who_hosts_what(void **state) {
    (void)state;
    const sl_engine_stats stats = {.schedule = SL_SCHED_EP};
    uint8_t same[] = {0, 1, 1, 0, 1, 1}, each[] = {0, 1, 1, 0, 0, 1};
    char *text = deployment_of(&stats, 2, same, 1);
    expect(text, "\"hosts\":[[1,2]],\"sequencer\":1}");
    expect(text, "\"top_k\":2,\"cpu_us\":77,");
    free(text);
    text = deployment_of(&stats, 2, each, 3);
    expect(text, "\"hosts\":[[1,2],[2]],\"sequencer\":null}");
    free(text);
    text = deployment_of(&stats, 0, each, 3); /* no block has experts */
    expect(text, "\"hosts\":[],");
    free(text);
}

static void test_what_was_predicted(void **state) {
    (void)state;
    uint8_t hosts[3] = {0};
    sl_engine_stats stats = {.schedule = SL_SCHED_EP};
    char *text = deployment_of(&stats, 1, hosts, 3);
    expect(text, "\"predicted_us\":null,\"predicted_dense_us\":null,");
    free(text);
    stats.predicted = (sl_predicted){.block_s = {1e-5, 2e-3}, .rows = {8, 512}};
    text = deployment_of(&stats, 1, hosts, 3);
    expect(text, "\"predicted_us\":[10.00,2000.00],\"predicted_rows\":[8,512],"
                 "\"predicted_holds\":false,\"predicted_dense_us\":null,");
    free(text);
    dense_s[0] = 5e-6, dense_s[1] = 1e-3;
    text = deployment_of(&stats, 1, hosts, 3);
    expect(text, "\"predicted_holds\":false,\"predicted_dense_us\":[5.00,1000.00],");
    free(text);
}

/* The last ones, oldest first, with the time of the server. */
static void test_what_recoveries_cost(void **state) {
    (void)state;
    uint8_t hosts[3] = {0};
    sl_engine_stats stats = {.schedule = SL_SCHED_EP, .epoch = 4, .changing = true};
    char *text = deployment_of(&stats, 1, hosts, 3), want[80];
    expect(text, "\"pauses\":[],\"why\":null},\"plan\":4,\"changing\":true,");
    free(text);
    stats.n_pauses = SL_PAUSES_KEPT + 2;
    for (uint32_t i = 0; i < SL_PAUSES_KEPT; i++) {
        uint64_t number = i < 2 ? i + SL_PAUSES_KEPT : i;
        stats.pause[i] = (sl_pause){.ended_us = sl_now_ns() / 1000 - 5000000, .s = (double)number};
        strcpy(stats.pause[i].why, "\"gone\"");
    }
    text = deployment_of(&stats, 1, hosts, 3);
    expect(text, "\"pauses\":[[2,5.0,2.000,\"\\\"gone\\\"\"],[3,");
    snprintf(want, sizeof want, "[%u,5.0,%u.000,", SL_PAUSES_KEPT + 1, SL_PAUSES_KEPT + 1);
    expect(text, want);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_neighbours_are_one_span),
                                       cmocka_unit_test(test_what_began_before_the_window),
                                       cmocka_unit_test(test_from_where_on_a_view_is_whole),
                                       cmocka_unit_test(test_silent_workers_have_no_view),
                                       cmocka_unit_test(test_who_hosts_what),
                                       cmocka_unit_test(test_what_was_predicted),
                                       cmocka_unit_test(test_what_recoveries_cost)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
