/* Bodies of POST /plan to arguments of `sluice plan`. Names of files are never taken: a model is
 * the served one or a preset, clusters and workloads are presets or described in the body. */
#include "serve/form.h"
#include "serve/plan.h"

#include "base/mem.h"
#include "format/cluster_file.h"
#include "format/json.h"
#include "format/presets.h"
#include "format/workload_file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_WORD       64u
#define MAX_LIST       16u /* names in a list */
#define FD_TEXT(fd)    #fd
#define FD_TEXT_OF(fd) FD_TEXT(fd)
#define FD_PATH(fd)    "/dev/fd/" FD_TEXT_OF(fd)

/* Fields that are options as they stand: the planner checks their values. */
static const struct field {
    const char *name, *option;
    enum { WORD, NUMBER, FLAG, LIST } kind;
} fields[] = {
    {"objective", "--objective", WORD},       {"slo_tpot", "--slo-tpot", WORD},
    {"slo_ttft", "--slo-ttft", WORD},         {"context", "--context", WORD},
    {"reserve", "--reserve", NUMBER},         {"top", "--top", NUMBER},
    {"decode_only", "--decode-only", FLAG},   {"runnable", "--runnable", FLAG},
    {"as_published", "--as-published", FLAG}, {"only", "--only", LIST},
    {"speculate", "--speculate", WORD},
};

/* Fields that are more than an option. */
static const char *const others[] = {"model", "cluster", "workload", "measured"};

const char *sl_plan_request_field(const char *text) {
    for (size_t i = 0; i < SL_LEN(fields); i++) {
        size_t n = strlen(fields[i].option);
        if (!strncmp(text, fields[i].option, n) && (text[n] == ':' || text[n] == ' '))
            return fields[i].name;
    }
    return NULL;
}

void sl_plan_request_free(sl_plan_request *r) {
    for (size_t i = 0; i < r->n_args; i++) sl_free(r->arg[i]);
    sl_free(r->cluster);
    sl_free(r->workload);
    *r = (sl_plan_request){0};
}

static sl_status add(sl_plan_request *r, const char *text, sl_api_error *e) {
    SL_ASSERT(r->n_args + 1 < SL_PLAN_MAX_ARGS); /* NULL ends it */
    r->arg[r->n_args] = sl_strdup(text);
    if (!r->arg[r->n_args]) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, "out of memory");
    r->n_args++;
    return SL_OK;
}

static sl_status add_pair(sl_plan_request *r, const char *option, const char *value,
                          sl_api_error *e) {
    sl_status st = add(r, option, e);
    return st == SL_OK ? add(r, value, e) : st;
}

/* ---- one option ---- */

/* Text without control characters, as a word of a command line. */
static bool is_word(const char *s) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ') return false;
    return n > 0 && n <= MAX_WORD;
}

static sl_status read_word(sl_json v, const char *name, char out[MAX_WORD + 1], sl_api_error *e) {
    sl_span s;
    uint64_t n;
    if (sl_json_as_u64(v, &n)) {
        snprintf(out, MAX_WORD + 1, "%" PRIu64, n);
        return SL_OK;
    }
    bool text =
        sl_json_as_span(v, &s) && s.len <= MAX_WORD && s.len == strlen((const char *)s.data);
    snprintf(out, MAX_WORD + 1, "%s", text ? (const char *)s.data : "");
    if (text && is_word(out)) return SL_OK;
    return sl_api_error_bad(e, name, "%s: must be a string of 1 to %u characters", name, MAX_WORD);
}

