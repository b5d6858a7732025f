/* Starts a process, waits for its end or for a signal, and starts the next one. */
#include "supervise.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS     500 /* how long a wait lasts that no signal ends */
#define PAUSE_MAX_S 10
#define SERVED_S    60 /* who lived so long is started again at once */

typedef struct watch {
    const sl_supervised *s;
    sigset_t signals;
    pid_t pid; /* 0: there is none */
    uint64_t began_ns;
    int stop;         /* the signal that asked for the end; 0: none did */
    uint64_t kill_ns; /* with stop: when patience ends */
    uint32_t fails;   /* in a row */
    int status;       /* of the last one */
} watch;

static double seconds_since(uint64_t ns) {
    return (double)(sl_now_ns() - ns) / 1e9;
}

/* In the child: as it would have been started by hand, but that it ends with its parent. */
static void become(const watch *w, const char *const *words, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    signal(SIGUSR1, SIG_IGN); /* launchers signal whole groups */
    if (w->s->deaf) {
        signal(SIGTERM, SIG_IGN);
        signal(SIGINT, SIG_IGN);
    }
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(words[0], (char *const *)words);
    _exit(127);
}

static sl_status start(watch *w, sl_err *err) {
    const char *words[SL_SUPERVISED_WORDS] = {0};
    sl_status st = w->s->words(w->s->ctx, words, err);
    if (st != SL_OK) return st;
    const pid_t parent = getpid(), pid = fork();
    if (pid < 0) return sl_fail(err, SL_ERR_IO, "fork: %s", strerror(errno));
    if (pid == 0) become(w, words, parent);
    w->pid = pid;
    w->began_ns = sl_now_ns();
    return SL_OK;
}

/* Waits LOOK_MS at most, or until a child ends or a signal comes. */
static void look(watch *w) {
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    int sig = sigtimedwait(&w->signals, NULL, &pause);
    if (sig <= 0 || sig == SIGCHLD || w->stop) return;
    w->stop = sig;
    w->kill_ns = sl_now_ns() + (uint64_t)(w->s->stop_s * 1e9);
    sl_log(SL_LOG_INFO, "task", "%s: signal %d: this is the end", w->s->who, sig);
    if (w->pid && !w->s->deaf) kill(w->pid, sig == SIGINT ? SIGINT : SIGTERM);
}

/* Until the process has ended. */
static void await_end(watch *w) {
    int status = 0;
    for (;;) {
        pid_t ended = waitpid(w->pid, &status, WNOHANG);
        if (ended == w->pid || (ended < 0 && errno == ECHILD)) break;
        if (w->stop && sl_now_ns() > w->kill_ns) kill(w->pid, SIGKILL);
        look(w);
    }
    w->pid = 0;
    w->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* So long as nobody says stop. */
static void rest(watch *w, double seconds) {
    const uint64_t since = sl_now_ns();
    while (!w->stop && seconds_since(since) < seconds) look(w);
}

/* 0, 1, 2, 4, .. s. */
static double pause_of(uint32_t fails) {
    if (fails <= 1) return 0;
    return fails > 5 ? PAUSE_MAX_S : (double)(1u << (fails - 2));
}

/* One process, from its start to the pause behind it. False: it is over. */
static bool turn(watch *w, bool *said) {
    sl_err err = {0};
    sl_status st = start(w, &err);
    if (st == SL_ERR_CANCELLED) return false;
    if (st != SL_OK) {
        if (!*said) sl_log(SL_LOG_WARN, "task", "%s: %s; trying again", w->s->who, err.msg);
        *said = true;
        rest(w, 1);
        return true;
    }
    *said = false;
    await_end(w);
    const double lived = seconds_since(w->began_ns);
    if (w->stop || !w->s->again(w->s->ctx, w->status, lived)) return false;
    w->fails = lived > SERVED_S ? 1 : w->fails + 1;
    sl_log(SL_LOG_WARN, "task", "%s ended with %d after %.1f s: the next one in %.0f s", w->s->who,
           w->status, lived, pause_of(w->fails));
    w->status = 0;
    rest(w, pause_of(w->fails));
    return true;
}

int sl_supervise(const sl_supervised *s) {
    watch w = {.s = s};
    bool said = false;
    sigemptyset(&w.signals);
    sigaddset(&w.signals, SIGTERM);
    sigaddset(&w.signals, SIGINT);
    sigaddset(&w.signals, SIGUSR1);
    sigaddset(&w.signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &w.signals, NULL);
    while (!w.stop && turn(&w, &said)) {
    }
    return w.stop && s->deaf ? 0 : w.status;
}
