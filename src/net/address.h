/* Addresses of the transports that use IP. Thread: any. */
#ifndef SL_NET_ADDRESS_H
#define SL_NET_ADDRESS_H

#include <sys/socket.h>

#include "net/net_int.h"

/* "host:port" or "[v6]:port"; with port given, text is a host alone. */
sl_status sl_address_resolve(const char *text, const uint16_t *port, struct sockaddr_storage *out,
                             socklen_t *len, sl_err *err) SL_MUST_CHECK;
/* Where to listen: the port given, or for 0 a free one below 32768. SL_ERR_IO when there is none.
 */
sl_status sl_address_choose(const char *host, uint16_t port, struct sockaddr_storage *out,
                            socklen_t *len, sl_err *err) SL_MUST_CHECK;
/* Who calls: an IPv4 address, or a network of 64 bits of IPv6, which is what one host may have. */
sl_origin sl_address_origin(const struct sockaddr_storage *a);
/* What others connect to; a wildcard becomes the first address of an interface that is up. */
void sl_address_advertise(const struct sockaddr_storage *bound, char *out, size_t cap);

/* What others shall connect to instead of `bound`, as somebody between them forwards it: HOST:PORT,
 * or HOST, which keeps the port; [v6] in brackets. SL_ERR_ARG. */
sl_status sl_address_advertised(const char *text, const char *bound, char *out, size_t cap,
                                sl_err *err) SL_MUST_CHECK;

/* One family and address, whatever the ports. */
bool sl_address_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);

#endif
