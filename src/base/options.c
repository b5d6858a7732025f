/* Options of all verbs: read from the environment and the command line, printed as help; what is
 * unknown is answered with what may have been meant. */
#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum opt_type { STR, U32, F64, FLAG } opt_type;

#define HELP_COLUMNS 100
#define HELP_INDENT  35
#define NAME_MOST    40 /* of an option, in suggestions */

typedef struct opt_row {
    opt_type type; /* of a title: flag is NULL, help the title */
    size_t offset;
    const char *flag;
    double min, max;
    const char *meta, *verbs, *help;
} opt_row;

static const opt_row rows[] = {
#define SL_OPT_GROUP(title) {.help = title},
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

static const struct {
    const char *name, *flag, *note;
} peer_options[] = {
#define SL_PEER(name, flag, note) {name, flag, note},
#include "base/peer_options.def"
#undef SL_PEER
};

static bool takes(const opt_row *row, char verb) {
    if (!row->flag) return false;
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
        if (!takes(&rows[i], verb)) continue;
        variable_name(rows[i].flag, name, sizeof name);
        const char *value = getenv(name);
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

/* Insertions, removals, exchanges of one letter and of two neighbours that turn a into b. */
static unsigned distance(const char *a, size_t n, const char *b, size_t m) {
    unsigned row[3][NAME_MOST + 1]; /* the last three rows of the table */
    for (size_t j = 0; j <= m; j++) row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *now = row[i % 3], *was = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned differs = a[i - 1] != b[j - 1];
            now[j] = SL_MIN(SL_MIN(now[j - 1], was[j]) + 1, was[j - 1] + differs);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = SL_MIN(now[j], before[j - 2] + 1);
        }
    }
    return row[n % 3][m];
}

/* The verb's option that `name` may be a slip of: one letter in three may be wrong. */
static const opt_row *nearest(char verb, const char *name, size_t len) {
    const opt_row *best = NULL;
    unsigned least = (unsigned)len / 3 + 1;
    for (size_t i = 0; len <= NAME_MOST && i < SL_LEN(rows); i++) {
        if (!takes(&rows[i], verb) || strlen(rows[i].flag) > NAME_MOST) continue;
        unsigned d = distance(name, len, rows[i].flag, strlen(rows[i].flag));
        if (d < least) {
            least = d;
            best = &rows[i];
        }
    }
    return best;
}

static sl_status unknown(char verb, const char *arg, sl_err *err) {
    size_t all = strcspn(arg, "=");
    for (size_t i = 0; i < SL_LEN(peer_options); i++) {
        const char *name = peer_options[i].name, *flag = peer_options[i].flag;
        if (strlen(name) != all || strncmp(arg, name, all) != 0) continue;
        if (flag && find(verb, flag, strlen(flag)))
            return sl_fail(err, SL_ERR_ARG, "unknown option '%s': here it is --%s%s%s (see --help)",
                           name, flag, peer_options[i].note ? "; " : "",
                           peer_options[i].note ? peer_options[i].note : "");
        if (!flag)
            return sl_fail(err, SL_ERR_ARG, "unknown option '%s': %s", name, peer_options[i].note);
    }
    const char *name = arg + strspn(arg, "-");
    size_t len = strcspn(name, "=");
    const opt_row *row = strncmp(arg, "--", 2) == 0 ? nearest(verb, name, len) : NULL;
    if (row)
        return sl_fail(err, SL_ERR_ARG, "unknown option '%s': is --%s meant? (see --help)", arg,
                       row->flag);
    if (len > 1 && find('*', name, len))
        return sl_fail(err, SL_ERR_ARG, "unknown option '%s': other verbs have it (see --help)",
                       arg);
    return sl_fail(err, SL_ERR_ARG, "unknown option '%s' (see --help)", arg);
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
        if (!row) return unknown(verb, argv[i], err);
        if (!value && row->type == FLAG) value = "1";
        if (!value && i + 1 >= argc)
            return sl_fail(err, SL_ERR_ARG, "option '%s' needs %s", argv[i], row->meta);
        char source[80];
        snprintf(source, sizeof source, "--%s", row->flag);
        st = set_value(row, value ? value : argv[++i], out, source, err);
    }
    return st;
}

static void print_default(const opt_row *row, char *out, size_t cap) {
    const void *field = (const char *)&defaults + row->offset;
    *out = 0;
    if (row->type == STR && (*(const char *const *)field)[0])
        snprintf(out, cap, " [%s]", *(const char *const *)field);
    if (row->type == U32 && *(const uint32_t *)field != 0xFFFFFFFF)
        snprintf(out, cap, " [%u; %.0f..%.0f]", *(const uint32_t *)field, row->min, row->max);
    if (row->type == F64)
        snprintf(out, cap, " [%g; %g..%g]", *(const double *)field, row->min, row->max);
}

