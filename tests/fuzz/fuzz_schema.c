/* Any JSON as a schema: compiled, with masks that say what bytes say, or refused with a message. */
#include "grammar_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_json_doc *doc = NULL;
    const sl_vocab *v = fuzz_vocab();
    sl_grammar *g = NULL;
    sl_err err = {0};
    if (size > 16384 || sl_json_parse("schema", (sl_span){data, size}, &doc, &err) != SL_OK)
        return 0;
    const sl_status st =
        sl_grammar_of_schema(v, sl_json_root(doc), (sl_json_space)(size % 2), &g, &err);
    fuzz_made(st, g, v, &err, 24);
    sl_json_doc_free(doc);
    return 0;
}
