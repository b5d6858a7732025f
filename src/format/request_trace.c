/* Traces of requests: JSON lines and CSV. */
#include "format/workload_file.h"

#include "base/mem.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct sl_trace_reader {
    const char *file;
    sl_trace_request *request;
    double *at_us; /* absolute, beside request */
    size_t n, cap;
    int column[3]; /* CSV: of time, input, output */
    sl_err *err;
} sl_trace_reader;

static sl_status fail_at(const sl_trace_reader *r, size_t line, sl_status code, const char *field,
                         const char *what) {
    return sl_fail(r->err, code, "%.200s:%zu: %s: %s", r->file, line, field, what);
}

static sl_status add_request(sl_trace_reader *r, size_t line, double at_us, uint64_t input,
                             uint64_t output) {
    char what[96];
    if (input > SL_WORKLOAD_MAX_LENGTH || output > SL_WORKLOAD_MAX_LENGTH) {
        bool is_input = input > SL_WORKLOAD_MAX_LENGTH;
        snprintf(what, sizeof what, "%llu tokens, limit %u",
                 (unsigned long long)(is_input ? input : output), SL_WORKLOAD_MAX_LENGTH);
        return fail_at(r, line, SL_ERR_LIMIT, is_input ? "input" : "output", what);
    }
    if (r->n == SL_TRACE_MAX_REQUESTS)
        return fail_at(r, line, SL_ERR_LIMIT, "trace", "more than 20000000 requests");
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 1024;
        sl_trace_request *request = sl_grow(r->request, r->cap, cap, sizeof *request);
        if (request) r->request = request;
        double *at = request ? sl_grow(r->at_us, r->cap, cap, sizeof *at) : NULL;
        if (!at) return sl_fail(r->err, SL_ERR_NOMEM, "%s: no memory", r->file);
        r->at_us = at;
        r->cap = cap;
    }
    r->request[r->n] = (sl_trace_request){.input = input ? (uint32_t)input : 1,
                                          .output = output ? (uint32_t)output : 1};
    r->at_us[r->n++] = at_us;
    return SL_OK;
}

/* ---- JSON lines ---- */

static sl_status read_json_line(sl_trace_reader *r, size_t line, sl_span text) {
    sl_json_doc *doc = NULL;
    char name[256];
    uint64_t input = 0, output = 0;
    double at_ms = 0;
    snprintf(name, sizeof name, "%.200s:%zu", r->file, line);
    sl_status st = sl_json_parse(name, text, &doc, r->err);
    if (st != SL_OK) return st;
    sl_json root = sl_json_root(doc);
    st = sl_json_f64(root, "timestamp", SL_JSON_REQUIRED, 0, 1e15, &at_ms, r->err);
    if (st == SL_OK)
        st = sl_json_u64(root, "input_length", SL_JSON_REQUIRED, 0, SL_WORKLOAD_MAX_LENGTH, &input,
                         r->err);
    if (st == SL_OK)
        st = sl_json_u64(root, "output_length", SL_JSON_REQUIRED, 0, SL_WORKLOAD_MAX_LENGTH,
                         &output, r->err);
    if (st == SL_OK) st = add_request(r, line, at_ms * 1000, input, output);
    sl_json_doc_free(doc);
    return st;
}

/* ---- CSV ---- */

