/* The writer of YAML for Kubernetes. A JSON string is one of YAML, so texts are written as such. */
#include "manifest.h"

#include "cmd.h"

#include <string.h>

#define INDENT 2

static void begin(sl_manifest *m) {
    fprintf(m->out, "%*s%s", INDENT * (m->depth - m->dash), "", m->dash ? "- " : "");
    m->dash = false;
}

static void put(sl_manifest *m, const char *text) {
    sl_print_json_string(m->out, text, strlen(text));
    fputc('\n', m->out);
}

void sl_manifest_open(sl_manifest *m, const char *key) {
    begin(m);
    fprintf(m->out, "%s:\n", key);
    m->depth++;
}

void sl_manifest_close(sl_manifest *m) {
    m->depth--;
}

void sl_manifest_item(sl_manifest *m) {
    m->dash = true;
    m->depth++;
}

void sl_manifest_document(sl_manifest *m) {
    fputs("---\n", m->out);
}

void sl_manifest_text(sl_manifest *m, const char *key, const char *value) {
    begin(m);
    fprintf(m->out, "%s: ", key);
    put(m, value);
}

void sl_manifest_number(sl_manifest *m, const char *key, uint64_t value) {
    begin(m);
    fprintf(m->out, "%s: %llu\n", key, (unsigned long long)value);
}

void sl_manifest_flag(sl_manifest *m, const char *key, bool value) {
    begin(m);
    fprintf(m->out, "%s: %s\n", key, value ? "true" : "false");
}

void sl_manifest_word(sl_manifest *m, const char *value) {
    fprintf(m->out, "%*s- ", INDENT * m->depth, "");
    put(m, value);
}

void sl_manifest_empty(sl_manifest *m, const char *key) {
    begin(m);
    fprintf(m->out, "%s: {}\n", key);
}
