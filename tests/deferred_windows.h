/* Memory that tests' devices of one process share, as GPUs do (sl_device_ops.offer, join, part): of
 * the host, so that AddressSanitizer and the law see what is touched too early or too late. Which
 * device may touch what is looked at with each call. Thread: any; a device's list is its owner's.
 */
#ifndef SL_TESTS_DEFERRED_WINDOWS_H
#define SL_TESTS_DEFERRED_WINDOWS_H

#include "base/mem.h"
#include "stage/stage.h"

#include <pthread.h>
#include <stdlib.h>

#define DEFERRED_WINDOWS 256u /* of a device at most */

typedef struct deferred_block {
    struct deferred_block *next;
    uint64_t number;
    uint8_t *p;
    size_t bytes;
    uint32_t users;
} deferred_block;

static pthread_mutex_t deferred_lock = PTHREAD_MUTEX_INITIALIZER;
static deferred_block *deferred_blocks;
static uint64_t deferred_numbers;

typedef struct deferred_windows {
    deferred_block *at[DEFERRED_WINDOWS]; /* one that is offered and joined here, twice */
    uint32_t n, top_k;
} deferred_windows;

/* With the lock. */
static deferred_block *deferred_block_of(const uint8_t *p) {
    deferred_block *b = deferred_blocks;
    while (b && (p < b->p || (size_t)(p - b->p) >= b->bytes)) b = b->next;
    return b;
}

static void deferred_keep(deferred_windows *w, deferred_block *b, sl_mem *out) {
    SL_ASSERT(w->n < DEFERRED_WINDOWS);
    w->at[w->n++] = b;
    *out = sl_mem_host(b->p, b->bytes);
}

static sl_status deferred_windows_offer(deferred_windows *w, size_t bytes, sl_mem *out,
                                        sl_device_key *key, sl_err *err) {
    deferred_block *b = calloc(1, sizeof *b);
    if (!b || posix_memalign((void **)&b->p, 64, bytes))
        return free(b), sl_fail(err, SL_ERR_NOMEM, "a window of tests");
    memset(b->p, 0xff, bytes);
    b->bytes = bytes;
    b->users = 1;
    pthread_mutex_lock(&deferred_lock);
    b->number = ++deferred_numbers;
    b->next = deferred_blocks;
    deferred_blocks = b;
    pthread_mutex_unlock(&deferred_lock);
    memcpy(key->bytes, &b->number, key->len = sizeof b->number);
    deferred_keep(w, b, out);
    return SL_OK;
}

static sl_status deferred_windows_join(deferred_windows *w, sl_span key, sl_mem *out, sl_err *err) {
    uint64_t number = 0;
    SL_ASSERT(key.len == sizeof number);
    memcpy(&number, key.data, sizeof number);
    pthread_mutex_lock(&deferred_lock);
    deferred_block *b = deferred_blocks;
    while (b && b->number != number) b = b->next;
    if (b) b->users++;
    pthread_mutex_unlock(&deferred_lock);
    if (!b) return sl_fail(err, SL_ERR_UNSUPPORTED, "a window of tests that is gone");
    deferred_keep(w, b, out);
    return SL_OK;
}

static void deferred_windows_part(deferred_windows *w, const uint8_t *p) {
    uint32_t i = 0;
    while (i < w->n && w->at[i]->p != p) i++;
    SL_ASSERT(i < w->n);
    deferred_block *b = w->at[i];
    w->at[i] = w->at[--w->n];
    pthread_mutex_lock(&deferred_lock);
    const bool last = --b->users == 0;
    for (deferred_block **at = &deferred_blocks; last && *at; at = &(*at)->next) {
        if (*at != b) continue;
        *at = b->next;
        break;
    }
    pthread_mutex_unlock(&deferred_lock);
    if (!last) return;
    memset(b->p, 0xff, b->bytes); /* who reads it is seen */
    free(b->p);
    free(b);
}

/* A row there: of no window, or of one that this device has offered or joined. */
static void deferred_may_touch(const deferred_windows *w, const uint8_t *p) {
    pthread_mutex_lock(&deferred_lock);
    const deferred_block *b = p ? deferred_block_of(p) : NULL;
    pthread_mutex_unlock(&deferred_lock);
    bool has = !b;
    for (uint32_t i = 0; !has && i < w->n; i++) has = w->at[i] == b;
    SL_ASSERT(has);
}

static void deferred_windows_look(const deferred_windows *w, const sl_stage_call *c) {
    const size_t pieces = c->op == SL_OP_MERGE ? c->rows.n : 0;
    for (uint32_t i = 0; (c->op == SL_OP_PACK || c->op == SL_OP_UNPACK) && i < c->pack.n; i++)
        deferred_may_touch(w, c->pack.at[i]);
    for (uint32_t i = 0; c->op == SL_OP_EXPERTS && i < c->experts.n_parts; i++)
        deferred_may_touch(w, (const uint8_t *)(uintptr_t)c->experts.part[i].rows.at);
    for (size_t i = 0; i < pieces * w->top_k; i++) deferred_may_touch(w, c->merge.piece[i]);
}

#endif
