/* One server in front of a scripted engine for each test, and its answers as JSON. */
#ifndef SL_TEST_SERVE_HTTP_H
#define SL_TEST_SERVE_HTTP_H

#include "serve_script.h"

#include "format/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define COMPLETIONS "/v1/completions"
#define CHAT        "/v1/chat/completions"

static sl_engine *engine;
static sl_tokenizer *tok;
static sl_server *server;
static uint16_t port;
static int some_chat; /* its address stands for a template */

static inline void start(const sl_server_opts *change) {
    sl_err err = {0};
    sl_server_opts o = change ? *change : (sl_server_opts){0};
    o.engine = engine;
    o.tokenizer = tok;
    o.chat = (const sl_chat *)&some_chat;
    o.served_model_name = "org/m";
    o.generation =
        (sl_generation_spec){.temperature = 0.5f, .top_p = 0.25f, .top_k = 7, .do_sample = -1};
    sl_status st = sl_server_create(&o, &server, &err);
    if (st != SL_OK) printf("%s\n", err.msg);
    assert_int_equal(st, SL_OK);
    port = sl_server_port(server);
    assert_true(port > 0);
}

static inline int set_up(void **state) {
    (void)state;
    engine = script_engine_create();
    start(NULL);
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    sl_server_free(server);
    server = NULL;
    script_engine_free(engine);
    return 0;
}

static inline void restart(const sl_server_opts *o) {
    sl_server_free(server);
    start(o);
}

static inline sl_json_doc *json_of(const char *text, size_t n) {
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    if (sl_json_parse("answer", (sl_span){(const uint8_t *)text, n}, &doc, &err) != SL_OK)
        printf("%s in %.*s\n", err.msg, (int)n, text);
    assert_non_null(doc);
    return doc;
}

static inline bool string_at(sl_json obj, const char *key, const char *want) {
    sl_span s;
    bool same = sl_json_as_span(sl_json_get(obj, key), &s) && s.len == strlen(want) &&
                !memcmp(s.data, want, s.len);
    if (!same && sl_json_as_span(sl_json_get(obj, key), &s))
        printf("%s: \"%.*s\", not \"%s\"\n", key, (int)s.len, (char *)s.data, want);
    return same;
}

static inline uint64_t number_at(sl_json obj, const char *key) {
    uint64_t n = UINT64_MAX;
    sl_json_as_u64(sl_json_get(obj, key), &n);
    return n;
}

static inline void check_error(const char *method, const char *path, const char *headers,
                               const char *body, int status, const char *param, const char *code) {
    http_answer a = http_do(port, method, path, headers, body);
    if (a.status != status)
        printf("%s %s %s: %d %s\n", method, path, body ? body : "", a.status, a.body.data);
    assert_int_equal(a.status, status);
    sl_json_doc *doc = json_of(a.body.data, a.body.len);
    sl_json e = sl_json_get(sl_json_root(doc), "error");
    assert_true(sl_json_kind_of(sl_json_get(e, "message")) == SL_JSON_STRING);
    assert_true(sl_json_kind_of(sl_json_get(e, "type")) == SL_JSON_STRING);
    if (param)
        assert_true(string_at(e, "param", param));
    else
        assert_int_equal(sl_json_kind_of(sl_json_get(e, "param")), SL_JSON_NULL);
    if (code) assert_true(string_at(e, "code", code));
    assert_non_null(strcasestr(a.head, "X-Request-Id: "));
    sl_json_doc_free(doc);
    http_answer_free(&a);
}

/* The nth event of a stream, parsed; the caller frees *doc. */
static inline sl_json event_at(const http_answer *a, int nth, sl_json_doc **doc) {
    const char *at = a->body.data;
    for (int i = 0; at && i < nth; i++)
        if ((at = strstr(at, "\n\n"))) at += 2;
    const char *end = at ? strstr(at, "\n\n") : NULL;
    assert_non_null(end);
    *doc = json_of(at + 6, (size_t)(end - at) - 6);
    return sl_json_root(*doc);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

#endif
