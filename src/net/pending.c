/* Callers that have not proved themselves: how many of them wait, who gives way to the next one,
 * and how it is logged that they were turned away. */
#include <stdio.h>

#include "base/log.h"
#include "net/net_int.h"

#define LOG_WINDOW_US 10000000u
#define LOG_LINES     8u /* of one window; the rest of it is counted */

/* ---- places ---- */

static bool waits(const sl_conn *c, sl_conn_state state) {
    return c->accepted && c->state == state;
}

static uint32_t count(const sl_net *n, sl_conn_state state) {
    uint32_t k = 0;
    for (size_t i = 0; i < n->n_conns; i++) k += waits(n->conns[i], state);
    return k;
}

/* Of those that wait: how many call from there. */
static uint32_t count_from(const sl_net *n, sl_conn_state state, uint64_t key) {
    uint32_t k = 0;
    for (size_t i = 0; i < n->n_conns; i++)
        k += waits(n->conns[i], state) && n->conns[i]->origin.key == key;
    return k;
}

/* Who said nothing goes before who did, the older before the younger. */
static bool goes_before(const sl_conn *a, const sl_conn *b) {
    if (!a->n_early != !b->n_early) return !a->n_early;
    return a->began_us < b->began_us;
}

bool sl_pending_is_full(const sl_net *n, sl_conn_state state) {
    uint32_t room = state == SL_CONN_WAIT_AUTH ? n->max_callers : SL_NET_MAX_PENDING;
    return count(n, state) >= room;
}

void sl_pending_make_room(sl_net *n, sl_conn_state state) {
    uint32_t most = 0;
    sl_conn *first = NULL;
    if (!sl_pending_is_full(n, state)) return;
    for (size_t i = 0; i < n->n_conns; i++) {
        sl_conn *c = n->conns[i];
        uint32_t same = waits(c, state) ? count_from(n, state, c->origin.key) : 0;
        if (same > most || (same > 0 && same == most && goes_before(c, first))) first = c;
        most = SL_MAX(most, same);
    }
    /* Without a word: an honest caller shall take it for absence, and try again. */
    sl_session_fail(first, SL_ERR_LIMIT, "too many callers wait: it gave way to a later one");
}

uint32_t sl_pending_count(const sl_net *n) {
    return count(n, SL_CONN_WAIT_HELLO) + count(n, SL_CONN_WAIT_AUTH);
}

/* ---- log ---- */

void sl_pending_log_rest(sl_net *n, uint64_t now_us, uint64_t *next_us) {
    if (n->n_unlogged == 0) return;
    uint64_t end_us = n->log_window_us + LOG_WINDOW_US;
    if (now_us < end_us) {
        *next_us = SL_MIN(*next_us, end_us);
        return;
    }
    sl_log(SL_LOG_WARN, "net", "%u more callers were turned away", n->n_unlogged);
    n->n_unlogged = 0;
}

void sl_pending_log(sl_conn *c, const char *why) {
    sl_net *n = c->net;
    uint64_t now_us = sl_net_now_us(n);
    if (n->n_logged == 0 || now_us >= n->log_window_us + LOG_WINDOW_US) {
        sl_pending_log_rest(n, now_us, &n->next_timer_us);
        n->log_window_us = now_us;
        n->n_logged = 0;
    }
    if (n->n_logged < LOG_LINES) {
        n->n_logged++;
        sl_log(SL_LOG_WARN, "net", "a caller (%s%s%s) was turned away: %s", c->peer.name,
               c->peer.name[0] ? ", " : "", c->origin.text, why);
        return;
    }
    n->n_unlogged++;
    n->next_timer_us = SL_MIN(n->next_timer_us, n->log_window_us + LOG_WINDOW_US);
}
