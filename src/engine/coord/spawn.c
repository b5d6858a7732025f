/* Local workers: threads of this process over "loop", or child processes over "shm" or "tcp"; how
 * they are started, and how their ends are noticed. */
#include "engine/coord/coord_int.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/mutate.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLIND_LOOK_US 50000u /* between looks at children of whose end no descriptor tells */
#define EXPEL_MS      50     /* that a killed process may take to end */
#define KV_FD         (STDERR_FILENO + 1) /* of a child */

extern char **environ;

/* ---- starting ---- */

static void *thread_main(void *arg) {
    sl_spawned *s = arg;
    sl_engine *e = s->engine;
    s->status = sl_worker_run(&s->opts, &s->err);
    /* Release: pairs with the acquire in collect, publishes status and err. */
    atomic_store_explicit(&s->ended, true, memory_order_release);
    atomic_store_explicit(&e->ends.thread_ended, true, memory_order_release);
    sl_net_wake(e->net);
    return NULL;
}

static sl_status start_thread(sl_engine *e, uint32_t id, sl_err *err) {
    sl_spawned *s = &e->spawned[id];
    s->engine = e;
    s->opts = (sl_worker_opts){.coordinator = sl_net_address(e->net),
                               .transport = e->o.transport,
                               .hub = e->hub,
                               .host = e->o.host,
                               .secret = e->o.secret,
                               .isa = e->isa,
                               .silence_limit_s = e->o.silence_limit_s,
                               .sums = e->o.sums,
                               .encrypt = e->o.encrypt,
                               .device = e->o.device,
                               .kv_disk = e->o.kv_disk,
                               .kv_disk_bytes = e->o.kv_disk_bytes,
                               .wanted = id};
    int rc = pthread_create(&s->thread, NULL, thread_main, s);
    if (rc != 0) return sl_fail(err, SL_ERR_IO, "thread of worker %u: %s", id, strerror(rc));
    s->has_thread = true;
    return SL_OK;
}

/* What is the coordinator's alone, and what comes from it another way. */
static bool is_inherited(const char *variable) {
    static const char *const own[] = {
        "SLUICE_SECRET=",      "SLUICE_SECRET_FILE=", "SLUICE_API_KEY=",
        "SLUICE_FABRIC_PORT=", "SLUICE_KV_DISK=",     "SLUICE_KV_DISK_SIZE="};
    for (size_t i = 0; i < SL_LEN(own); i++)
        if (strncmp(variable, own[i], strlen(own[i])) == 0) return false;
    return true;
}

/* The environment with the fabric's secret: argv is readable by everybody on the machine. */
static char **environment_with(const char *variable) {
    size_t n = 0, at = 0;
    while (environ[n]) n++;
    char **env = sl_alloc(n + 2, sizeof *env);
    if (!env) return NULL;
    for (size_t i = 0; i < n; i++)
        if (is_inherited(environ[i])) env[at++] = environ[i];
    env[at] = (char *)(uintptr_t)variable;
    return env;
}

/* Its end makes a descriptor readable that the fabric's wait watches. Where there are none, or no
 * more of them, its end is looked for from time to time. */
static void watch_process(sl_engine *e, sl_spawned *s) {
    struct epoll_event ev = {.events = EPOLLIN};
    s->pidfd = -1;
#ifdef SYS_pidfd_open
    if (e->ends.fd >= 0) s->pidfd = (int)syscall(SYS_pidfd_open, s->pid, 0);
#endif
    if (s->pidfd < 0 || epoll_ctl(e->ends.fd, EPOLL_CTL_ADD, s->pidfd, &ev) != 0)
        e->ends.blind = true;
}

/* What a child is not told by its arguments it does not get: the coordinator has clients and files
 * open. */
static int spawn_closed(pid_t *pid, const char *program, char *const argv[], char *const env[],
                        int kv_fd) {
    posix_spawn_file_actions_t fa;
    int rc = posix_spawn_file_actions_init(&fa);
    if (rc != 0) return rc;
    if (kv_fd) rc = posix_spawn_file_actions_adddup2(&fa, kv_fd, KV_FD);
    if (rc == 0) rc = posix_spawn_file_actions_addclosefrom_np(&fa, kv_fd ? KV_FD + 1 : KV_FD);
    if (rc == 0) rc = posix_spawn(pid, program, &fa, NULL, argv, env);
    posix_spawn_file_actions_destroy(&fa);
    return rc;
}

