/* Who asks: what is kept, and what is shown of requests that run, is its caller's alone. */
#include "serve/server_int.h"

#include <sodium.h>
#include <strings.h>

sl_journal_digest sl_digest_of(const sl_store *st, const char *text) {
    sl_journal_digest d;
    crypto_generichash(d.byte, sizeof d.byte, (const uint8_t *)text, strlen(text), st->salt,
                       sizeof st->salt);
    return d;
}

const char *sl_caller_key(const sl_call *call) {
    sl_keys *keys = &call->server->keys;
    const char *given = sl_call_header(call, MHD_HTTP_HEADER_AUTHORIZATION);
    if (given && !strncasecmp(given, "Bearer ", 7) && sl_keys_has(keys, given + 7))
        return given + 7;
    given = sl_call_header(call, "x-api-key"); /* Anthropic's clients name it so */
    return given && sl_keys_has(keys, given) ? given : NULL;
}

/* The key that opened the server, or where it has none what was sent as one. */
sl_journal_digest sl_caller_of(const sl_call *call) {
    const sl_store *st = &call->server->store;
    const char *given = sl_call_header(call, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *key = call->server->keyed ? sl_caller_key(call) : NULL;
    if (!key && !given) key = sl_call_header(call, "x-api-key");
    if (!key) return sl_digest_of(st, given ? given : "");
    sl_journal_digest d;
    crypto_generichash_state h;
    crypto_generichash_init(&h, st->salt, sizeof st->salt, sizeof d.byte);
    crypto_generichash_update(&h, (const uint8_t *)"Bearer ", 7);
    crypto_generichash_update(&h, (const uint8_t *)key, strlen(key));
    crypto_generichash_final(&h, d.byte, sizeof d.byte);
    return d;
}

/* A word and what it says, so that two never look like another two. */
static void note(crypto_generichash_state *h, const char *what, const void *data, size_t n) {
    crypto_generichash_update(h, (const uint8_t *)what, strlen(what) + 1);
    crypto_generichash_update(h, data, n);
}

/* Those that share nothing have each their own, which is the same if they come again (resume.c):
 * of the answer's id, as two requests of a client may have the same X-Request-Id. */
void sl_caller_tenant(const sl_call *call, sl_request_params *r) {
    const sl_store *st = &call->server->store;
    const sl_api_params *p = &call->params;
    sl_cache cache = call->server->o.cache;
    crypto_generichash_state h;
    r->shares = cache != SL_CACHE_OFF && !p->no_cache;
    crypto_generichash_init(&h, st->salt, sizeof st->salt, sizeof r->salt);
    if (cache != SL_CACHE_SHARED || !r->shares)
        note(&h, "caller", call->caller.byte, sizeof call->caller.byte);
    if (p->salted) note(&h, "salt", p->cache_salt, sizeof p->cache_salt);
    if (!r->shares) note(&h, "alone", call->id, strlen(call->id));
    crypto_generichash_final(&h, r->salt, sizeof r->salt);
}

bool sl_digest_is(const sl_journal_digest *a, const sl_journal_digest *b) {
    return sodium_memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}
