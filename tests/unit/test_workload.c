/* Workload files and traces: what they say, and what an error names. */
#include "base/mem.h"
#include "format/presets.h"
#include "format/workload_file.h"
#include "plan/lengths.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static sl_span span_of(const char *text) {
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

static void a_full_file(void **state) {
    (void)state;
    sl_workload w;
    sl_err err = {0};
    const char *text = "name: w\n"
                       "input: {uniform: [64, 1024]}\n"
                       "output: {lognormal: {median: 160, sigma: 0.8, max: 2048}}\n"
                       "arrival: {poisson: 12.5}\n"
                       "requests: 5000\n"
                       "slo: {ttft: 2s, tpot: 150ms, quantile: 0.95}\n"
                       "routing: {exp: 0.6, permuted: true, seed: 7}\n";
    assert_int_equal(sl_workload_parse("dir/f.yaml", span_of(text), &w, &err), SL_OK);
    assert_string_equal(w.name, "w");
    assert_true(w.input.kind == SL_LENGTH_UNIFORM && sl_length_mean(&w.input) == 544);
    assert_int_equal(sl_length_quantile(&w.output, 0.5), 160);
    assert_true(w.arrival.kind == SL_ARRIVAL_POISSON && w.arrival.rate == 12.5);
    assert_true(w.slo_ttft_us == 2e6 && w.slo_tpot_us == 150e3 && w.slo_quantile == 0.95);
    assert_true(w.skew.on && w.skew.permuted && w.skew.theta == 0.6 && w.skew.seed == 7);
    assert_int_equal(w.n_requests, 5000);
    sl_workload_free(&w);
    assert_int_equal(sl_workload_parse("f", span_of("input: 5\noutput: {fixed: 6}\n"), &w, &err),
                     SL_OK);
    assert_true(sl_workload_mean_context(&w) == 8 && !w.skew.on);
    assert_true(w.arrival.kind == SL_ARRIVAL_CLOSED && w.arrival.concurrency == 1);
    sl_workload_free(&w);
    text = "input: 5\noutput: 6\narrival: {closed: full}\n";
    assert_int_equal(sl_workload_parse("f", span_of(text), &w, &err), SL_OK);
    assert_true(w.arrival.kind == SL_ARRIVAL_CLOSED && w.arrival.concurrency == 0);
    sl_workload_free(&w);
}

static void presets(void **state) {
    (void)state;
    for (size_t i = 0; sl_preset_workload_name(i); i++) {
        sl_workload w;
        sl_err err = {0};
        assert_int_equal(sl_workload_open(sl_preset_workload_name(i), &w, &err), SL_OK);
        assert_true(sl_length_mean(&w.input) > 0 && sl_length_mean(&w.output) > 0);
        sl_workload_free(&w);
    }
    sl_workload w;
    sl_err err = {0};
    assert_int_equal(sl_workload_open("megascale", &w, &err), SL_OK);
    assert_int_equal(sl_length_quantile(&w.input, 0.5), 571);
    assert_int_equal(sl_length_quantile(&w.output, 0.5), 159);
    assert_int_equal(sl_workload_open("nothing", &w, &err), SL_ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, "megascale"));
}

static const char mooncake[] =
    "{\"timestamp\": 3052, \"input_length\": 7242, \"output_length\": 0, \"hash_ids\": [1, 2]}\n"
    "{\"timestamp\": 0, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": []}\r\n"
    "\n"
    "{\"timestamp\": 3000.5, \"input_length\": 1, \"output_length\": 9}";

