/* Coefficients of FinDEP's problem from JSON. */
#include "format/coeffs.h"

#include "format/json.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MAX_LAYERS  100000u
#define MAX_DEVICES 65536u
#define MAX_TOKENS  (1u << 24)
#define MAX_EXPERTS 65536u
#define MAX_TOP_K   1024u
#define MAX_BATCH   65536u
#define MAX_CHUNKS  4096u
#define MAX_MS      1e9
#define MAX_BYTES   1e18
#define MAX_COUNT   1e15

static sl_status read_line(sl_json root, const char *key, sl_json_need need, sl_findep_line *out,
                           sl_err *err) {
    static const char *const keys[] = {"alpha", "beta", "floor"};
    sl_json v = {0};
    sl_findep_line l = {0};
    bool floor = strcmp(key, "expert") == 0;
    sl_status st = sl_json_object(root, key, need, &v, err);
    if (st != SL_OK || !v.value) return st;
    st = sl_json_only(v, keys, floor ? 3 : 2, err);
    if (st == SL_OK) st = sl_json_f64(v, "alpha", SL_JSON_REQUIRED, 0, MAX_MS, &l.alpha, err);
    if (st == SL_OK) st = sl_json_f64(v, "beta", SL_JSON_REQUIRED, 0, MAX_MS, &l.beta, err);
    if (st == SL_OK) st = sl_json_f64(v, "floor", SL_JSON_OPTIONAL, 0, MAX_MS, &l.floor, err);
    if (st == SL_OK) *out = l;
    return st;
}

static sl_status read_lines(sl_json root, sl_findep_problem *p, sl_err *err) {
    sl_status st = read_line(root, "attn", SL_JSON_REQUIRED, &p->attn, err);
    if (st == SL_OK) st = read_line(root, "shared", SL_JSON_OPTIONAL, &p->shared, err);
    if (st == SL_OK) st = read_line(root, "a2e", SL_JSON_REQUIRED, &p->a2e, err);
    if (st == SL_OK) st = read_line(root, "expert", SL_JSON_REQUIRED, &p->expert, err);
    p->e2a = p->a2e;
    return st == SL_OK ? read_line(root, "e2a", SL_JSON_OPTIONAL, &p->e2a, err) : st;
}

static sl_status read_counts(sl_json root, sl_findep_problem *p, sl_err *err) {
    const struct {
        const char *key;
        sl_json_need need;
        uint32_t min, max, *out;
    } rows[] = {
        {"T", SL_JSON_REQUIRED, 1, MAX_LAYERS, &p->layers},
        {"ag", SL_JSON_REQUIRED, 1, MAX_DEVICES, &p->ag},
        {"eg", SL_JSON_REQUIRED, 1, MAX_DEVICES, &p->eg},
        {"S", SL_JSON_REQUIRED, 1, MAX_TOKENS, &p->tokens},
        {"E", SL_JSON_REQUIRED, 1, MAX_EXPERTS, &p->experts},
        {"top_k", SL_JSON_REQUIRED, 1, MAX_TOP_K, &p->top_k},
        {"batch_per_ag", SL_JSON_REQUIRED, 1, MAX_BATCH, &p->batch_per_ag},
        {"r1_max", SL_JSON_OPTIONAL, 0, MAX_BATCH, &p->r1_max},
        {"r2_max", SL_JSON_REQUIRED, 1, MAX_CHUNKS, &p->r2_max},
    };
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < SL_LEN(rows); i++)
        st = sl_json_u32(root, rows[i].key, rows[i].need, rows[i].min, rows[i].max, rows[i].out,
                         err);
    if (st == SL_OK && p->top_k > p->experts)
        st =
            sl_json_fail(root, "top_k", err, SL_ERR_LIMIT, "%u, but E is %u", p->top_k, p->experts);
    return st;
}

static sl_status read_memory(sl_json root, sl_findep_problem *p, sl_err *err) {
    static const char *const keys[] = {"ag_bytes",       "eg_bytes",     "reserve",   "elt_bytes",
                                       "hidden",         "expert_width", "ag_params", "work_width",
                                       "kv_token_bytes", "generated",    "credits"};
    sl_findep_memory *m = &p->memory;
    double *const field[] = {&m->ag_bytes,       &m->eg_bytes,     &m->reserve,   &m->elt_bytes,
                             &m->hidden,         &m->expert_width, &m->ag_params, &m->work_width,
                             &m->kv_token_bytes, &m->generated,    &m->credits};
    static const double max[] = {MAX_BYTES, MAX_BYTES, 1,         16,        MAX_COUNT, MAX_COUNT,
                                 MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_COUNT, MAX_CHUNKS};
    sl_json v = {0};
    *m = (sl_findep_memory){.reserve = 0.1, .elt_bytes = 2};
    sl_status st = sl_json_object(root, "memory", SL_JSON_OPTIONAL, &v, err);
    if (st != SL_OK || !v.value) return st;
    p->has_memory = true;
    st = sl_json_only(v, keys, SL_LEN(keys), err);
    for (size_t i = 0; st == SL_OK && i < SL_LEN(keys); i++) {
        bool optional = field[i] == &m->reserve || field[i] == &m->elt_bytes ||
                        field[i] == &m->generated || field[i] == &m->credits;
        double min = field[i] == &m->hidden || field[i] == &m->elt_bytes ? 1 : 0;
        st = sl_json_f64(v, keys[i], optional ? SL_JSON_OPTIONAL : SL_JSON_REQUIRED, min, max[i],
                         field[i], err);
    }
    return st;
}

