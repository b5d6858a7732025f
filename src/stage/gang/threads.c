/* Ranks that are threads of this process: they see its memory, so that a job is a copy of pointers,
 * and rows lie once for all of them. */
#include "stage/gang/gang_int.h"

#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct crew {
    gang_rank rank[SL_MAX_RANKS]; /* but for the first */
    pthread_t thread[SL_MAX_RANKS];
    uint32_t started;
} crew;

/* Never returns: a thread that is missing is a fault of this program's. */
static void lost(gang_rank *r, const sl_err *err) {
    sl_log(SL_LOG_ERROR, "gang", "rank %u of %u: %s", r->is.index, r->is.of, err->msg);
    abort();
}

static sl_status read_board(gang_rank *r, gang_job *out, sl_err *err) {
    (void)err;
    *out = r->board->job;
    return SL_OK;
}

static void *rank_main(void *arg) {
    gang_rank *r = arg;
    sl_err err;
    if (gang_rank_serve(r, &err) != SL_OK) lost(r, &err);
    gang_rank_close(r);
    return NULL;
}

static sl_status open_rank(gang_rank *r, gang_board *board, const sl_device_opts *tick,
                           sl_err *err) {
    sl_coll_opts o = {.rank = r->is,
                      .one_memory = true,
                      .poll_ns = gang_poll_ns(r->is.of),
                      .deadline_ms = GANG_DEADLINE_MS};
    if (tick) o.tick = tick->tick, o.tick_us = tick->tick_us, o.ctx = tick->ctx;
    r->board = board;
    r->read = read_board;
    r->lost = lost;
    return gang_rank_open(r, &o, err);
}

static sl_status threads_start(gang *g, const sl_device_opts *o, sl_err *err) {
    crew *c = g->others = sl_alloc(1, sizeof *c);
    gang_board *board = g->own.board = sl_alloc(1, gang_board_bytes(g->n));
    if (!c || !board) return sl_fail(err, SL_ERR_NOMEM, "a gang of %u ranks", g->n);
    sl_status st = open_rank(&g->own, board, o, err);
    for (uint32_t i = 1; st == SL_OK && i < g->n; i++) {
        gang_rank *r = &c->rank[i];
        r->is = (sl_rank){i, g->n};
        st = open_rank(r, board, NULL, err);
        const int e = st == SL_OK ? pthread_create(&c->thread[i], NULL, rank_main, r) : 0;
        if (e) {
            gang_rank_close(r);
            st = sl_fail(err, SL_ERR_LIMIT, "rank %u of %u does not start: error %d", i, g->n, e);
        }
        if (st == SL_OK) c->started = i;
    }
    return st;
}

static sl_status threads_show(gang *g, const gang_job *j, gang_job *own, sl_err *err) {
    (void)err;
    g->own.board->job = *own = *j;
    return SL_OK;
}

static void threads_stop(gang *g, bool told) {
    crew *c = g->others;
    for (uint32_t i = 1; told && c && i <= c->started; i++) pthread_join(c->thread[i], NULL);
    sl_free(c);
    sl_free(g->own.board);
}

const gang_ways gang_threads = {.in_place = true,
                                .start = threads_start,
                                .show = threads_show,
                                .stop = threads_stop,
                                .take = sl_host_take,
                                .give = sl_host_give};
