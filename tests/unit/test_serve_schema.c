/* Schemas as shapes have them: which objects have no properties but those that they list. */
#include "base/mem.h"
#include "serve/shapes_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#define LIST   "\"properties\":{\"a\":{\"type\":\"integer\"}}"
#define CLOSED ",\"additionalProperties\":false"

static sl_json_doc *parse(const char *text) {
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    sl_span span = {(const uint8_t *)text, strlen(text)};
    if (sl_json_parse_within("schema", span, 1u << 20, &doc, &err) != SL_OK)
        fail_msg("%s", err.msg);
    return doc;
}

static void written(const char *text, const char *part, sl_shape_how *how, const char *want) {
    sl_json_doc *doc = parse(text);
    sl_jbuf b = sl_jbuf_init();
    sl_json root = sl_json_root(doc);
    sl_shape_schema(&b, root, part ? sl_json_get(sl_json_get(root, "properties"), part) : root,
                    how);
    assert_true(b.ok);
    assert_int_equal(b.len, strlen(want));
    assert_memory_equal(b.data, want, b.len);
    sl_jbuf_free(&b);
    sl_json_doc_free(doc);
}

static void closed(const char *text, const char *want) {
    sl_shape_how how = {.closed = true}, open = {0};
    written(text, NULL, &how, want);
    assert_int_equal(how.changed, strcmp(text, want) != 0);
    written(text, NULL, &open, text);
    assert_false(open.changed);
}

static void lists_are_closed(void **state) {
    (void)state;
    closed("{" LIST "}", "{" LIST CLOSED "}");
    closed("{\"properties\":{}}", "{\"properties\":{}" CLOSED "}");
    closed("{" LIST ",\"required\":[\"a\"],\"maxProperties\":1}",
           "{" LIST ",\"required\":[\"a\"],\"maxProperties\":1" CLOSED "}");
}

static void at_every_depth(void **state) {
    (void)state;
    closed("{\"type\":\"array\",\"items\":{" LIST "}}",
           "{\"type\":\"array\",\"items\":{" LIST CLOSED "}}");
    closed("{\"prefixItems\":[{" LIST "},true]}", "{\"prefixItems\":[{" LIST CLOSED "},true]}");
    closed("{\"anyOf\":[{" LIST "},{\"type\":\"null\"}]}",
           "{\"anyOf\":[{" LIST CLOSED "},{\"type\":\"null\"}]}");
    closed("{\"properties\":{\"x\":{" LIST "}},\"additionalProperties\":{" LIST "}}",
           "{\"properties\":{\"x\":{" LIST CLOSED "}},\"additionalProperties\":{" LIST CLOSED "}}");
    closed("{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{" LIST "}}}",
           "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{" LIST CLOSED "}}}");
}

/* Who says what else there is, or needs more than it lists, has it. */
static void others_stay_open(void **state) {
    (void)state;
    static const char *const open[] = {
        "{\"type\":\"object\"}",
        "{" LIST ",\"additionalProperties\":true}",
        "{" LIST ",\"additionalProperties\":{\"type\":\"string\"}}",
        "{" LIST ",\"patternProperties\":{\"^x\":true}}",
        "{" LIST ",\"minProperties\":2}",
        "{" LIST ",\"required\":[\"b\"]}",
        "true",
        "{}",
    };
    for (size_t i = 0; i < SL_LEN(open); i++) closed(open[i], open[i]);
}

/* Where several schemas hold of one object none of them knows what the others list. */
static void what_is_put_together_stays_open(void **state) {
    (void)state;
    static const char *const open[] = {
        "{\"allOf\":[{" LIST "},{\"properties\":{\"b\":true}}]}",
        "{\"properties\":{\"x\":{" LIST "},\"y\":{\"allOf\":[{\"$ref\":\"#/properties/x\"}]}}}",
        "{\"not\":{" LIST "}}",
        "{" LIST ",\"anyOf\":[{\"properties\":{\"b\":true}}]}",
        "{" LIST ",\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"properties\":{\"b\":true}}}}",
    };
    for (size_t i = 0; i < SL_LEN(open); i++) closed(open[i], open[i]);
}

/* Values are no schemas, and names no keywords. */
static void values_stay_as_they_are(void **state) {
    (void)state;
    closed("{\"const\":{" LIST "},\"enum\":[{" LIST "}],\"default\":{" LIST "}}",
           "{\"const\":{" LIST "},\"enum\":[{" LIST "}],\"default\":{" LIST "}}");
    closed("{\"properties\":{\"const\":{" LIST "},\"enum\":{" LIST
           "}},\"additionalProperties\":true}",
           "{\"properties\":{\"const\":{" LIST CLOSED "},\"enum\":{" LIST CLOSED
           "}},\"additionalProperties\":true}");
}

static void either_is_said(void **state) {
    (void)state;
    sl_shape_how how = {.closed = true};
    written("{\"oneOf\":[{" LIST "},{\"type\":\"null\"}]}", NULL, &how,
            "{\"oneOf\":[{" LIST CLOSED "},{\"type\":\"null\"}]}");
    assert_true(how.either && how.changed);
}

/* A part takes with it what it may refer to. */
static void parts_bring_definitions(void **state) {
    (void)state;
    static const char text[] =
        "{\"properties\":{\"x\":{\"items\":{\"$ref\":\"#/$defs/n\"}},\"y\":{}},"
        "\"$defs\":{\"n\":{" LIST "}}}";
    sl_shape_how how = {.closed = true}, open = {0};
    written(text, "x", &how,
            "{\"items\":{\"$ref\":\"#/$defs/n\"},\"$defs\":{\"n\":{" LIST CLOSED "}}}");
    assert_true(how.changed);
    written(text, "y", &open, "{\"$defs\":{\"n\":{" LIST "}}}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_closed),
        cmocka_unit_test(at_every_depth),
        cmocka_unit_test(others_stay_open),
        cmocka_unit_test(what_is_put_together_stays_open),
        cmocka_unit_test(values_stay_as_they_are),
        cmocka_unit_test(either_is_said),
        cmocka_unit_test(parts_bring_definitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
