/* The public C API, used as its header says. */
#include "sluice.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>
#include <cmocka.h>

static const char model[] = SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny";

typedef struct text {
    char bytes[4096];
    size_t len;
    int stop_after; /* calls; 0: never */
} text;

static int append(void *ctx, const char *bytes, size_t len) {
    text *t = ctx;
    if (t->len + len < sizeof t->bytes) memcpy(t->bytes + t->len, bytes, len), t->len += len;
    return t->stop_after && --t->stop_after == 0;
}

static void same_text_from_any_deployment(void **state) {
    (void)state;
    static const sluice_options options[] = {
        {.model = model, .exact = 1},
        {.model = model, .exact = 1, .attention = 1, .experts = 2},
        {.model = model, .exact = 1, .attention = 2},
    };
    text first = {0};
    for (size_t i = 0; i < 3; i++) {
        char why[256] = "";
        text t = {0};
        sluice *s = sluice_open(&options[i], why, sizeof why);
        if (!s) fail_msg("%s", why);
        const sluice_request r = {
            .prompt = "Now the word", .max_tokens = 24, .on_text = append, .ctx = &t};
        assert_int_equal(sluice_generate(s, &r, why, sizeof why), 24);
        sluice_close(s);
        if (i == 0) first = t;
        assert_int_equal(t.len, first.len);
        assert_memory_equal(t.bytes, first.bytes, t.len);
    }
    assert_true(first.len > 10);
}

static void a_callback_stops_the_request(void **state) {
    (void)state;
    char why[256] = "";
    text t = {.stop_after = 3};
    sluice *s = sluice_open(&(sluice_options){.model = model}, why, sizeof why);
    assert_non_null(s);
    const sluice_request r = {.prompt = "Now", .max_tokens = 400, .on_text = append, .ctx = &t};
    long n = sluice_generate(s, &r, why, sizeof why);
    assert_true(n >= 3 && n < 400);
    sluice_close(s);
}

static void errors_say_why(void **state) {
    (void)state;
    char why[256] = "";
    assert_null(sluice_open(&(sluice_options){.model = "/nowhere"}, why, sizeof why));
    assert_non_null(strstr(why, "/nowhere"));
    assert_null(sluice_open(&(sluice_options){0}, why, sizeof why));
    sluice *s = sluice_open(&(sluice_options){.model = model}, why, sizeof why);
    assert_non_null(s);
    assert_int_equal(sluice_generate(s, &(sluice_request){.prompt = ""}, why, sizeof why), -1);
    assert_non_null(strstr(why, "prompt"));
    const sluice_request long_one = {.prompt = "a", .max_tokens = 100000};
    assert_int_equal(sluice_generate(s, &long_one, why, sizeof why), -1);
    assert_non_null(strstr(why, "context"));
    sluice_close(s);
    sluice_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_from_any_deployment),
        cmocka_unit_test(a_callback_stops_the_request),
        cmocka_unit_test(errors_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