/* ["ep", "findep"] as "ep,findep" */
static sl_status read_list(sl_json v, const char *name, char *out, size_t cap, sl_api_error *e) {
    size_t at = 0, n = sl_json_count(v);
    if (sl_json_kind_of(v) != SL_JSON_ARRAY || n == 0 || n > MAX_LIST)
        return sl_api_error_bad(e, name, "%s: must be an array of 1 to %u names", name, MAX_LIST);
    for (size_t i = 0; i < n; i++) {
        char word[MAX_WORD + 1];
        sl_status st = read_word(sl_json_at(v, i), name, word, e);
        if (st != SL_OK) return st;
        if (strchr(word, ',') || at + strlen(word) + 2 > cap)
            return sl_api_error_bad(e, name, "%s: \"%.40s\" is no name of a schedule", name, word);
        at += (size_t)snprintf(out + at, cap - at, "%s%s", i ? "," : "", word);
    }
    return SL_OK;
}

static sl_status add_field(const struct field *f, sl_json v, sl_plan_request *r, sl_api_error *e) {
    char text[512];
    bool on;
    double x;
    sl_status st = SL_OK;
    switch (f->kind) {
    case FLAG:
        if (!sl_json_as_bool(v, &on))
            return sl_api_error_bad(e, f->name, "%s: must be true or false", f->name);
        return on ? add(r, f->option, e) : SL_OK;
    case NUMBER:
        if (!sl_json_as_f64(v, &x))
            return sl_api_error_bad(e, f->name, "%s: must be a number", f->name);
        snprintf(text, sizeof text, "%.15g", x);
        break;
    case LIST:
        st = read_list(v, f->name, text, sizeof text, e);
        break;
    case WORD:
        st = read_word(v, f->name, text, e);
        break;
    }
    return st == SL_OK ? add_pair(r, f->option, text, e) : st;
}

static bool is_known(const char *name) {
    for (size_t i = 0; i < SL_LEN(others); i++)
        if (!strcmp(others[i], name)) return true;
    for (size_t i = 0; i < SL_LEN(fields); i++)
        if (!strcmp(fields[i].name, name)) return true;
    return false;
}

static sl_status refuse_unknown(sl_json root, sl_api_error *e) {
    const char *name;
    sl_json v;
    for (void *iter = NULL; sl_json_next(root, &iter, &name, &v);)
        if (!is_known(name) && sl_json_kind_of(v) != SL_JSON_NULL)
            return sl_api_error_bad(e, name, "%.60s: unknown field", name);
    return SL_OK;
}

/* ---- what is described ---- */

/* An object as text, with a name of its own. NULL: no memory. */
static char *text_of(sl_json v, bool named) {
    json_t *copy = json_copy((json_t *)(uintptr_t)v.value);
    bool ok = copy && (!named || json_object_get(copy, "name") ||
                       json_object_set_new(copy, "name", json_string("described")) == 0);
    char *dump = ok ? json_dumps(copy, 0) : NULL;
    char *text = dump ? sl_strdup(dump) : NULL;
    free(dump);
    json_decref(copy);
    return text;
}

static sl_span span_of(const char *text) {
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

/* A description is one line, whose number says nothing: "cluster:1: count ..." loses it. */
static sl_status refuse_text(sl_api_error *e, const char *field, const sl_err *err) {
    const char *msg = err->msg;
    size_t n = strlen(field);
    if (!strncmp(msg, field, n) && !strncmp(msg + n, ":1: ", 4)) msg += n + 4;
    return sl_api_error_bad(e, field, "%s: %s", field, msg);
}

static sl_status check_cluster(const char *text, sl_api_error *e) {
    sl_err err;
    sl_cluster *c = sl_alloc(1, sizeof *c);
    if (!c) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, "out of memory");
    sl_status st = sl_cluster_parse("cluster", "described", span_of(text), c, &err);
    uint64_t devices = st == SL_OK ? sl_cluster_devices(c) : 0;
    sl_free(c);
    if (st != SL_OK) return refuse_text(e, "cluster", &err);
    if (devices <= SL_PLAN_MAX_DEVICES) return SL_OK;
    return sl_api_error_bad(e, "cluster",
                            "cluster: %" PRIu64 " devices, limit %u here (sluice plan has none)",
                            devices, SL_PLAN_MAX_DEVICES);
}

