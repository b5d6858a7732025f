/* Local workers: threads of this process over "loop", or child processes over "shm" or "tcp". */
#include "engine/coord/coord_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "kernel/kernel.h"

#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void *thread_main(void *arg) {
    sl_spawned *s = arg;
    s->status = sl_worker_run(&s->opts, &s->err);
    /* Release: pairs with the acquire in sl_spawn_check, publishes status and err. */
    atomic_store_explicit(&s->ended, true, memory_order_release);
    return NULL;
}

static sl_status start_thread(sl_engine *e, uint32_t id, sl_err *err) {
    sl_spawned *s = &e->spawned[id];
    s->opts = (sl_worker_opts){.coordinator = sl_net_address(e->net),
                               .transport = e->o.transport,
                               .hub = e->hub,
                               .host = e->o.host,
                               .secret = e->o.secret,
                               .isa = e->isa,
                               .silence_limit_s = e->o.silence_limit_s,
                               .device = e->o.device,
                               .wanted = id};
    int rc = pthread_create(&s->thread, NULL, thread_main, s);
    if (rc != 0) return sl_fail(err, SL_ERR_IO, "thread of worker %u: %s", id, strerror(rc));
    s->has_thread = true;
    return SL_OK;
}

/* What is the coordinator's alone, and what comes from it another way. */
static bool is_inherited(const char *variable) {
    static const char *const own[] = {"SLUICE_SECRET=", "SLUICE_SECRET_FILE=", "SLUICE_API_KEY="};
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

static sl_status start_process(sl_engine *e, uint32_t id, sl_err *err) {
    char wanted[16], silence[32], variable[96];
    snprintf(wanted, sizeof wanted, "%u", id);
    snprintf(silence, sizeof silence, "%.9g", e->o.silence_limit_s);
    snprintf(variable, sizeof variable, "SLUICE_SECRET=%s", e->secret);
    const char *argv[16] = {e->program, "worker", "--join", sl_net_address(e->net), "--transport",
                            e->o.transport, "--worker-id", wanted,
                            /* Whoever starts it is there already, but a busy machine may be late
                             * for a handshake: then it is tried again. */
                            "--join-timeout", "10"};
    size_t n = 10;
    if (e->o.silence_limit_s > 0) argv[n++] = "--silence-limit", argv[n++] = silence;
    argv[n++] = "--isa"; /* nobody measures beside the others */
    argv[n++] = e->isa[0] ? e->isa : sl_kernels_name(sl_kernels_base());
    char **env = environment_with(variable);
    if (!env) return sl_fail(err, SL_ERR_NOMEM, "environment of worker %u", id);
    int rc = posix_spawn(&e->spawned[id].pid, e->program, NULL, NULL,
                         (char *const *)(uintptr_t)argv, env);
    sl_free(env);
    if (rc != 0) {
        e->spawned[id].pid = 0;
        return sl_fail(err, SL_ERR_IO, "cannot start %s for worker %u: %s", e->program, id,
                       strerror(rc));
    }
    e->worker[id].stats.pid = e->spawned[id].pid;
    return SL_OK;
}

sl_status sl_spawn_start(sl_engine *e, sl_err *err) {
    sl_status st = SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < e->plan.n_workers; i++) {
        e->worker[i].stats.pid = -1;
        if (e->o.spawn == SL_SPAWN_THREADS) st = start_thread(e, i, err);
        if (e->o.spawn == SL_SPAWN_PROCESSES) st = start_process(e, i, err);
    }
    return st;
}

void sl_spawn_kill(sl_engine *e, uint32_t id) {
    if (e->spawned[id].pid > 0) kill(e->spawned[id].pid, SIGKILL);
}

static bool reap(sl_spawned *s, int flags) {
    int status;
    if (s->pid <= 0 || waitpid(s->pid, &status, flags) != s->pid) return false;
    s->pid = 0;
    s->status = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? SL_OK : SL_ERR_WORKER_LOST;
    if (WIFSIGNALED(status))
        sl_fail(&s->err, s->status, "its process was killed by signal %d", WTERMSIG(status));
    else
        sl_fail(&s->err, s->status, "its process ended with status %d", WEXITSTATUS(status));
    atomic_store_explicit(&s->ended, true, memory_order_release);
    return true;
}

uint32_t sl_spawn_check(sl_engine *e) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_spawned *s = &e->spawned[i];
        if (reap(s, WNOHANG)) return i;
        if (s->has_thread && atomic_load_explicit(&s->ended, memory_order_acquire)) {
            pthread_join(s->thread, NULL);
            s->has_thread = false;
            return i;
        }
    }
    return UINT32_MAX;
}

static bool any_left(const sl_engine *e, bool processes) {
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        if (e->spawned[i].has_thread || (processes && e->spawned[i].pid > 0)) return true;
    }
    return false;
}

void sl_spawn_stop(sl_engine *e, uint32_t grace_ms) {
    uint64_t until = sl_now_ns() + grace_ms * 1000000ull;
    /* Those that are about to join hear of the end only now. */
    while (any_left(e, sl_now_ns() < until)) {
        if (e->net) sl_net_progress(e->net);
        if (sl_spawn_check(e) == UINT32_MAX) usleep(2000);
    }
    for (uint32_t i = 0; i < e->plan.n_workers; i++) {
        sl_spawned *s = &e->spawned[i];
        if (s->pid > 0) {
            sl_log(SL_LOG_WARN, "engine", "worker %u did not stop in %u ms: killing it", i,
                   grace_ms);
            kill(s->pid, SIGKILL);
            reap(s, 0);
        }
    }
}
