/* Addresses of the fabric: names to numbers, which interface is this machine's to tell. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net/address.h"

#define FIRST_PORT    20000u
#define PORTS         12000u /* below 32768: above are the ports of outgoing connections */
#define PORT_ATTEMPTS 200

static sl_status split(const char *text, char *host, size_t cap, const char **port, sl_err *err) {
    const char *begin = text, *end = strrchr(text, ':');
    if (!end || !end[1]) return sl_fail(err, SL_ERR_ARG, "address '%s': HOST:PORT expected", text);
    *port = end + 1;
    if (*begin == '[' && end > begin + 1 && end[-1] == ']') begin++, end--;
    if (begin == end || (size_t)(end - begin) >= cap)
        return sl_fail(err, SL_ERR_ARG, "address '%s': host of %d characters, 1 to %zu expected",
                       text, (int)(end - begin), cap - 1);
    memcpy(host, begin, (size_t)(end - begin));
    host[end - begin] = 0;
    return SL_OK;
}

static void set_port(struct sockaddr_storage *a, uint16_t port) {
    if (a->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)a)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)a)->sin_port = htons(port);
}

sl_status sl_address_resolve(const char *text, const uint16_t *port, struct sockaddr_storage *out,
                             socklen_t *len, sl_err *err) {
    char host[256];
    const char *service = NULL;
    if (port)
        snprintf(host, sizeof host, "%s", text);
    else if (split(text, host, sizeof host, &service, err) != SL_OK)
        return SL_ERR_ARG;
    char *end = NULL;
    unsigned long number = port ? *port : strtoul(service, &end, 10);
    if (!port && (*end || number == 0 || number > 65535))
        return sl_fail(err, SL_ERR_ARG, "address '%s': port '%s', 1 to 65535 expected", text,
                       service);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0 || !list)
        return sl_fail(err, SL_ERR_NOTFOUND, "host '%s': %s", host, gai_strerror(rc));
    memset(out, 0, sizeof *out);
    memcpy(out, list->ai_addr, list->ai_addrlen);
    *len = list->ai_addrlen;
    freeaddrinfo(list);
    set_port(out, (uint16_t)number);
    return SL_OK;
}

/* Can this address be listened on now? */
static bool is_free(const struct sockaddr_storage *a, socklen_t len) {
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0) return false;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    /* With SO_REUSEADDR only listen() notices that somebody listens there. */
    bool ok = bind(fd, (const struct sockaddr *)a, len) == 0 && listen(fd, 1) == 0;
    close(fd);
    return ok;
}

sl_status sl_address_choose(const char *host, uint16_t port, struct sockaddr_storage *out,
                            socklen_t *len, sl_err *err) {
    sl_status st = sl_address_resolve(host, &port, out, len, err);
    if (st != SL_OK) return st;
    if (port)
        return is_free(out, *len)
                   ? SL_OK
                   : sl_fail(err, SL_ERR_IO, "cannot listen on %s port %u: in use or not allowed",
                             host, port);
    for (int i = 0; i < PORT_ATTEMPTS; i++) {
        set_port(out, (uint16_t)(FIRST_PORT + randombytes_uniform(PORTS)));
        if (is_free(out, *len)) return SL_OK;
    }
    return sl_fail(err, SL_ERR_IO, "no free port on %s in %d attempts", host, PORT_ATTEMPTS);
}

static bool is_wildcard(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET6)
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
}

bool sl_address_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET6)
        return IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
                                  &((const struct sockaddr_in6 *)b)->sin6_addr);
    return a->ss_family == AF_INET && ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
                                          ((const struct sockaddr_in *)b)->sin_addr.s_addr;
}

static void use_interface(struct sockaddr_storage *a) {
    struct ifaddrs *list = NULL;
    uint16_t port = ((struct sockaddr_in *)a)->sin_port; /* the same place in both families */
    size_t len =
        a->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (getifaddrs(&list) != 0) return;
    for (struct ifaddrs *i = list; i; i = i->ifa_next) {
        bool up = (i->ifa_flags & IFF_UP) && !(i->ifa_flags & IFF_LOOPBACK);
        if (!up || !i->ifa_addr || i->ifa_addr->sa_family != a->ss_family) continue;
        memcpy(a, i->ifa_addr, len);
        ((struct sockaddr_in *)a)->sin_port = port;
        break;
    }
    freeifaddrs(list);
}

void sl_address_advertise(const struct sockaddr_storage *bound, char *out, size_t cap) {
    struct sockaddr_storage a = *bound;
    char host[INET6_ADDRSTRLEN] = "";
    if (is_wildcard(&a)) use_interface(&a);
    if (is_wildcard(&a)) { /* no interface but loopback is up */
        if (a.ss_family == AF_INET6)
            ((struct sockaddr_in6 *)&a)->sin6_addr = in6addr_loopback;
        else
            ((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    unsigned port = ntohs(((const struct sockaddr_in *)&a)->sin_port);
    if (a.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)&a)->sin6_addr, host, sizeof host);
        snprintf(out, cap, "[%s]:%u", host, port);
    } else {
        inet_ntop(AF_INET, &((const struct sockaddr_in *)&a)->sin_addr, host, sizeof host);
        snprintf(out, cap, "%s:%u", host, port);
    }
}

sl_status sl_address_advertised(const char *text, const char *bound, char *out, size_t cap,
                                sl_err *err) {
    char whole[300], host[256];
    const char *end = text[0] == '[' ? strchr(text, ']') : NULL, *port;
    bool has_port = strchr(end ? end : text, ':') != NULL;
    int n = snprintf(whole, sizeof whole, "%s%s", text, has_port ? "" : strrchr(bound, ':'));
    if (n < 0 || (size_t)n >= SL_MIN(sizeof whole, cap))
        return sl_fail(err, SL_ERR_ARG, "address '%.40s...': limit %zu characters", text, cap - 1);
    sl_status st = split(whole, host, sizeof host, &port, err);
    if (st != SL_OK) return st;
    unsigned long number = strtoul(port, NULL, 10);
    if (strspn(port, "0123456789") != strlen(port) || number == 0 || number > 65535 ||
        (!end && strchr(host, ':')))
        return sl_fail(err, SL_ERR_ARG, "address '%s': HOST, HOST:PORT or [V6]:PORT expected",
                       text);
    memcpy(out, whole, (size_t)n + 1);
    return SL_OK;
}

sl_origin sl_address_origin(const struct sockaddr_storage *a) {
    sl_origin o = {0};
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)a)->sin6_addr;
    uint32_t host = v4->sin_addr.s_addr;
    if (a->ss_family == AF_INET6) {
        inet_ntop(AF_INET6, v6, o.text, sizeof o.text);
        memcpy(&o.key, v6->s6_addr, sizeof o.key);
        memcpy(&host, v6->s6_addr + 12, sizeof host);
        if (!IN6_IS_ADDR_V4MAPPED(v6)) return o;
    } else {
        inet_ntop(AF_INET, &v4->sin_addr, o.text, sizeof o.text);
    }
    o.key = (uint64_t)1 << 32 | host;
    return o;
}
