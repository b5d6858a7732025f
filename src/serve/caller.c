/* Who asks: what is kept, and what is shown of requests that run, is its caller's alone. */
#include "serve/server_int.h"

#include <sodium.h>

sl_journal_digest sl_digest_of(const sl_store *st, const char *text) {
    sl_journal_digest d;
    crypto_generichash(d.byte, sizeof d.byte, (const uint8_t *)text, strlen(text), st->salt,
                       sizeof st->salt);
    return d;
}

sl_journal_digest sl_caller_of(const sl_call *call) {
    const sl_store *st = &call->server->store;
    const char *given = MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND,
                                                    MHD_HTTP_HEADER_AUTHORIZATION);
    const char *key = MHD_lookup_connection_value(call->connection, MHD_HEADER_KIND, "x-api-key");
    if (given || !key) return sl_digest_of(st, given ? given : "");
    sl_journal_digest d;
    crypto_generichash_state h;
    crypto_generichash_init(&h, st->salt, sizeof st->salt, sizeof d.byte);
    crypto_generichash_update(&h, (const uint8_t *)"Bearer ", 7);
    crypto_generichash_update(&h, (const uint8_t *)key, strlen(key));
    crypto_generichash_final(&h, d.byte, sizeof d.byte);
    return d;
}

bool sl_digest_is(const sl_journal_digest *a, const sl_journal_digest *b) {
    return sodium_memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}