static sl_status read_cut(sl_json root, sl_findep_cut *out, sl_err *err) {
    const char *text = "tokens";
    sl_status st = sl_json_string(root, "chunk_by", SL_JSON_OPTIONAL, &text, err);
    if (st != SL_OK) return st;
    if (strcmp(text, "tokens") == 0)
        *out = SL_FINDEP_CUT_TOKENS;
    else if (strcmp(text, "experts") == 0)
        *out = SL_FINDEP_CUT_EXPERTS;
    else if (strcmp(text, "auto") == 0)
        *out = SL_FINDEP_CUT_EITHER;
    else
        st = sl_json_fail(root, "chunk_by", err, SL_ERR_FORMAT,
                          "'%.40s' is not tokens, experts or auto", text);
    return st;
}

static sl_status read_root(sl_json root, sl_findep_problem *out, sl_err *err) {
    static const char *const keys[] = {
        "T",       "ag",     "eg",       "S",      "E",     "top_k",  "batch_per_ag",
        "r1_max",  "r2_max", "chunk_by", "attn",   "a2e",   "expert", "integer_tokens",
        "comment", "skew",   "e2a",      "shared", "memory"};
    sl_findep_problem p = {.integer_tokens = true, .skew = 1};
    sl_status st = sl_json_only(root, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = read_counts(root, &p, err);
    if (st == SL_OK)
        st = sl_json_bool(root, "integer_tokens", SL_JSON_OPTIONAL, &p.integer_tokens, err);
    if (st == SL_OK) st = sl_json_f64(root, "skew", SL_JSON_OPTIONAL, 1, MAX_DEVICES, &p.skew, err);
    if (st == SL_OK) st = read_cut(root, &p.cut, err);
    if (st == SL_OK) st = read_lines(root, &p, err);
    if (st == SL_OK) st = read_memory(root, &p, err);
    if (st == SL_OK) *out = p;
    return st;
}

static sl_status read_doc(sl_json_doc *doc, sl_status st, sl_findep_problem *out, sl_err *err) {
    if (st == SL_OK) st = read_root(sl_json_root(doc), out, err);
    sl_json_doc_free(doc);
    return st;
}

sl_status sl_coeffs_read(const char *path, sl_findep_problem *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_load(path, SL_COEFFS_MAX_BYTES, &doc, err);
    return read_doc(doc, st, out, err);
}

sl_status sl_coeffs_parse(const char *name, sl_span text, sl_findep_problem *out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse(name, text, &doc, err);
    return read_doc(doc, st, out, err);
}

sl_status sl_coeffs_parse_point(const char *text, sl_findep_point *out, sl_err *err) {
    static const struct {
        const char *name;
        uint32_t max;
    } numbers[] = {{"r1", MAX_BATCH}, {"ma", MAX_BATCH}, {"r2", MAX_CHUNKS}};
    sl_findep_point at = {.order = SL_ORDER_ASAS};
    uint32_t *const field[] = {&at.r1, &at.ma, &at.r2};
    const char *p = text + 4;
    if (strncasecmp(text, "AASS", 4) == 0)
        at.order = SL_ORDER_AASS;
    else if (strncasecmp(text, "ASAS", 4) != 0)
        return sl_fail(err, SL_ERR_ARG, "'%.60s': ASAS,r1,ma,r2 or AASS,r1,ma,r2 expected", text);
    for (size_t i = 0; i < SL_LEN(numbers); i++) {
        char *end = NULL;
        unsigned long v = *p == ',' && p[1] >= '0' && p[1] <= '9' ? strtoul(p + 1, &end, 10) : 0;
        if (!end || v < 1 || v > numbers[i].max)
            return sl_fail(err, SL_ERR_ARG, "'%.60s': %s is a number from 1 to %u", text,
                           numbers[i].name, numbers[i].max);
        *field[i] = (uint32_t)v;
        p = end;
    }
    if (*p) return sl_fail(err, SL_ERR_ARG, "'%.60s': something follows r2", text);
    *out = at;
    return SL_OK;
}