static sl_status check_workload(const char *text, sl_api_error *e) {
    sl_err err;
    sl_workload w = {0};
    sl_status st = sl_workload_parse("workload", span_of(text), &w, &err);
    sl_workload_free(&w);
    return st == SL_OK ? SL_OK : refuse_text(e, "workload", &err);
}

/* The name of a preset, or an object. */
static sl_status read_described(sl_json v, const char *field, const char *option, const char *path,
                                const char *(*preset)(const char *),
                                sl_status (*check)(const char *, sl_api_error *), char **text,
                                sl_plan_request *r, sl_api_error *e) {
    char name[MAX_WORD + 1];
    if (sl_json_kind_of(v) == SL_JSON_OBJECT) {
        *text = text_of(v, check == check_cluster);
        if (!*text) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, "out of memory");
        sl_status st = check(*text, e);
        return st == SL_OK ? add_pair(r, option, path, e) : st;
    }
    if (sl_json_kind_of(v) != SL_JSON_STRING)
        return sl_api_error_bad(e, field, "%s: must be the name of a preset, or an object", field);
    sl_status st = read_word(v, field, name, e);
    if (st == SL_OK && !preset(name))
        return sl_api_error_bad(e, field, "%s: \"%s\" is no preset; GET /plan/options lists them",
                                field, name);
    return st == SL_OK ? add_pair(r, option, name, e) : st;
}

static sl_status read_cluster(sl_json root, const sl_plan_offer *offer, bool measured,
                              sl_plan_request *r, sl_api_error *e) {
    sl_json v = sl_json_get(root, "cluster");
    char own[1024];
    if (sl_json_kind_of(v) != SL_JSON_ABSENT && sl_json_kind_of(v) != SL_JSON_NULL)
        return read_described(v, "cluster", "--cluster", FD_PATH(SL_PLAN_CLUSTER_FD),
                              sl_preset_cluster_text, check_cluster, &r->cluster, r, e);
    if (!measured)
        return sl_api_error_bad(e, "cluster",
                                "cluster: missing: the name of a preset, or an object");
    if (!sl_plan_measured_cluster(offer->costs, own, sizeof own))
        return sl_api_error_of(e, SL_ERR_INTERNAL, "measured", "the profile is not shown");
    r->cluster = sl_strdup(own);
    if (!r->cluster) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, "out of memory");
    return add_pair(r, "--cluster", FD_PATH(SL_PLAN_CLUSTER_FD), e);
}

static sl_status read_workload(sl_json root, sl_plan_request *r, sl_api_error *e) {
    sl_json v = sl_json_get(root, "workload");
    if (sl_json_kind_of(v) == SL_JSON_ABSENT || sl_json_kind_of(v) == SL_JSON_NULL) return SL_OK;
    if (sl_json_kind_of(sl_json_get(v, "trace")) != SL_JSON_ABSENT)
        return sl_api_error_bad(e, "workload",
                                "workload: trace: files of this machine are not read "
                                "for clients; give input and output");
    return read_described(v, "workload", "--workload", FD_PATH(SL_PLAN_WORKLOAD_FD),
                          sl_preset_workload_text, check_workload, &r->workload, r, e);
}

static sl_status read_model(sl_json root, const sl_plan_offer *offer, sl_plan_request *r,
                            sl_api_error *e) {
    sl_json v = sl_json_get(root, "model");
    char name[256] = "";
    sl_span s;
    if (sl_json_kind_of(v) == SL_JSON_ABSENT || sl_json_kind_of(v) == SL_JSON_NULL)
        return add(r, offer->path, e);
    if (sl_json_as_span(v, &s) && s.len < sizeof name)
        snprintf(name, sizeof name, "%s", (const char *)s.data);
    if (!strcmp(name, offer->model)) return add(r, offer->path, e);
    const sl_shape *preset = sl_preset_model(name);
    if (preset) return add(r, preset->name, e);
    return sl_api_error_bad(e, "model",
                            "model: \"%.60s\" is neither served (%.60s is) nor a preset; "
                            "GET /plan/options lists them",
                            name, offer->model);
}

