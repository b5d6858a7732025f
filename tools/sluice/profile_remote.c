/* Links between machines: `sluice profile --listen` on one sends back what `sluice profile
 * --links-to` on another sends. Both hold the fabric's secret, which the handshake proves. */
#include "profile.h"

#include "base/clock.h"
#include "cmd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PEERS  4u
#define OPEN_NS    5000000000ull
#define LONGEST_NS 600000000000ull /* of one measurement, as the listener has it */

/* "HOST:PORT", also "[v6]:PORT". */
static sl_status split_address(const char *text, char host[64], uint16_t *port, sl_err *err) {
    const char *colon = strrchr(text, ':');
    char *end = NULL;
    size_t n = colon ? (size_t)(colon - text) : 0;
    long v = colon && colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
    if (n == 0 || n >= 64 || v < 0 || v > 65535 || *end)
        return sl_fail(err, SL_ERR_ARG, "--listen: '%.80s' is not HOST:PORT, PORT 0 to 65535",
                       text);
    bool bracketed = text[0] == '[' && text[n - 1] == ']' && n > 2;
    snprintf(host, 64, "%.*s", (int)(bracketed ? n - 2 : n), text + bracketed);
    *port = (uint16_t)v;
    return SL_OK;
}

static sl_status find_transport(const sl_options *o, const sl_transport_kind **out, sl_err *err) {
    *out = sl_deploy_transport_far(o, err);
    return *out ? SL_OK : SL_ERR_ARG;
}

sl_status sl_profile_listen(const sl_options *o, sl_err *err) {
    char secret[SL_SECRET_MAX + 1], host[64];
    uint16_t port = 0;
    const sl_transport_kind *kind;
    sl_probe n = {.echo = true,
                  .alone = true,
                  .think_ns = SL_PROFILE_THINK_NS,
                  .encrypt = SL_NET_WHEN_AUTO}; /* as workers do */
    sl_status st = find_transport(o, &kind, err);
    if (st == SL_OK) st = split_address(o->listen, host, &port, err);
    if (st == SL_OK) st = sl_deploy_secret(o, secret, err);
    if (st == SL_OK)
        st = sl_probe_start_at(&n, kind->name, NULL, host, port, secret, (uint32_t)getpid(), err);
    if (st != SL_OK) return st;
    printf(o->json ? "{\"address\": \"%s\"}\n" : "listening at %s\n", sl_net_address(n.net));
    fflush(stdout);
    uint64_t until_ns = sl_now_ns() + o->join_timeout * 1000000000ull;
    while (n.opened == 0 && sl_now_ns() < until_ns) sl_probe_step(&n);
    until_ns = sl_now_ns() + LONGEST_NS;
    while (n.opened > n.closed && sl_now_ns() < until_ns) sl_probe_step(&n);
    if (n.opened == 0)
        st = sl_fail(err, SL_ERR_TIMEOUT, "nobody came to %s within %u s", sl_net_address(n.net),
                     o->join_timeout);
    else if (n.opened > n.closed)
        st = sl_fail(err, SL_ERR_TIMEOUT, "a measurement took over %.0f s", LONGEST_NS / 1e9);
    sl_net_free(n.net);
    return st;
}

/* One after the other, so that an error names who did not answer. */
static sl_status connect_all(sl_probe *n, const char *list, sl_conn **conn, uint32_t *count,
                             sl_err *err) {
    for (const char *at = list; *at;) {
        char address[96];
        size_t len = strcspn(at, ",");
        if (len == 0 || len >= sizeof address)
            return sl_fail(err, SL_ERR_ARG, "--links-to: '%.80s' is not HOST:PORT,...", at);
        if (*count == MAX_PEERS)
            return sl_fail(err, SL_ERR_LIMIT, "--links-to: more than %u peers", MAX_PEERS);
        snprintf(address, sizeof address, "%.*s", (int)len, at);
        sl_status st = sl_net_connect(n->net, address, NULL, &conn[*count], err);
        if (st != SL_OK) return sl_err_prefix(err, "--links-to");
        if (!sl_probe_await(n, &n->opened, ++*count, sl_now_ns() + OPEN_NS))
            return sl_fail(err, SL_ERR_TIMEOUT,
                           "%s did not answer, or has another secret: is `sluice profile --listen` "
                           "running there?",
                           address);
        at += len + (at[len] == ',');
    }
    return SL_OK;
}

sl_status sl_profile_links_to(const sl_options *o, sl_profile_progress *progress, sl_profile *p,
                              sl_err *err) {
    char secret[SL_SECRET_MAX + 1];
    const sl_transport_kind *kind;
    double single_us[SL_PROFILE_LINK_SIZES] = {0};
    sl_conn *conn[MAX_PEERS] = {NULL};
    sl_probe n = {.encrypt = SL_NET_WHEN_AUTO};
    uint32_t count = 0;
    sl_status st = find_transport(o, &kind, err);
    if (st == SL_OK) st = sl_deploy_secret(o, secret, err);
    if (st == SL_OK)
        st = sl_probe_start_at(&n, kind->name, NULL, NULL, 0, secret, (uint32_t)getpid(), err);
    if (st == SL_OK) st = connect_all(&n, o->links_to, conn, &count, err);
    for (uint32_t g = 1; st == SL_OK && g <= count; g *= 2)
        st = sl_profile_link_measure(&n, conn, g, kind->machines, single_us, progress, p, err);
    sl_net_free(n.net);
    return st == SL_OK ? SL_OK : sl_err_prefix(err, "links to other machines");
}