/* KV of attention outlives its process, where it is computed at all and not on a GPU. */
static void keep_kv(sl_engine *e, uint32_t id) {
    sl_spawned *s = &e->spawned[id];
    const sl_device_spec device = sl_plan_device_of(&e->plan, id);
    const uint32_t roles = e->roster.worker[id].roles;
    size_t bytes;
    sl_err err;
    if (s->kv_fd || !sl_plan_kv_in_file(&e->plan, roles) || !sl_device_is_cpu(&device) ||
        !sl_kv_file_bytes(&e->spec, e->plan.n_pages, sl_plan_ranks(&e->plan, roles), &bytes))
        return;
    if (sl_memfd_create(bytes, &s->kv_fd, &err) != SL_OK)
        sl_log(SL_LOG_WARN, "engine", "KV of worker %u ends with its process: %s", id, err.msg);
}

static sl_status start_process(sl_engine *e, uint32_t id, sl_err *err) {
    sl_spawned *s = &e->spawned[id];
    char wanted[16], parent[16], silence[32], kv_fd[8], disk[24], variable[96];
    snprintf(wanted, sizeof wanted, "%u", id);
    snprintf(parent, sizeof parent, "%d", (int)getpid());
    snprintf(silence, sizeof silence, "%.9g", e->o.silence_limit_s);
    snprintf(variable, sizeof variable, "SLUICE_SECRET=%s", e->secret);
    snprintf(kv_fd, sizeof kv_fd, "%d", KV_FD);
    snprintf(disk, sizeof disk, "%llu", (unsigned long long)e->o.kv_disk_bytes);
    const char *argv[32] = {e->program, "worker", "--join", sl_net_address(e->net), "--transport",
                            e->o.transport, "--worker-id", wanted, "--parent", parent,
                            /* Whoever starts it is there already, but may be stopped, and a busy
                             * machine late for a handshake: then it is tried again. */
                            "--join-timeout", "60"};
    size_t n = 12;
    if (e->o.silence_limit_s > 0) argv[n++] = "--silence-limit", argv[n++] = silence;
    if (e->o.sums != SL_NET_WHEN_OFF)
        argv[n++] = "--checksums", argv[n++] = sl_net_when_name(e->o.sums);
    argv[n++] = "--encrypt", argv[n++] = sl_net_when_name(e->o.encrypt);
    if (e->o.windows) argv[n++] = "--windows", argv[n++] = "on";
    argv[n++] = "--isa"; /* nobody measures beside the others */
    argv[n++] = e->isa[0] ? e->isa : "base";
    keep_kv(e, id);
    if (s->kv_fd) argv[n++] = "--kv-fd", argv[n++] = kv_fd;
    if (e->o.kv_disk) argv[n++] = "--kv-disk", argv[n++] = e->o.kv_disk;
    if (e->o.kv_disk && e->o.kv_disk_bytes) argv[n++] = "--kv-disk-size", argv[n++] = disk;
    SL_ASSERT(n < SL_LEN(argv)); /* NULL ends it */
    char **env = environment_with(variable);
    if (!env) return sl_fail(err, SL_ERR_NOMEM, "environment of worker %u", id);
    int rc = spawn_closed(&s->pid, e->program, (char *const *)(uintptr_t)argv, env, s->kv_fd);
    sl_free(env);
    if (rc != 0) {
        s->pid = 0;
        return sl_fail(err, SL_ERR_IO, "cannot start %s for worker %u: %s", e->program, id,
                       strerror(rc));
    }
    watch_process(e, s);
    return SL_OK;
}

