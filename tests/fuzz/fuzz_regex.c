/* Any bytes as a regular expression of a whole text, and as the pattern of a string: compiled, with
 * masks that say what bytes say, or refused with a message. */
#include "grammar_fuzz.h"
#include "serve/jbuf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const sl_vocab *v = fuzz_vocab();
    sl_grammar *g = NULL;
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    if (size > 2048) return 0;
    sl_status st = sl_grammar_of_regex(v, (sl_span){data, size}, &g, &err);
    fuzz_made(st, g, v, &err, 12);
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"type\":\"string\",\"maxLength\":9,\"pattern\":");
    sl_jbuf_string(&b, (const char *)data, size);
    sl_jbuf_put(&b, "}", 1);
    if (sl_json_parse("schema", (sl_span){(uint8_t *)b.data, b.len}, &doc, &err) == SL_OK) {
        g = NULL;
        st = sl_grammar_of_schema(v, sl_json_root(doc), SL_JSON_SPACE_NONE, &g, &err);
        fuzz_made(st, g, v, &err, 12);
    }
    sl_json_doc_free(doc);
    sl_jbuf_free(&b);
    return 0;
}
