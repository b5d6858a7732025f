/* Ranks that are processes of this program, seen from rank 0: how they are started and end, the
 * memory that they share with it, and jobs by way of that. A rank's process ends with rank 0's
 * thread, and its end is rank 0's. */
#include "stage/gang/blocks.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/memfd.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM   "/proc/self/exe"
#define CHILD_FD  (STDERR_FILENO + 1)
#define LEAVE_MS  5000  /* that a rank may take to end by itself */
#define REAP_MS   1000  /* from a process's last descriptor to its end */
#define KILLED_MS 60000 /* from a kill to the end: much memory is given back first */
#define UNSEEN    (-1)  /* no status of a process that has ended */

extern char **environ;

typedef struct crew {
    gang_blocks blocks; /* first */
    size_t board_bytes;
    pid_t pid[SL_MAX_RANKS];  /* 0: there is none */
    int socket[SL_MAX_RANKS]; /* to each; -1: none */
    void (*tick)(void *ctx);
    void *ctx;
} crew;

/* ---- ends ---- */

/* *status: UNSEEN where the system kept none. */
static bool reap(crew *c, uint32_t rank, int ms, int *status) {
    const uint64_t until = sl_now_ns() + (uint64_t)ms * 1000000u;
    for (;;) {
        const pid_t got = waitpid(c->pid[rank], status, WNOHANG);
        /* Whoever started this process may have made it ignore SIGCHLD. */
        const bool unseen = got < 0 && errno == ECHILD;
        if (got == c->pid[rank] || unseen) {
            c->pid[rank] = 0;
            if (unseen) *status = UNSEEN;
            return true;
        }
        if (sl_now_ns() >= until) return false;
        (void)poll(NULL, 0, 1);
    }
}

static bool is_gone(void *ctx, uint32_t rank) {
    const crew *c = ctx;
    return rank > 0 && gang_has_hung_up(c->socket[rank]);
}

static void tick(void *ctx) {
    const crew *c = ctx;
    if (c->tick) c->tick(c->ctx);
}

/* How a process has ended, in words; true: by its own fault. */
static bool tell_end(int status, char *how, size_t n) {
    if (status == UNSEEN) return false;
    if (WIFSIGNALED(status))
        snprintf(how, n, ", killed by signal %d", WTERMSIG(status));
    else
        snprintf(how, n, ", with status %d", WEXITSTATUS(status));
    return WIFSIGNALED(status) && sl_is_own_fault(WTERMSIG(status));
}

/* The worker ends: what it would go on with is not there any more. A rank's own fault is its, too,
 * so that the coordinator counts it as such. */
static void lost(gang_rank *r, const sl_err *err) {
    crew *c = r->ctx;
    char how[64] = "";
    bool own_fault = err->code == SL_ERR_TIMEOUT;
    for (uint32_t i = 1; i < r->is.of; i++) {
        int status;
        if (!c->pid[i] || !gang_has_hung_up(c->socket[i]) || !reap(c, i, REAP_MS, &status))
            continue;
        own_fault = tell_end(status, how, sizeof how) || own_fault;
        break;
    }
    sl_log(SL_LOG_ERROR, "gang", "%s%s: its worker ends with it", err->msg, how);
    if (own_fault) abort();
    _exit(1);
}

static void deliver(gang_blocks *b, int fd);

/* ---- starting ---- */

static sl_status spawn_rank(crew *c, uint32_t rank, int child, sl_err *err) {
    char fd[8];
    snprintf(fd, sizeof fd, "%d", CHILD_FD);
    const char *argv[] = {"sluice", "worker", "--rank-fd", fd, NULL};
    posix_spawn_file_actions_t fa;
    int rc = posix_spawn_file_actions_init(&fa);
    if (rc == 0) {
        rc = posix_spawn_file_actions_adddup2(&fa, child, CHILD_FD);
        if (rc == 0) rc = posix_spawn_file_actions_addclosefrom_np(&fa, CHILD_FD + 1);
        if (rc == 0)
            rc = posix_spawn(&c->pid[rank], PROGRAM, &fa, NULL, (char *const *)(uintptr_t)argv,
                             environ);
        posix_spawn_file_actions_destroy(&fa);
    }
    if (rc == 0) return SL_OK;
    c->pid[rank] = 0;
    return sl_fail(err, SL_ERR_IO, "rank %u of %u does not start: %s", rank, c->blocks.of->n,
                   strerror(rc));
}

static sl_status start_rank(crew *c, uint32_t rank, int board, sl_err *err) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return sl_fail(err, SL_ERR_IO, "rank %u of %u: socketpair: %s", rank, c->blocks.of->n,
                       strerror(errno));
    c->socket[rank] = pair[0];
    sl_status st = spawn_rank(c, rank, pair[1], err);
    close(pair[1]);
    const gang_hello hello = {
        .rank = {rank, c->blocks.of->n}, .parent = (int32_t)getpid(), .bytes = c->board_bytes};
    return st == SL_OK ? gang_send(pair[0], &hello, sizeof hello, board, err) : st;
}