bool sl_option_at(size_t i, sl_option_about *out) {
    const char *group = "";
    for (size_t r = 0; r < SL_LEN(rows); r++) {
        if (!rows[r].flag) {
            group = rows[r].help;
            continue;
        }
        if (i--) continue;
        *out = (sl_option_about){.group = group,
                                 .flag = rows[r].flag,
                                 .meta = rows[r].meta,
                                 .verbs = rows[r].verbs,
                                 .help = rows[r].help};
        for (size_t s = 0; s < SL_LEN(short_flags); s++)
            if (strcmp(short_flags[s].flag, out->flag) == 0)
                out->shorthand = short_flags[s].shorthand[1];
        print_default(&rows[r], out->range, sizeof out->range);
        variable_name(out->flag, out->variable, sizeof out->variable);
        return true;
    }
    return false;
}

/* Words of `text` from column HELP_INDENT on, `column` being where the line is. */
static void print_wrapped(const char *text, int column, FILE *out) {
    fprintf(out, "%*s", HELP_INDENT - column, "");
    column = HELP_INDENT;
    for (bool first = true; *text; first = false) {
        int n = (int)(*text == '[' ? strlen(text) : strcspn(text, " ")); /* a range stays whole */
        if (!first && column + 1 + n > HELP_COLUMNS) {
            fprintf(out, "\n%*s", HELP_INDENT, "");
            column = HELP_INDENT;
        } else if (!first) {
            fputc(' ', out);
            column++;
        }
        fprintf(out, "%.*s", n, text);
        column += n;
        text += n;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

void sl_options_print(char verb, FILE *out) {
    const char *title = NULL;
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        char help[512], range[64];
        if (!rows[i].flag) title = rows[i].help;
        if (!takes(&rows[i], verb)) continue;
        if (title) fprintf(out, "%s:\n", title);
        title = NULL;
        int n = fprintf(out, "  --%s%s%s", rows[i].flag, rows[i].meta[0] ? " " : "", rows[i].meta);
        if (n >= HELP_INDENT) {
            fputc('\n', out);
            n = 0;
        }
        print_default(&rows[i], range, sizeof range);
        snprintf(help, sizeof help, "%s%s", rows[i].help, range);
        print_wrapped(help, n, out);
    }
}

static const sl_variable_about variables[] = {
#define SL_VARIABLE(id, name, verbs, help) [SL_##id] = {name, verbs, help},
#include "base/variables.def"
#undef SL_VARIABLE
};

sl_variable_about sl_variable_at(sl_variable v) {
    return variables[v];
}

static const char *value_of(sl_variable v) {
    return getenv(variables[v].name);
}

const char *sl_options_secret(void) {
    return value_of(SL_SECRET);
}

const char *sl_options_cuda_driver(void) {
    const char *path = value_of(SL_CUDA_DRIVER);
    return path && path[0] ? path : NULL;
}

const char *sl_options_cuda_forms(void) {
    const char *forms = value_of(SL_CUDA_FORMS);
    return forms && forms[0] ? forms : NULL;
}

const char *sl_options_cuda_graphs(void) {
    const char *graphs = value_of(SL_CUDA_GRAPHS);
    return graphs && graphs[0] ? graphs : NULL;
}

const char *sl_options_cuda_rows(void) {
    const char *how = value_of(SL_CUDA_ROWS);
    return how && how[0] ? how : NULL;
}

const char *sl_options_gather(void) {
    const char *how = value_of(SL_GATHER);
    return how && how[0] ? how : NULL;
}

const char *sl_options_home(void) {
    const char *home = value_of(SL_HOME);
    return home && home[0] == '/' ? home : NULL;
}

/* `name` in the folder of this user's caches. */
static bool cache_folder(const char *name, char *out, size_t cap) {
    const char *cache = value_of(SL_XDG_CACHE_HOME), *home = sl_options_home();
    bool own = cache && cache[0] == '/';
    if (!own && !home) return false;
    int n = own ? snprintf(out, cap, "%s/%s", cache, name)
                : snprintf(out, cap, "%s/.cache/%s", home, name);
    return n > 0 && (size_t)n < cap;
}

bool sl_options_cache_folder(char *out, size_t cap) {
    return cache_folder("sluice", out, cap);
}

static const char *filled(sl_variable v) {
    const char *value = value_of(v);
    return value && value[0] ? value : NULL;
}

const char *sl_options_hub(sl_variable v) {
    return filled(v);
}

const char *sl_options_launcher(sl_variable v) {
    return filled(v);
}

bool sl_options_hub_home(char *out, size_t cap) {
    return cache_folder("huggingface", out, cap);
}

const char *sl_options_notify_socket(void) {
    return value_of(SL_NOTIFY_SOCKET);
}

uint64_t sl_options_watchdog_us(void) {
    const char *us = value_of(SL_WATCHDOG_USEC), *pid = value_of(SL_WATCHDOG_PID);
    if (!us || (pid && strtol(pid, NULL, 10) != getpid())) return 0;
    return strtoull(us, NULL, 10);
}

const char *sl_options_terminal(void) {
    return value_of(SL_TERM);
}
