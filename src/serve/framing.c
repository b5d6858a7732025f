/* Requests whose end another reader may see elsewhere. When a proxy in front and this server
 * disagree about where a request ends, a client can hide a second one in the first. So the head of
 * a request has to be exactly as RFC 9112 writes it, or it is answered 400 and the connection is
 * closed.
 *
 * libmicrohttpd takes much more than that, but it leaves a head where it arrived: it writes zeros
 * over the ends of lines and over colons, and hands out pointers between them. Lines of the form
 * NAME ":" VALUE CR LF account for every byte from the first to the last; one that ended in a lone
 * LF, was folded or has a zero in it does not. */
#include "serve/server_int.h"

/* libmicrohttpd 1.0 can be told to be strict (MHD_OPTION_CLIENT_DISCIPLINE_LVL), and strips ends of
 * lines. */
#define STRIPS_LINES (MHD_VERSION >= 0x01000000)

typedef struct head {
    const char *at; /* where the next line has to begin */
    const char *fault;
    unsigned n_host, n_length, n_coding;
} head;

static bool is_token(const char *s, size_t n) {
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        bool letter = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z');
        if (!letter && !(s[i] >= '0' && s[i] <= '9') && (!s[i] || !strchr(marks, s[i])))
            return false;
    }
    return n > 0;
}

static bool is_text(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 0x7f) return false;
    return true;
}

static bool ends_line(const char *s) {
    return STRIPS_LINES || (s[0] == 0 && s[1] == 0);
}

static const char *fault_of_line(head *h, const char *name, size_t n_name, const char *value,
                                 size_t n_value) {
    const char *space = name + n_name + 1;
    if (!is_token(name, n_name)) return "the name of a header is not a token";
    if (!is_text(value, n_value)) return "a header has control characters";
    if (!STRIPS_LINES && name != h->at) return "a line is folded, or does not end in CR LF";
    while (!STRIPS_LINES && space < value && (*space == ' ' || *space == '\t')) space++;
    if (!STRIPS_LINES && space != value) return "a header is not written as NAME: VALUE";
    if (!ends_line(value + n_value)) return "a line does not end in CR LF";
    h->at = value + n_value + 2;
    if (!strcasecmp(name, MHD_HTTP_HEADER_HOST)) {
        if (h->n_host++ > 0) return "two Host headers";
        if (value[strcspn(value, " \t,/@")]) return "Host is not one name";
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        if (h->n_length++ > 0) return "two Content-Length headers";
    } else if (!strcasecmp(name, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        if (h->n_coding++ > 0) return "two Transfer-Encoding headers";
        if (strcasecmp(value, "chunked") != 0) return "Transfer-Encoding is not \"chunked\"";
    }
    return NULL;
}

static enum MHD_Result read_line(void *cls, enum MHD_ValueKind kind, const char *name,
                                 size_t n_name, const char *value, size_t n_value) {
    (void)kind;
    head *h = cls;
    h->fault = fault_of_line(h, name, n_name, value ? value : name + n_name, n_value);
    return h->fault ? MHD_NO : MHD_YES;
}

static const char *fault_of_first_line(head *h, const char *method, const char *url,
                                       const char *version) {
    if (!is_token(method, strlen(method))) return "the method is not a token";
    if (!STRIPS_LINES && url != method + strlen(method) + 1) return "spaces before the path";
    if (strcmp(version, MHD_HTTP_VERSION_1_1) != 0 && strcmp(version, MHD_HTTP_VERSION_1_0) != 0)
        return "the version is neither HTTP/1.1 nor HTTP/1.0";
    if (!ends_line(version + strlen(version))) return "the first line does not end in CR LF";
    h->at = version + strlen(version) + 2;
    return NULL;
}

static const char *fault_of_whole(const head *h, const char *method, const char *version,
                                  const union MHD_ConnectionInfo *size) {
    bool newer = strcmp(version, MHD_HTTP_VERSION_1_0) != 0;
    if (!STRIPS_LINES && (!size || method + size->header_size != h->at + 2))
        return "a line is folded, or does not end in CR LF";
    if (newer && h->n_host == 0) return "no Host header";
    if (h->n_coding > 0 && h->n_length > 0) return "Content-Length and Transfer-Encoding";
    if (h->n_coding > 0 && !newer) return "Transfer-Encoding in HTTP/1.0";
    return NULL;
}

bool sl_framing_target_is_clean(const char *target) {
    for (const char *s = target; *s; s++)
        if ((unsigned char)*s <= ' ' || *s == 0x7f || !strncmp(s, "%00", 3)) return false;
    return true;
}

const char *sl_framing_fault(struct MHD_Connection *c, const char *method, const char *url,
                             const char *version, bool *chunked) {
    head h = {0};
    const char *fault = fault_of_first_line(&h, method, url, version);
    if (!fault) {
        MHD_get_connection_values_n(c, MHD_HEADER_KIND, read_line, &h);
        fault = h.fault;
    }
    if (!fault)
        fault = fault_of_whole(&h, method, version,
                               MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE));
    *chunked = h.n_coding > 0;
    return fault;
}
