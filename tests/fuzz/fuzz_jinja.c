/* Any bytes as a template, and after a NUL, any bytes as the JSON of its variables (a short
 * conversation when they are none): parsed and run within its limits or refused with a message, the
 * same twice; what it writes is UTF-8, and every byte has an author. */
#include "jinja/jinja.h"
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define STEPS  200000u
#define MEMORY ((size_t)8 << 20)
#define OUTPUT 65536u
#define DEPTH  300u

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":"
    "\"\\u00e4 "
    "<think>b</"
    "think>c\\n\"},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\","
    "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,true]}}}]},"
    "{\"role\":\"tool\",\"content\":\"r\",\"tool_call_id\":\"1\"}],\"tools\":[{\"type\":"
    "\"function\","
    "\"function\":{\"name\":\"f\",\"parameters\":{}}}],\"add_generation_prompt\":true,\"bos_"
    "token\":"
    "\"<s>\",\"eos_token\":\"</s>\"}";

static sl_status render(const sl_jinja *t, const sl_json_doc *doc, sl_jrun **r, sl_jinja_text *out,
                        sl_err *err) {
    const sl_jinja_limits limits = {STEPS, MEMORY, OUTPUT, DEPTH};
    SL_ASSERT(sl_jrun_create(&limits, r, err) == SL_OK);
    return sl_jinja_render(*r, t, sl_jv_from_json(*r, sl_json_root(doc), true), 1700000000, out,
                           err);
}

static void check(const sl_jinja *t, const sl_json_doc *doc) {
    sl_jrun *run[2] = {NULL};
    sl_jinja_text text[2] = {{0}};
    sl_err err[2] = {{0}};
    sl_status st = render(t, doc, &run[0], &text[0], &err[0]);
    SL_ASSERT(render(t, doc, &run[1], &text[1], &err[1]) == st);
    if (st != SL_OK) {
        SL_ASSERT(err[0].msg[0] && !strcmp(err[0].msg, err[1].msg));
        SL_ASSERT(st == SL_ERR_ARG || st == SL_ERR_UNSUPPORTED || st == SL_ERR_LIMIT);
    } else {
        const sl_span all = {(const uint8_t *)text[0].bytes, text[0].n};
        SL_ASSERT(text[0].n <= OUTPUT && sl_utf8_valid_prefix(all) == all.len);
        SL_ASSERT(text[0].n == text[1].n && !memcmp(text[0].bytes, text[1].bytes, text[0].n));
        for (size_t i = 0; text[0].user && i < text[0].n; i++)
            SL_ASSERT(text[0].user[i] <= 1 && text[0].user[i] == text[1].user[i]);
    }
    sl_jrun_free(run[0]);
    sl_jrun_free(run[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = size ? memchr(data, 0, size) : NULL;
    size_t n = end ? (size_t)(end - data) : size;
    sl_span source = {data, n}, vars = {(const uint8_t *)conversation, sizeof conversation - 1};
    sl_jinja *t = NULL;
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    if (sl_jinja_parse("t", source, &t, &err) != SL_OK) {
        SL_ASSERT(err.msg[0] && !t);
        return 0;
    }
    if (end && sl_json_parse("vars", (sl_span){end + 1, size - n - 1}, &doc, &err) == SL_OK &&
        sl_json_kind_of(sl_json_root(doc)) != SL_JSON_OBJECT) {
        sl_json_doc_free(doc);
        doc = NULL;
    }
    if (!doc) SL_ASSERT(sl_json_parse("vars", vars, &doc, &err) == SL_OK);
    check(t, doc);
    sl_json_doc_free(doc);
    sl_jinja_free(t);
    return 0;
}
