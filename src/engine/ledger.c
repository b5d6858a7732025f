/* The coordinator's ledger of requests: their lists, and where one is by its id. */
#include "engine/engine_int.h"
#include "spec/kv.h"

#include <stdio.h>
#include <string.h>

sl_request *sl_request_create(const sl_request_params *p, uint64_t id) {
    sl_request *r = sl_alloc(1, sizeof *r);
    if (!r) return NULL;
    r->stop = sl_alloc(p->n_stop, sizeof *r->stop);
    r->tokens = sl_alloc((size_t)p->n_prompt + p->max_tokens, sizeof *r->tokens);
    r->pages =
        sl_alloc(sl_kv_pages_for(sl_kv_positions(p->n_prompt, p->max_tokens)), sizeof *r->pages);
    r->bias = sl_alloc(p->sampling.n_bias, sizeof *r->bias);
    if (!r->stop || !r->tokens || !r->pages || !r->bias) {
        sl_request_free(r);
        return NULL;
    }
    memcpy(r->tokens, p->prompt, p->n_prompt * sizeof *r->tokens);
    if (p->n_stop) memcpy(r->stop, p->stop, p->n_stop * sizeof *r->stop);
    r->id = id;
    r->p = *p;
    snprintf(r->name, sizeof r->name, "%s", p->name ? p->name : "");
    r->p.name = r->name;
    r->p.prompt = r->tokens;
    r->p.stop = r->stop;
    if (p->sampling.n_bias) memcpy(r->bias, p->sampling.bias, p->sampling.n_bias * sizeof *r->bias);
    r->p.sampling.bias = r->bias;
    return r;
}

void sl_request_free(sl_request *r) {
    if (!r) return;
    sl_free(r->stop);
    sl_free(r->tokens);
    sl_free(r->bias);
    sl_free(r->pages);
    sl_free(r);
}

static void append(sl_request_list *l, sl_request *r) {
    r->prev = l->last;
    r->next = NULL;
    if (l->last)
        l->last->next = r;
    else
        l->first = r;
    l->last = r;
    l->n++;
}

static void unlink_from(sl_request_list *l, sl_request *r) {
    if (r->prev)
        r->prev->next = r->next;
    else
        l->first = r->next;
    if (r->next)
        r->next->prev = r->prev;
    else
        l->last = r->prev;
    r->prev = r->next = NULL;
    l->n--;
}

void sl_ledger_add(sl_ledger *l, sl_request *r) {
    append(&l->waiting, r);
    sl_request **b = &l->bucket[r->id % SL_REQUEST_BUCKETS];
    r->chain = *b;
    *b = r;
}

void sl_ledger_start(sl_ledger *l, sl_request *r) {
    unlink_from(&l->waiting, r);
    l->n_requeued -= r->started;
    append(&l->running, r);
    r->state = SL_REQUEST_RUNNING;
    r->started = true;
}

void sl_ledger_requeue(sl_ledger *l, sl_request *r) {
    unlink_from(&l->running, r);
    r->state = SL_REQUEST_WAITING;
    sl_request *at = l->waiting.first;
    while (at && at->id < r->id) at = at->next;
    r->next = at;
    r->prev = at ? at->prev : l->waiting.last;
    if (r->prev)
        r->prev->next = r;
    else
        l->waiting.first = r;
    if (at)
        at->prev = r;
    else
        l->waiting.last = r;
    l->waiting.n++;
    l->n_requeued++;
}

void sl_ledger_remove(sl_ledger *l, sl_request *r) {
    bool waits = r->state == SL_REQUEST_WAITING;
    unlink_from(waits ? &l->waiting : &l->running, r);
    l->n_requeued -= waits && r->started;
    sl_request **at = &l->bucket[r->id % SL_REQUEST_BUCKETS];
    while (*at != r) at = &(*at)->chain;
    *at = r->chain;
}

sl_request *sl_ledger_find(const sl_ledger *l, uint64_t id) {
    sl_request *r = l->bucket[id % SL_REQUEST_BUCKETS];
    while (r && r->id != id) r = r->chain;
    return r;
}