/* Days since 1970-01-01 of a Gregorian date. */
static int64_t days_of(int64_t y, int64_t m, int64_t d) {
    y -= m <= 2;
    int64_t era = y / 400, of_era = y - era * 400;
    int64_t of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* "2023-11-16 18:15:46.6805900", with an optional "+00:00", which is the only offset in use. */
static bool parse_time(const char *text, double *out_us) {
    unsigned y, mo, d, h, mi;
    double s;
    int used = 0;
    if (sscanf(text, "%4u-%2u-%2u%*1[ T]%2u:%2u:%lf%n", &y, &mo, &d, &h, &mi, &s, &used) != 6)
        return false;
    if (text[used] && strcmp(text + used, "+00:00") != 0 && strcmp(text + used, "Z") != 0)
        return false;
    if (y < 1970 || y > 9999 || mo < 1 || mo > 12 || d < 1 || d > 31 || h > 23 || mi > 59)
        return false;
    if (!(s >= 0 && s < 61)) return false;
    *out_us = ((double)days_of(y, mo, d) * 86400 + h * 3600.0 + mi * 60.0 + s) * 1e6;
    return true;
}

/* Cuts at commas; quotes are not used by these files and not understood. */
static size_t split(char *line, char *cell[16]) {
    size_t n = 0;
    for (char *at = line; n < 16; at++) {
        cell[n++] = at;
        at = strchr(at, ',');
        if (!at) break;
        *at = '\0';
    }
    return n;
}

static sl_status read_header(sl_trace_reader *r, char *line) {
    static const char *const names[3] = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"};
    char *cell[16];
    size_t n = split(line, cell);
    for (size_t k = 0; k < 3; k++) {
        r->column[k] = -1;
        for (size_t i = 0; i < n; i++)
            if (strcmp(cell[i], names[k]) == 0) r->column[k] = (int)i;
        if (r->column[k] < 0) return fail_at(r, 1, SL_ERR_FORMAT, names[k], "no such column");
    }
    return SL_OK;
}

static bool parse_count(const char *text, uint64_t *out) {
    char *end;
    if (*text < '0' || *text > '9' || strlen(text) > 18) return false;
    *out = strtoull(text, &end, 10);
    return *end == '\0';
}

static sl_status read_csv_line(sl_trace_reader *r, size_t line, char *text) {
    char *cell[16], what[96];
    uint64_t count[2];
    double at_us;
    size_t n = split(text, cell);
    for (size_t k = 0; k < 3; k++)
        if ((size_t)r->column[k] >= n)
            return fail_at(r, line, SL_ERR_FORMAT, "line", "fewer columns than the first line");
    if (!parse_time(cell[r->column[0]], &at_us)) {
        snprintf(what, sizeof what, "\"%.40s\" is not a time such as 2023-11-16 18:15:46.68",
                 cell[r->column[0]]);
        return fail_at(r, line, SL_ERR_FORMAT, "TIMESTAMP", what);
    }
    for (size_t k = 0; k < 2; k++) {
        if (parse_count(cell[r->column[k + 1]], &count[k])) continue;
        snprintf(what, sizeof what, "\"%.40s\" is not a number of tokens", cell[r->column[k + 1]]);
        return fail_at(r, line, SL_ERR_FORMAT, k ? "GeneratedTokens" : "ContextTokens", what);
    }
    return add_request(r, line, at_us, count[0], count[1]);
}

/* ---- both ---- */

static sl_status read_lines(sl_trace_reader *r, sl_span text, bool csv) {
    char copy[512];
    const uint8_t *at = text.data, *end = text.data + text.len;
    for (size_t line = 1; at < end; line++) {
        const uint8_t *stop = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((stop ? stop : end) - at);
        const uint8_t *begin = at;
        at = stop ? stop + 1 : end;
        if (len && begin[len - 1] == '\r') len--;
        if (len == 0) continue;
        if (len > (csv ? sizeof copy - 1 : SL_TRACE_MAX_LINE))
            return fail_at(r, line, SL_ERR_LIMIT, "line", csv ? "over 511 bytes" : "over 1 MiB");
        sl_status st;
        if (csv) {
            memcpy(copy, begin, len);
            copy[len] = '\0';
            st = line == 1 ? read_header(r, copy) : read_csv_line(r, line, copy);
        } else {
            st = read_json_line(r, line, (sl_span){begin, len});
        }
        if (st != SL_OK) return st;
    }
    return r->n ? SL_OK : sl_fail(r->err, SL_ERR_FORMAT, "%s: no requests", r->file);
}

static int by_time(const void *a, const void *b) {
    const sl_trace_request *x = a, *y = b;
    return (x->at_us > y->at_us) - (x->at_us < y->at_us);
}

sl_status sl_trace_parse(const char *file, sl_span text, bool csv, sl_trace_request **out,
                         size_t *n, sl_err *err) {
    sl_trace_reader r = {.file = file, .err = err};
    double first = 0;
    sl_status st = SL_OK;
    if (csv && (text.len == 0 || text.data[0] == '\n' || text.data[0] == '\r'))
        st = sl_fail(err, SL_ERR_FORMAT, "%s:1: TIMESTAMP: no such column", file);
    if (st == SL_OK) st = read_lines(&r, text, csv);
    for (size_t i = 0; i < r.n; i++)
        if (i == 0 || r.at_us[i] < first) first = r.at_us[i];
    for (size_t i = 0; i < r.n; i++) r.request[i].at_us = (uint64_t)(r.at_us[i] - first + 0.5);
    sl_free(r.at_us);
    if (st != SL_OK) {
        sl_free(r.request);
        return st;
    }
    qsort(r.request, r.n, sizeof *r.request, by_time);
    *out = r.request;
    *n = r.n;
    return SL_OK;
}
