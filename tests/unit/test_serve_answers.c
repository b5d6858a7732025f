/* What answers hold, and what they may cost, over real sockets in front of a scripted engine. */
#include "serve_http.h"

#define ASK(rest)                                                                                  \
    "{\"model\":\"org/m\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" rest "}"

/* A chat's first chunk names the role and shows the prompt; tokens come after it. */
static void the_role_counts_no_token(void **state) {
    (void)state;
    SCRIPT_SET(engine, per_event, 3);
    http_answer a = http_do(port, "POST", CHAT, NULL,
                            ASK(",\"stream\":true,\"return_token_ids\":true,\"stream_options\":"
                                "{\"include_usage\":true,\"continuous_usage_stats\":true}"));
    sl_json_doc *doc;
    sl_json role = event_at(&a, 0, &doc), choice = sl_json_at(sl_json_get(role, "choices"), 0);
    assert_int_equal(number_at(sl_json_get(role, "usage"), "completion_tokens"), 0);
    assert_int_equal(sl_json_count(sl_json_get(role, "prompt_token_ids")), 18);
    assert_null(sl_json_get(choice, "prompt_token_ids").value);
    assert_null(sl_json_get(choice, "token_ids").value);
    sl_json_doc_free(doc);
    sl_json text = event_at(&a, 1, &doc);
    choice = sl_json_at(sl_json_get(text, "choices"), 0);
    size_t n = sl_json_count(sl_json_get(choice, "token_ids"));
    assert_true(n > 0);
    assert_int_equal(number_at(sl_json_get(text, "usage"), "completion_tokens"), n);
    assert_null(sl_json_get(text, "prompt_token_ids").value);
    sl_json_doc_free(doc);
    http_answer_free(&a);
}

static void a_chat_has_one_prompt(void **state) {
    (void)state;
    http_answer a = http_do(port, "POST", CHAT, NULL, ASK(",\"n\":2,\"return_token_ids\":true"));
    sl_json_doc *doc = json_of(a.body.data, a.body.len);
    sl_json root = sl_json_root(doc), choice = sl_json_at(sl_json_get(root, "choices"), 1);
    assert_int_equal(sl_json_count(sl_json_get(root, "prompt_token_ids")), 18);
    assert_null(sl_json_get(choice, "prompt_token_ids").value);
    assert_int_equal(sl_json_count(sl_json_get(choice, "token_ids")), 14);
    sl_json_doc_free(doc);
    http_answer_free(&a);
}

static void hosts_may_have_brackets(void **state) {
    (void)state;
    sl_err err = {0};
    sl_server *other = NULL;
    sl_server_opts o = {
        .engine = engine, .tokenizer = tok, .served_model_name = "m", .host = "[127.0.0.1]"};
    assert_int_equal(sl_server_create(&o, &other, &err), SL_OK);
    assert_non_null(strstr(sl_server_url(other), "http://127.0.0.1:"));
    sl_server_free(other);
    o.host = "[::1]"; /* as in a URL; not every machine has IPv6 */
    sl_status st = sl_server_create(&o, &other, &err);
    assert_true(st == SL_OK || (st == SL_ERR_IO && strstr(err.msg, "cannot listen on ::1")));
    if (st != SL_OK) return;
    assert_non_null(strstr(sl_server_url(other), "http://[::1]:"));
    sl_server_free(other);
}

int main(void) {
    tok = script_tokenizer();
    const struct CMUnitTest tests[] = {
        TEST(the_role_counts_no_token),
        TEST(a_chat_has_one_prompt),
        TEST(hosts_may_have_brackets),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_tokenizer_free(tok);
    return failed;
}
