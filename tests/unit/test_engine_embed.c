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

/* Everything of a stream that ends by itself. */
static sluice_finish read_all(sluice_stream *t, text *out, uint32_t *ids, size_t *n) {
    char why[256] = "";
    sluice_piece piece = {0};
    while (piece.finish == SLUICE_RUNNING) {
        int news = sluice_next(t, 200, &piece, why, sizeof why);
        if (news < 0) fail_msg("%s", why);
        if (news == 0) continue;
        append(out, piece.text, piece.len);
        if (piece.n_ids) memcpy(ids + *n, piece.ids, piece.n_ids * sizeof *ids);
        *n += piece.n_ids;
    }
    return piece.finish;
}

static void streams_hand_out_what_generate_does(void **state) {
    (void)state;
    char why[256] = "";
    text whole = {0}, first = {0}, second = {0};
    uint32_t ids[2][64];
    size_t n[2] = {0};
    sluice *s =
        sluice_open(&(sluice_options){.model = model, .exact = 1, .attention = 2}, why, sizeof why);
    assert_non_null(s);
    sluice_request r = {
        .prompt = "Now the word", .max_tokens = 24, .on_text = append, .ctx = &whole};
    assert_int_equal(sluice_generate(s, &r, why, sizeof why), 24);
    sluice_stream *a = sluice_start(s, &r, why, sizeof why),
                  *b = sluice_start(s, &r, why, sizeof why);
    assert_true(a && b);
    assert_int_equal(read_all(b, &second, ids[1], &n[1]), SLUICE_LENGTH);
    assert_int_equal(read_all(a, &first, ids[0], &n[0]), SLUICE_LENGTH);
    assert_int_equal(n[0], 24);
    assert_int_equal(n[1], 24);
    assert_memory_equal(ids[0], ids[1], 24 * sizeof(uint32_t));
    assert_int_equal(first.len, whole.len);
    assert_memory_equal(first.bytes, whole.bytes, whole.len);
    sluice_piece again;
    assert_int_equal(sluice_next(a, 0, &again, why, sizeof why), 1);
    assert_true(again.finish == SLUICE_LENGTH && again.n_ids == 0 && again.len == 0);
    sluice_stream_close(a);
    sluice_stream_close(b);
    sluice_close(s);
}

static void ids_go_on_where_they_end(void **state) {
    (void)state;
    char why[256] = "";
    text out = {0};
    uint32_t ids[64], rest[64];
    size_t n = 0, m = 0;
    sluice *s = sluice_open(&(sluice_options){.model = model, .exact = 1}, why, sizeof why);
    assert_non_null(s);
    const uint32_t prompt[] = {3, 17, 41};
    sluice_request r = {.ids = prompt, .n_ids = 3, .max_tokens = 24};
    sluice_stream *t = sluice_start(s, &r, why, sizeof why);
    assert_non_null(t);
    assert_int_equal(read_all(t, &out, ids, &n), SLUICE_LENGTH);
    sluice_stream_close(t);
    uint32_t longer[3 + 8];
    memcpy(longer, prompt, sizeof prompt);
    memcpy(longer + 3, ids, 8 * sizeof *ids);
    r = (sluice_request){.ids = longer, .n_ids = 11, .max_tokens = 16};
    t = sluice_start(s, &r, why, sizeof why);
    assert_non_null(t);
    read_all(t, &out, rest, &m);
    assert_int_equal(m, 16);
    assert_memory_equal(rest, ids + 8, 16 * sizeof *ids);
    sluice_stream_close(t);
    sluice_close(s);
}

static void a_stream_is_cancelled_and_closed_at_any_time(void **state) {
    (void)state;
    char why[256] = "";
    text out = {0};
    static uint32_t ids[4096];
    size_t n = 0;
    sluice *s = sluice_open(&(sluice_options){.model = model}, why, sizeof why);
    assert_non_null(s);
    const sluice_request r = {.prompt = "Now", .max_tokens = 400};
    sluice_stream_close(sluice_start(s, &r, why, sizeof why));
    sluice_stream *t = sluice_start(s, &r, why, sizeof why);
    assert_non_null(t);
    sluice_cancel(t);
    assert_int_equal(read_all(t, &out, ids, &n), SLUICE_CANCELLED);
    assert_true(n < 400);
    sluice_stream_close(t);
    sluice_stream_close(NULL);
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
    const uint32_t ids[] = {3, UINT32_MAX};
    assert_null(sluice_start(s, &(sluice_request){.ids = ids, .n_ids = 2}, why, sizeof why));
    assert_null(sluice_start(s, &(sluice_request){.ids = ids}, why, sizeof why));
    assert_null(
        sluice_start(s, &(sluice_request){.ids = ids, .n_ids = 1, .prompt = "a"}, why, sizeof why));
    assert_non_null(strstr(why, "prompt"));
    assert_null(
        sluice_start(s, &(sluice_request){.ids = ids, .n_ids = 1, .chat = 1}, why, sizeof why));
    assert_non_null(strstr(why, "chat"));
    assert_null(sluice_start(s, &(sluice_request){.prompt = "a", .top_p = 3}, why, sizeof why));
    assert_non_null(strstr(why, "top_p"));
    sluice_close(s);
    sluice_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_text_from_any_deployment),
        cmocka_unit_test(a_callback_stops_the_request),
        cmocka_unit_test(streams_hand_out_what_generate_does),
        cmocka_unit_test(ids_go_on_where_they_end),
        cmocka_unit_test(a_stream_is_cancelled_and_closed_at_any_time),
        cmocka_unit_test(errors_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
