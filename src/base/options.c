#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum opt_type { STR, U32, F64, FLAG } opt_type;

typedef struct opt_row {
    opt_type type;
    size_t offset;
    const char *flag;
    double min, max;
    const char *meta, *verbs, *help;
} opt_row;

static const opt_row rows[] = {
#define SL_OPT(type, field, flag, def, min, max, meta, verbs, help)                                \
    {type, offsetof(sl_options, field), flag, min, max, meta, verbs, help},
#include "base/config.def"
#undef SL_OPT
};

static const sl_options defaults = {
#define SL_OPT(type, field, flag, def, min, max, meta, verbs, help) .field = def,
#include "base/config.def"
#undef SL_OPT
};

static const struct {
    const char *shorthand, *flag;
} short_flags[] = {
    {"-p", "prompt"}, {"-n", "max-tokens"}, {"-t", "threads"}, {"-o", "out"}, {"-h", "help"}};

static bool takes(const opt_row *row, char verb) {
    return verb == '*' || strchr(row->verbs, verb) != NULL;
}

static sl_status set_number(const opt_row *row, const char *value, void *field, const char *source,
                            sl_err *err) {
    char *end = NULL;
    errno = 0;
    double v = strtod(value, &end);
    bool whole = row->type == F64 || v == floor(v);
    if (end == value || *end || errno || !(v >= row->min && v <= row->max) || !whole)
        return sl_fail(err, SL_ERR_ARG, "%s: '%s' is not %s from %.10g to %.10g", source, value,
                       row->type == F64 ? "a number" : "a whole number", row->min, row->max);
    if (row->type == F64)
        *(double *)field = v;
    else
        *(uint32_t *)field = (uint32_t)v;
    return SL_OK;
}

static sl_status set_flag(const char *value, bool *field, const char *source, sl_err *err) {
    bool on = strcmp(value, "1") == 0 || strcmp(value, "true") == 0;
    if (!on && strcmp(value, "0") != 0 && strcmp(value, "false") != 0)
        return sl_fail(err, SL_ERR_ARG, "%s: '%s' is not 0, 1, false or true", source, value);
    *field = on;
    return SL_OK;
}

static sl_status set_value(const opt_row *row, const char *value, sl_options *o, const char *source,
                           sl_err *err) {
    void *field = (char *)o + row->offset;
    switch (row->type) {
    case STR:
        *(const char **)field = value;
        return SL_OK;
    case FLAG:
        return set_flag(value, field, source, err);
    case U32:
    case F64:
        return set_number(row, value, field, source, err);
    }
    return SL_ERR_INTERNAL;
}

static void variable_name(const char *flag, char *out, size_t cap) {
    size_t n = (size_t)snprintf(out, cap, "SLUICE_%s", flag);
    for (size_t i = 0; i < n && i < cap; i++) {
        out[i] = out[i] == '-' ? '_' : (char)toupper((unsigned char)out[i]);
    }
}

static sl_status read_environment(char verb, sl_options *o, sl_err *err) {
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        char name[64];
        variable_name(rows[i].flag, name, sizeof name);
        const char *value = takes(&rows[i], verb) ? getenv(name) : NULL;
        if (!value) continue;
        sl_status st = set_value(&rows[i], value, o, name, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

static const opt_row *find(char verb, const char *name, size_t len) {
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        if (takes(&rows[i], verb) && strlen(rows[i].flag) == len &&
            strncmp(rows[i].flag, name, len) == 0)
            return &rows[i];
    }
    return NULL;
}

static const opt_row *match(char verb, const char *arg, const char **value) {
    *value = NULL;
    for (size_t i = 0; i < SL_LEN(short_flags); i++) {
        if (strcmp(arg, short_flags[i].shorthand) == 0)
            return find(verb, short_flags[i].flag, strlen(short_flags[i].flag));
    }
    if (strncmp(arg, "--", 2) != 0) return NULL;
    const char *eq = strchr(arg, '=');
    if (eq) *value = eq + 1;
    return find(verb, arg + 2, eq ? (size_t)(eq - arg - 2) : strlen(arg + 2));
}

sl_status sl_options_parse(char verb, int argc, char **argv, sl_options *out, sl_err *err) {
    *out = defaults;
    sl_status st = read_environment(verb, out, err);
    bool only_args = false;
    for (int i = 0; st == SL_OK && i < argc; i++) {
        if (only_args || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (out->n_args == SL_LEN(out->arg))
                return sl_fail(err, SL_ERR_ARG, "unexpected argument '%s'", argv[i]);
            out->arg[out->n_args++] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--") == 0) {
            only_args = true;
            continue;
        }
        const char *value;
        const opt_row *row = match(verb, argv[i], &value);
        if (!row) return sl_fail(err, SL_ERR_ARG, "unknown option '%s' (see --help)", argv[i]);
        if (!value && row->type == FLAG) value = "1";
        if (!value && i + 1 >= argc)
            return sl_fail(err, SL_ERR_ARG, "option '%s' needs %s", argv[i], row->meta);
        char source[80];
        snprintf(source, sizeof source, "--%s", row->flag);
        st = set_value(row, value ? value : argv[++i], out, source, err);
    }
    return st;
}

static void print_default(const opt_row *row, FILE *out) {
    const void *field = (const char *)&defaults + row->offset;
    if (row->type == STR && (*(const char *const *)field)[0])
        fprintf(out, " [%s]", *(const char *const *)field);
    if (row->type == U32 && *(const uint32_t *)field != 0xFFFFFFFF)
        fprintf(out, " [%u; %.0f..%.0f]", *(const uint32_t *)field, row->min, row->max);
    if (row->type == F64) fprintf(out, " [%g; %g..%g]", *(const double *)field, row->min, row->max);
}

void sl_options_print(char verb, FILE *out) {
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        if (!takes(&rows[i], verb)) continue;
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", rows[i].flag, rows[i].meta[0] ? " " : "",
                 rows[i].meta);
        fprintf(out, "  %-32s %s", left, rows[i].help);
        print_default(&rows[i], out);
        fputc('\n', out);
    }
}

const char *sl_options_secret(void) {
    return getenv("SLUICE_SECRET");
}

bool sl_options_cache_folder(char *out, size_t cap) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool own = cache && cache[0] == '/';
    if (!own && (!home || home[0] != '/')) return false;
    int n =
        own ? snprintf(out, cap, "%s/sluice", cache) : snprintf(out, cap, "%s/.cache/sluice", home);
    return n > 0 && (size_t)n < cap;
}

const char *sl_options_terminal(void) {
    return getenv("TERM");
}