static sl_status start(sl_engine *e, uint32_t id, sl_err *err) {
    sl_status st = SL_OK;
    if (e->o.spawn == SL_SPAWN_THREADS) st = start_thread(e, id, err);
    if (e->o.spawn == SL_SPAWN_PROCESSES) st = start_process(e, id, err);
    if (e->o.spawn == SL_SPAWN_CALLER && !e->o.spawner.start(e->o.spawner.ctx, id))
        st = sl_fail(err, SL_ERR_IO, "nobody was started as worker %u", id);
    pthread_mutex_lock(&e->lock);
    e->worker[id].stats.pid = e->spawned[id].pid > 0 ? e->spawned[id].pid : -1;
    pthread_mutex_unlock(&e->lock);
    return st;
}

sl_status sl_spawn_start(sl_engine *e, sl_err *err) {
    sl_status st = SL_OK;
    e->spawned_us = sl_clock_now_us(&e->clock);
    if (e->o.spawn == SL_SPAWN_PROCESSES) {
        e->ends.fd = epoll_create1(EPOLL_CLOEXEC);
        e->ends.blind = e->ends.fd < 0 || sl_net_watch(e->net, e->ends.fd, err) != SL_OK;
    }
    for (uint32_t i = 0; st == SL_OK && i < e->plan.n_workers; i++)
        if (!e->home.worker[i].spare) st = start(e, i, err);
    return st;
}

void sl_spawn_kill(sl_engine *e, uint32_t id) {
    if (e->spawned[id].pid > 0) kill(e->spawned[id].pid, SIGKILL);
    if (e->o.spawn == SL_SPAWN_CALLER) e->o.spawner.kill(e->o.spawner.ctx, id);
}

void sl_spawn_drop_kv(sl_engine *e, uint32_t id) {
    sl_spawned *s = &e->spawned[id];
    if (s->kv_fd) close(s->kv_fd);
    s->kv_fd = 0;
}

/* ---- ends ---- */

static bool caller_has(const sl_engine *e, uint32_t id) {
    return e->o.spawn == SL_SPAWN_CALLER && e->o.spawner.is_there(e->o.spawner.ctx, id);
}

static bool is_there(const sl_engine *e, uint32_t id) {
    const sl_spawned *s = &e->spawned[id];
    return s->pid > 0 || s->has_thread || caller_has(e, id);
}

static bool reap(sl_spawned *s, int flags) {
    int status = 0;
    pid_t got = s->pid > 0 ? waitpid(s->pid, &status, flags) : 0;
    /* Whoever started this process may have made it ignore SIGCHLD: then ends leave nothing. */
    bool unseen = got < 0 && errno == ECHILD;
    if (got <= 0 && !unseen) return false;
    if (s->pidfd >= 0) close(s->pidfd);
    s->pid = 0;
    s->crashed = !unseen && WIFSIGNALED(status) && sl_is_own_fault(WTERMSIG(status));
    s->status = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? SL_OK : SL_ERR_WORKER_LOST;
    if (unseen)
        s->status = sl_fail(&s->err, SL_ERR_WORKER_LOST, "its process ended");
    else if (WIFSIGNALED(status))
        sl_fail(&s->err, s->status, "its process was killed by signal %d", WTERMSIG(status));
    else
        sl_fail(&s->err, s->status, "its process ended with status %d", WEXITSTATUS(status));
    return true;
}

static bool join(sl_spawned *s) {
    if (!s->has_thread || !atomic_load_explicit(&s->ended, memory_order_acquire)) return false;
    pthread_join(s->thread, NULL);
    s->has_thread = false;
    return true;
}

/* Whether it was there when it was last looked at, and is not. */
static bool miss(sl_engine *e, uint32_t id) {
    sl_spawned *s = &e->spawned[id];
    bool had = s->of_caller;
    s->of_caller = caller_has(e, id);
    if (had && !s->of_caller)
        s->status = sl_fail(&s->err, SL_ERR_WORKER_LOST, "who started it says that it ended");
    return had && !s->of_caller;
}

/* If it has ended, that is news for the next who asks. */
static void collect(sl_engine *e, uint32_t id) {
    sl_spawned *s = &e->spawned[id];
    bool untold = s->crashed;
    if (!reap(s, WNOHANG) && !join(s) && !miss(e, id)) return;
    s->crashed |= untold;
    e->ends.n_crashes += s->crashed && !untold;
    s->is_news = true;
    e->ends.n_news++;
}