/* Zero, and mapped by this process. */
static sl_status make_board(gang *g, crew *c, int *fd, sl_err *err) {
    c->board_bytes = gang_board_bytes(g->n);
    sl_status st = sl_memfd_create(c->board_bytes, fd, err);
    if (st != SL_OK) return st;
    g->own.board = sl_memfd_map(*fd, c->board_bytes);
    if (g->own.board) return SL_OK;
    close(*fd);
    return sl_fail(err, SL_ERR_NOMEM, "mapping %zu bytes of a gang", c->board_bytes);
}

static sl_status processes_start(gang *g, const sl_device_opts *o, sl_err *err) {
    crew *c = g->others = sl_alloc(1, sizeof *c);
    int board;
    if (!c) return sl_fail(err, SL_ERR_NOMEM, "a gang of %u ranks", g->n);
    c->blocks = (gang_blocks){.of = g, .deliver = deliver};
    c->tick = o->tick;
    c->ctx = o->ctx;
    for (uint32_t i = 0; i < SL_MAX_RANKS; i++) c->socket[i] = -1;
    g->own.ctx = c;
    g->own.lost = lost;
    sl_status st = make_board(g, c, &board, err);
    if (st != SL_OK) return st;
    g->own.board->area = GANG_MAX_BLOCKS;
    const sl_coll_opts co = {.rank = g->own.is,
                             .poll_ns = gang_poll_ns(g->n),
                             .deadline_ms = GANG_DEADLINE_MS,
                             .tick = o->tick ? tick : NULL,
                             .tick_us = o->tick_us,
                             .is_gone = is_gone,
                             .ctx = c};
    st = gang_rank_open(&g->own, &co, err);
    for (uint32_t i = 1; st == SL_OK && i < g->n; i++) st = start_rank(c, i, board, err);
    close(board);
    return st;
}

static void end_rank(crew *c, uint32_t rank, bool told) {
    struct pollfd end = {.fd = c->socket[rank]};
    int status;
    if (c->pid[rank] && told) (void)poll(&end, 1, LEAVE_MS);
    /* One that ends already is not killed: its number may be somebody else's by then. */
    const bool ends = c->pid[rank] && (told || gang_has_hung_up(c->socket[rank]));
    if (c->pid[rank] && !(ends && reap(c, rank, REAP_MS, &status))) {
        kill(c->pid[rank], SIGKILL);
        if (!reap(c, rank, KILLED_MS, &status))
            sl_log(SL_LOG_ERROR, "gang", "rank %u of %u, process %d, does not end", rank,
                   c->blocks.of->n, (int)c->pid[rank]);
    }
    if (c->socket[rank] >= 0) close(c->socket[rank]);
}

static void processes_stop(gang *g, bool told) {
    crew *c = g->others;
    if (!c) return;
    for (uint32_t i = 1; i < g->n; i++) end_rank(c, i, told);
    gang_memory_free(&c->blocks.memory);
    sl_memfd_unmap(g->own.board, c->board_bytes);
    sl_free(c);
}

/* ---- jobs ---- */

/* The file of a block, before the job GANG_MAP that names it. */
static void deliver(gang_blocks *b, int fd) {
    crew *c = (crew *)b;
    sl_err err;
    const gang_delivery d = {.number = b->delivered};
    for (uint32_t i = 1; i < b->of->n; i++) {
        sl_status st = gang_send(c->socket[i], &d, sizeof d, fd, &err);
        if (st == SL_OK) continue;
        (void)sl_err_prefix(&err, "rank %u of %u", i, b->of->n);
        lost(&b->of->own, &err);
    }
}

static sl_status processes_show(gang *g, const gang_job *j, gang_job *own, sl_err *err) {
    const gang_blocks *b = g->others;
    const gang_board *board = g->own.board;
    sl_status st = gang_blocks_show(g->others, j, own, err);
    /* Pages are put together there. */
    if (st == SL_OK && j->kind == GANG_READ)
        own->page.blocks =
            (float *)(void *)(b->memory.block[board->area].at + (uintptr_t)board->job.page.blocks);
    return st;
}

static void processes_take_back(gang *g, const gang_job *j) {
    const gang_blocks *b = g->others;
    const gang_board *board = g->own.board;
    gang_job_take_back(&b->memory, board->area, &board->job, j, g->base.spec, g->n);
}

const gang_ways gang_processes = {.start = processes_start,
                                  .show = processes_show,
                                  .take_back = processes_take_back,
                                  .stop = processes_stop,
                                  .take = gang_blocks_take,
                                  .give = gang_blocks_give};
