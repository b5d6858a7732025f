/* A server without a key trusts whoever reaches loopback, and every page in a browser on this
 * machine does. Two headers that a page cannot forge tell such requests apart: Host, which still
 * names the page's site when that name was rebound to 127.0.0.1, and Origin. */
#include "serve/server_int.h"

#include <arpa/inet.h>

/* The host of "HOST", "HOST:PORT" or "[HOST]:PORT"; false if it is none of them. */
static bool host_of(const char *authority, char *out, size_t cap) {
    bool bracket = authority[0] == '[';
    const char *at = authority + bracket;
    size_t n = strcspn(at, bracket ? "]" : ":");
    const char *rest = at + n + (bracket && at[n] == ']');
    if (n == 0 || n >= cap || (bracket && at[n] != ']')) return false;
    if (*rest && (*rest != ':' || rest[1 + strspn(rest + 1, "0123456789")])) return false;
    memcpy(out, at, n);
    out[n] = 0;
    return true;
}

static bool names_loopback(const char *authority) {
    char host[64];
    struct in_addr v4;
    struct in6_addr v6;
    if (!host_of(authority, host, sizeof host)) return false;
    if (inet_pton(AF_INET, host, &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, host, &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
    return !strcasecmp(host, "localhost");
}

static bool refuse(sl_api_error *e, const char *header, const char *value, const char *want) {
    sl_api_error_bad(e, NULL,
                     "%s: \"%.100s\" is not %s; start the server with an API key to serve it",
                     header, value, want);
    e->http = MHD_HTTP_FORBIDDEN;
    e->code = "origin_not_allowed";
    return false;
}

bool sl_server_trusts_origin(sl_call *call, sl_api_error *e) {
    if (call->server->keyed || call->server->socket_path) return true; /* no page reaches a file */
    const char *host = sl_call_header(call, MHD_HTTP_HEADER_HOST);
    const char *origin = sl_call_header(call, MHD_HTTP_HEADER_ORIGIN);
    if (host && !names_loopback(host)) return refuse(e, "Host", host, "localhost or loopback");
    if (sl_cors_allows(call)) return true;
    /* Pictures and the like are asked for without an Origin, and a feed would not end. */
    const char *from = sl_call_header(call, "Sec-Fetch-Site");
    const char *how = sl_call_header(call, "Sec-Fetch-Mode");
    bool follows = how && !strcmp(how, "navigate"); /* a link to the page */
    if (from && strcmp(from, "same-origin") != 0 && strcmp(from, "none") != 0 && !follows)
        return refuse(e, "Sec-Fetch-Site", from, "this server");
    if (!origin) return true;
    const char *site = !strncasecmp(origin, "http://", 7)    ? origin + 7
                       : !strncasecmp(origin, "https://", 8) ? origin + 8
                                                             : "";
    if (host && !strcasecmp(site, host)) return true;
    return refuse(e, "Origin", origin, "this server");
}