static const char azure[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
                            "2023-12-31 23:59:59.5000000,4808,10\r\n"
                            "2024-01-01 00:00:01.2500000+00:00,3180,8\r\n"
                            "2024-03-01T00:00:01Z,1,1\r\n";

static void both_kinds_of_traces(void **state) {
    (void)state;
    sl_trace_request *t = NULL;
    size_t n = 0;
    sl_err err = {0};
    assert_int_equal(sl_trace_parse("t", span_of(mooncake), false, &t, &n, &err), SL_OK);
    assert_int_equal(n, 3);
    assert_true(t[0].at_us == 0 && t[0].input == 6955 && t[0].output == 52);
    assert_true(t[1].at_us == 3000500 && t[2].at_us == 3052000 && t[2].output == 1);
    sl_free(t);
    assert_int_equal(sl_trace_parse("t", span_of(azure), true, &t, &n, &err), SL_OK);
    assert_int_equal(n, 3);
    assert_true(t[1].at_us == 1750000 && t[1].input == 3180 && t[1].output == 8);
    /* 31 days of January and 29 of February 2024, half a second before the year's end on top */
    assert_true(t[2].at_us == 60ull * 86400000000ull + 1500000);
    sl_free(t);
}

static void a_trace_beside_the_file(void **state) {
    (void)state;
    char dir[] = "/tmp/sluice-workload-XXXXXX", path[128], trace[128];
    sl_workload w;
    sl_err err = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/w.yaml", dir);
    snprintf(trace, sizeof trace, "%s/t.jsonl", dir);
    FILE *f = fopen(trace, "w");
    fputs(mooncake, f);
    fclose(f);
    f = fopen(path, "w");
    fputs("trace: t.jsonl\noutput: 5\narrival: {trace: 2}\n", f);
    fclose(f);
    assert_int_equal(sl_workload_open(path, &w, &err), SL_OK);
    assert_true(w.input.kind == SL_LENGTH_TRACE && w.output.kind == SL_LENGTH_FIXED);
    assert_true(w.arrival.kind == SL_ARRIVAL_TRACE && w.arrival.speed == 2);
    assert_true(w.n_trace == 3 && w.n_requests == 3 && sl_length_p95(&w.input) == 7242);
    sl_workload_free(&w);
    assert_int_equal(sl_workload_open(trace, &w, &err), SL_OK);
    assert_true(w.n_trace == 3 && w.arrival.kind == SL_ARRIVAL_TRACE);
    sl_workload_free(&w);
    unlink(trace);
    assert_int_equal(sl_workload_open(path, &w, &err), SL_ERR_NOTFOUND);
    unlink(path);
    rmdir(dir);
}

typedef struct sl_bad {
    const char *text, *says[3];
    sl_status code;
} sl_bad;

static void says(const sl_bad *b, sl_status st, const sl_err *err) {
    if (st != b->code) print_error("%s -> %d %s\n", b->text, st, err->msg);
    assert_int_equal(st, b->code);
    for (size_t k = 0; k < SL_LEN(b->says) && b->says[k]; k++) {
        if (!strstr(err->msg, b->says[k])) print_error("%s -> %s\n", b->text, err->msg);
        assert_non_null(strstr(err->msg, b->says[k]));
    }
}

static void bad_files(void **state) {
    (void)state;
    static const sl_bad bad[] = {
        {"input: 5\n", {"f:1: output: missing"}, SL_ERR_FORMAT},
        {"input: 0\noutput: 1\n", {"f:1: input: 0", "1 to 16777216"}, SL_ERR_LIMIT},
        {"input: {uniform: [5, 4]}\noutput: 1\n", {"f:1: uniform: 5 is above 4"}, SL_ERR_FORMAT},
        {"input: {uniform: [5]}\noutput: 1\n", {"f:1: uniform: 1 values"}, SL_ERR_FORMAT},
        {"input: {uniform: [5, 6.5]}\noutput: 1\n", {"\"6.5\""}, SL_ERR_LIMIT},
        {"input: {fixed: 5, uniform: [1, 2]}\noutput: 1\n", {"f:1: input: one of"}, SL_ERR_FORMAT},
        {"input: {normal: 5}\noutput: 1\n", {"f:1", "\"normal\" is unknown"}, SL_ERR_UNSUPPORTED},
        {"input: {lognormal: {median: 5, sigma: 9}}\noutput: 1\n",
         {"f:1: sigma: 9", "0 to 4"},
         SL_ERR_LIMIT},
        {"input: {lognormal: {median: 5, sigma: 1, min: 9, max: 8}}\noutput: 1\n",
         {"f:1: max: 8", "9 to"},
         SL_ERR_LIMIT},
        {"input: 1\noutput: 1\narrival: {poisson: -1}\n", {"f:3: poisson: -1"}, SL_ERR_LIMIT},
        {"input: 1\noutput: 1\narrival: {trace: 1}\n",
         {"f:3: trace: there is no trace"},
         SL_ERR_FORMAT},
        {"input: 1\noutput: 1\narrival: {closed: 1, poisson: 1}\n",
         {"f:3: arrival: one of"},
         SL_ERR_FORMAT},
        {"input: 1\noutput: 1\nslo:\n  tpot: 150\n",
         {"f:4: tpot: \"150\"", "150ms"},
         SL_ERR_FORMAT},
        {"input: 1\noutput: 1\nslo: {p99: 1s}\n", {"\"p99\" is unknown"}, SL_ERR_UNSUPPORTED},
        {"input: 1\noutput: 1\nrouting: {exp: 30}\n", {"f:3: exp: 30", "0 to 20"}, SL_ERR_LIMIT},
        {"input: 1\noutput: 1\nrouting: {exp: 1, permuted: yes}\n",
         {"neither true nor false"},
         SL_ERR_FORMAT},
        {"input: 1\noutput: 1\ntrace: nowhere.jsonl\n", {"nowhere.jsonl"}, SL_ERR_NOTFOUND},
        {"trace: some.txt\n", {"some.txt", ".jsonl or .csv"}, SL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_workload w = {0};
        sl_err err = {0};
        says(&bad[i], sl_workload_parse("f", span_of(bad[i].text), &w, &err), &err);
    }
}

static void bad_traces(void **state) {
    (void)state;
    static const sl_bad bad[] = {
        {"J", {"t:1"}, SL_ERR_FORMAT},
        {"J{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n{\"timestamp\": 1}\n",
         {"t:2: input_length: missing"},
         SL_ERR_FORMAT},
        {"J{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}\n",
         {"t:1: timestamp"},
         SL_ERR_LIMIT},
        {"J{\"timestamp\": 1, \"input_length\": 99999999, \"output_length\": 1}\n",
         {"t:1: input_length", "99999999"},
         SL_ERR_LIMIT},
        {"J{\"timestamp\": 1\n", {"t:1"}, SL_ERR_FORMAT},
        {"C", {"t:1: TIMESTAMP"}, SL_ERR_FORMAT},
        {"CTIMESTAMP,ContextTokens\n", {"t:1: GeneratedTokens: no such column"}, SL_ERR_FORMAT},
        {"CTIMESTAMP,ContextTokens,GeneratedTokens\n", {"t: no requests"}, SL_ERR_FORMAT},
        {"CTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n",
         {"t:2: line: fewer columns"},
         SL_ERR_FORMAT},
        {"CTIMESTAMP,ContextTokens,GeneratedTokens\n2023-13-16 18:15:46,1,2\n",
         {"t:2: TIMESTAMP", "2023-13-16"},
         SL_ERR_FORMAT},
        {"CTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-1,2\n",
         {"t:2: ContextTokens: \"-1\""},
         SL_ERR_FORMAT},
        {"CTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,99999999999\n",
         {"t:2: output: 99999999999 tokens", "16777216"},
         SL_ERR_LIMIT},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_trace_request *t = NULL;
        size_t n;
        sl_err err = {0};
        bool csv = bad[i].text[0] == 'C';
        if (i == 0) {
            says(&bad[i], sl_trace_parse("t:1", span_of(""), csv, &t, &n, &err), &err);
            continue;
        }
        says(&bad[i], sl_trace_parse("t", span_of(bad[i].text + 1), csv, &t, &n, &err), &err);
    }
}

/* Every allocation that fails is an error and leaks nothing. */
static void without_memory(void **state) {
    (void)state;
    const char *text = "input: {uniform: [64, 1024]}\noutput: 5\nrouting: {exp: 1}\n";
    for (uint64_t nth = 1; nth < 60; nth++) {
        sl_workload w = {0};
        sl_err err = {0};
        sl_mem_fail_at(nth);
        sl_status st = sl_workload_parse("f", span_of(text), &w, &err);
        sl_mem_fail_at(0);
        assert_true(st == SL_OK || st == SL_ERR_NOMEM);
        sl_workload_free(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_file),
        cmocka_unit_test(presets),
        cmocka_unit_test(both_kinds_of_traces),
        cmocka_unit_test(a_trace_beside_the_file),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(bad_traces),
        cmocka_unit_test(without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
