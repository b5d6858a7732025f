/* A config.json as a string, and what becomes of it with one piece replaced. */
#ifndef CONFIG_TEST_H
#define CONFIG_TEST_H

#include "format/arch.h"
#include "format/hf_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline sl_status config_parse(const char *text, sl_model_spec *m, sl_err *err) {
    return sl_hf_config_parse("config.json", (sl_span){(const uint8_t *)text, strlen(text)}, m,
                              err);
}

/* The spec with its parameters counted; fails the test on an error. */
static inline sl_model_spec config_read(const char *text) {
    sl_model_spec m;
    sl_err err = {0};
    if (config_parse(text, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_arch_count_params(sl_arch_find(m.arch), &m);
    return m;
}

/* The text with its first `from` replaced; for free(). */
static inline char *config_edit(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at) fail_msg("no %s", from);
    char *out = calloc(strlen(text) + strlen(to) + 1, 1);
    if (!out) abort();
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static inline sl_model_spec config_read_edited(const char *text, const char *from, const char *to) {
    char *edited = config_edit(text, from, to);
    sl_model_spec m = config_read(edited);
    free(edited);
    return m;
}

/* The edited text is refused with a message that starts as said and leaves the spec alone. */
static inline void config_refused(const char *text, const char *from, const char *to,
                                  sl_status code, const char *message) {
    char *edited = config_edit(text, from, to), want[256];
    sl_model_spec m = {.n_layers = 7};
    sl_err err = {0};
    sl_status st = config_parse(edited, &m, &err);
    snprintf(want, sizeof want, "config.json: %s", message);
    if (st != code || strncmp(err.msg, want, strlen(want)) != 0)
        fail_msg("%s\n got %d \"%s\"\nwant %d \"%s\"", to, st, err.msg, code, want);
    assert_int_equal(m.n_layers, 7);
    free(edited);
}

#endif