static sl_status read_root(sl_json root, const sl_plan_offer *offer, sl_plan_request *r,
                           sl_api_error *e) {
    bool measured = false;
    sl_err err;
    if (sl_json_kind_of(root) != SL_JSON_OBJECT)
        return sl_api_error_bad(e, NULL, "the body is not an object");
    sl_status st = refuse_unknown(root, e);
    if (st == SL_OK && sl_json_bool(root, "measured", SL_JSON_OPTIONAL, &measured, &err) != SL_OK)
        st = sl_api_error_bad(e, "measured", "measured: must be true or false");
    if (st == SL_OK && measured && !offer->profile)
        st = sl_api_error_bad(e, "measured",
                              "measured: the server has no profile (serve --profile)");
    if (st == SL_OK) st = add(r, "sluice", e);
    if (st == SL_OK) st = add(r, "plan", e);
    if (st == SL_OK) st = read_model(root, offer, r, e);
    if (st == SL_OK) st = read_cluster(root, offer, measured, r, e);
    if (st == SL_OK && measured) st = add_pair(r, "--profile", offer->profile, e);
    if (st == SL_OK) st = read_workload(root, r, e);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(fields); i++) {
        sl_json v = sl_json_get(root, fields[i].name);
        if (sl_json_kind_of(v) != SL_JSON_ABSENT && sl_json_kind_of(v) != SL_JSON_NULL)
            st = add_field(&fields[i], v, r, e);
    }
    if (st == SL_OK) st = add(r, "--json", e);
    if (st == SL_OK) st = add(r, "--plans", e);
    if (st == SL_OK) st = add_pair(r, "--report-fd", FD_TEXT_OF(SL_PLAN_REPORT_FD), e);
    return st;
}

sl_status sl_plan_request_parse(sl_span body, const sl_plan_offer *offer, sl_plan_request *out,
                                sl_api_error *e) {
    sl_json_doc *doc = NULL;
    sl_plan_request r = {0};
    sl_err err;
    if (body.len > SL_PLAN_MAX_BODY)
        return sl_api_error_bad(e, NULL, "request body: %zu bytes, limit %zu here", body.len,
                                SL_PLAN_MAX_BODY);
    sl_status st = sl_json_parse("request body", body, &doc, &err);
    if (st != SL_OK) return sl_api_error_bad(e, NULL, "%s", err.msg);
    st = read_root(sl_json_root(doc), offer, &r, e);
    sl_json_doc_free(doc);
    if (st != SL_OK)
        sl_plan_request_free(&r);
    else
        *out = r;
    return st;
}

/* ---- the same as a JSON Schema ---- */

void sl_plan_request_schema(sl_jbuf *b) {
    sl_schema_open(b);
    for (size_t i = 0; i < SL_LEN(others); i++) {
        sl_schema_name(b, others[i]);
        sl_jbuf_put(b, "{}", 2);
    }
    for (size_t i = 0; i < SL_LEN(fields); i++) {
        sl_schema_name(b, fields[i].name);
        switch (fields[i].kind) {
        case WORD:
            sl_jbuf_fmt(b,
                        "{\"type\":[\"string\",\"integer\",\"null\"],\"minLength\":1,"
                        "\"maxLength\":%u,\"minimum\":0}",
                        MAX_WORD);
            break;
        case NUMBER:
            sl_jbuf_fmt(b, "{\"type\":[\"number\",\"null\"]}");
            break;
        case FLAG:
            sl_jbuf_fmt(b, "{\"type\":[\"boolean\",\"null\"]}");
            break;
        case LIST:
            sl_jbuf_fmt(b,
                        "{\"type\":[\"array\",\"null\"],\"minItems\":1,\"maxItems\":%u,"
                        "\"items\":{\"type\":[\"string\",\"integer\"]}}",
                        MAX_LIST);
            break;
        }
    }
    sl_schema_close(b, NULL, 0);
}
