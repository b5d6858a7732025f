/* Requests to the hub over libcurl, several at once, driven by one thread.
 *
 * TLS is verified. Redirections are followed here, at most five, never from https to http, and the
 * token goes to the endpoint's own host and port alone. Nothing waits without a deadline: 20 s for
 * a connection, 30 s for the next byte. Thread: owner. */
#ifndef SL_HUB_CURL_HTTP_H
#define SL_HUB_CURL_HTTP_H

#include "hub/hub_int.h"

typedef struct sl_hub_http sl_hub_http;

/* One request and its answer; its memory is the caller's, and stays where it is while it runs. */
typedef struct sl_hub_call {
    /* by the caller */
    uint64_t from, bytes; /* of a range; bytes 0: the whole */
    uint64_t total;       /* of the file that the range is of */
    bool (*on_body)(void *ctx, const uint8_t *bytes, size_t n); /* false: stop */
    void *ctx;
    /* when it has ended */
    sl_status st; /* SL_OK: an answer came as a whole, with whatever status */
    sl_err err;
    unsigned status;
    char code[48];    /* X-Error-Code */
    char next[2048];  /* the next page, by Link; "": none */
    unsigned retry_s; /* Retry-After; 0: none */
    bool no_ranges;   /* the server sends the whole where a range was asked for */
    bool stopped;     /* by on_body */
    /* http.c's */
    void *easy, *headers;
    char *url;
    unsigned hops;
    bool ranged; /* the answer has Content-Range that fits */
} sl_hub_call;

sl_status sl_hub_http_create(const sl_hub_settings *s, sl_hub_http **out,
                             sl_err *err) SL_MUST_CHECK;
void sl_hub_http_free(sl_hub_http *h); /* NULL-safe; no call may run */
/* The caller's fields of c are set; url is copied. */
sl_status sl_hub_http_start(sl_hub_http *h, sl_hub_call *c, const char *url,
                            sl_err *err) SL_MUST_CHECK;
/* Moves bytes for up to wait_ms; a call that has ended, or NULL. */
sl_hub_call *sl_hub_http_turn(sl_hub_http *h, int wait_ms);
void sl_hub_http_stop(sl_hub_http *h, sl_hub_call *c); /* also of one that does not run */
/* True for what another try may mend. */
bool sl_hub_call_may_retry(const sl_hub_call *c);
/* Why an answer is no success, in the words of whoever asked for `what`; returns its status. */
sl_status sl_hub_call_refused(const sl_hub_call *c, const sl_hub_settings *s, const sl_hub_name *n,
                              const char *what, sl_err *err);

#endif