/* False only if nobody has ended. */
static bool may_be_news(sl_engine *e) {
    struct epoll_event ev;
    if (e->o.spawn == SL_SPAWN_CALLER) return true;
    if (atomic_exchange_explicit(&e->ends.thread_ended, false, memory_order_acquire)) return true;
    if (e->ends.fd >= 0 && epoll_wait(e->ends.fd, &ev, 1, 0) > 0) return true;
    uint64_t now_us = sl_clock_now_us(&e->clock);
    if (!e->ends.blind || now_us < e->ends.next_look_us) return false;
    e->ends.next_look_us = now_us + BLIND_LOOK_US;
    return true;
}

uint32_t sl_spawn_next_ended(sl_engine *e) {
    uint32_t n = e->plan.n_workers;
    if (e->ends.n_news == 0 && may_be_news(e))
        for (uint32_t i = 0; i < n; i++) collect(e, i);
    if (e->ends.n_news == 0) return UINT32_MAX;
    uint32_t i = 0;
    while (!e->spawned[i].is_news) i++;
    e->spawned[i].is_news = false;
    e->ends.n_news--;
    return i;
}

uint32_t sl_spawn_next_crashed(sl_engine *e) {
    if (e->ends.n_crashes == 0) return UINT32_MAX;
    uint32_t i = 0;
    while (!e->spawned[i].crashed) i++;
    e->spawned[i].crashed = false;
    e->ends.n_crashes--;
    return i;
}

const char *sl_spawn_why(sl_engine *e, uint32_t id) {
    const sl_spawned *s = &e->spawned[id];
    collect(e, id);
    return !is_there(e, id) && s->err.msg[0] ? s->err.msg : NULL;
}

bool sl_spawn_lives(sl_engine *e, uint32_t id) {
    collect(e, id);
    return is_there(e, id);
}

/* It was given up, and often is about to end by itself: its connection has. */
static void expel(sl_engine *e, uint32_t id) {
    const sl_spawned *s = &e->spawned[id];
    struct pollfd end = {.fd = s->pidfd, .events = POLLIN}; /* -1: waits in any case */
    sl_spawn_kill(e, id);
    if (s->pid > 0) (void)poll(&end, 1, EXPEL_MS);
}

sl_status sl_spawn_again(sl_engine *e, uint32_t id, sl_err *err) {
    sl_spawned *s = &e->spawned[id];
    if (e->o.spawn == SL_SPAWN_NONE)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "worker %u is started by somebody else", id);
    collect(e, id);
    expel(e, id);
    collect(e, id);
    if (is_there(e, id) && !SL_MUTATION(EARLY_SUCCESSOR))
        return sl_fail(err, SL_ERR_AGAIN, "the last %s of worker %u has not ended",
                       s->pid > 0 ? "process" : "thread", id);
    e->ends.n_news -= s->is_news;
    *s = (sl_spawned){.crashed = s->crashed, .kv_fd = s->kv_fd};
    return start(e, id, err);
}

/* ---- the end of all ---- */

static bool any_left(sl_engine *e, bool processes) {
    bool any = false;
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        collect(e, i);
        any = any || e->spawned[i].has_thread || (processes && e->spawned[i].pid > 0);
    }
    return any;
}

void sl_spawn_stop(sl_engine *e, uint32_t grace_ms) {
    uint64_t until = sl_now_ns() + grace_ms * 1000000ull;
    /* Those that are about to join hear of the end only now. */
    while (any_left(e, sl_now_ns() < until)) {
        if (e->net) sl_net_progress(e->net);
        usleep(2000);
    }
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_spawned *s = &e->spawned[i];
        if (s->pid > 0) {
            sl_log(SL_LOG_WARN, "engine", "worker %u did not stop in %u ms: killing it", i,
                   grace_ms);
            kill(s->pid, SIGKILL);
            reap(s, 0);
        }
        sl_spawn_drop_kv(e, i);
    }
}
