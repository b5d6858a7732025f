/* The one planning at a time: a thread that starts `sluice plan` at low priority, reads what it
 * says, and kills it when its client leaves, its time is over, or the server stops. */
#include "serve/plan.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/memfd.h"
#include "base/quiet.h"
#include "serve/server_int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define JSON_TYPE "application/json"
#define LOOK_MS   50 /* whether the client is still there */
#define MAX_NOTES ((size_t)8 << 10)
#define ABOVE_FDS 16 /* copies of descriptors are above those that the process gets */

extern char **environ;

/* ---- the process ---- */

enum { OUT, NOTES, REPORT, N_PIPES };

typedef struct run {
    sl_call *call;
    sl_planner *planner;
    pid_t pid;
    int from[N_PIPES]; /* its output, what it says on stderr, how far it is; -1: at its end */
    sl_jbuf out, notes, report;
    const char *stopped; /* static: why it was killed; NULL: it was not */
    unsigned http;       /* of that */
} run;

/* Nothing that is meant for this process: options of serve, keys, the fabric's secret. */
static char **clean_environment(void) {
    size_t n = 0, at = 0;
    while (environ[n]) n++;
    char **env = sl_alloc(n + 1, sizeof *env);
    for (size_t i = 0; env && i < n; i++)
        if (strncmp(environ[i], "SLUICE_", 7) != 0) env[at++] = environ[i];
    return env;
}

/* A descriptor that none of those the process gets overwrites. */
static int lift(int fd) {
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, ABOVE_FDS);
    if (fd >= 0) close(fd);
    return high;
}

/* Text as a file without a name; -1: none. */
static int text_file(const char *text) {
    sl_err err;
    int fd = -1;
    size_t n = strlen(text);
    if (sl_memfd_create(n, &fd, &err) != SL_OK) return -1;
    if (pwrite(fd, text, n, 0) != (ssize_t)n) {
        close(fd);
        return -1;
    }
    return lift(fd);
}

/* File i of the process; -1: it has none. */
typedef struct files {
    int fd[SL_PLAN_WORKLOAD_FD + 1];
} files;

static void close_files(files *f) {
    for (size_t i = 0; i < SL_LEN(f->fd); i++)
        if (f->fd[i] >= 0) close(f->fd[i]);
}

static bool open_files(run *r, const sl_plan_request *q, files *f) {
    static const int ends[N_PIPES] = {
        [OUT] = STDOUT_FILENO, [NOTES] = STDERR_FILENO, [REPORT] = SL_PLAN_REPORT_FD};
    bool ok = true;
    for (size_t i = 0; i < SL_LEN(f->fd); i++) f->fd[i] = -1;
    f->fd[STDIN_FILENO] = lift(open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (int i = 0; ok && i < N_PIPES; i++) {
        int pair[2];
        ok = pipe2(pair, O_CLOEXEC) == 0;
        if (!ok) break;
        r->from[i] = lift(pair[0]);
        f->fd[ends[i]] = lift(pair[1]);
        ok = r->from[i] >= 0 && f->fd[ends[i]] >= 0 && fcntl(r->from[i], F_SETFL, O_NONBLOCK) == 0;
    }
    if (q->cluster) f->fd[SL_PLAN_CLUSTER_FD] = text_file(q->cluster);
    if (q->workload) f->fd[SL_PLAN_WORKLOAD_FD] = text_file(q->workload);
    return ok && f->fd[STDIN_FILENO] >= 0 && (!q->cluster || f->fd[SL_PLAN_CLUSTER_FD] >= 0) &&
           (!q->workload || f->fd[SL_PLAN_WORKLOAD_FD] >= 0);
}

static int set_files(posix_spawn_file_actions_t *fa, const files *f) {
    int rc = 0;
    for (int i = 0; rc == 0 && i < (int)SL_LEN(f->fd); i++)
        if (f->fd[i] >= 0) rc = posix_spawn_file_actions_adddup2(fa, f->fd[i], i);
    if (rc == 0) rc = posix_spawn_file_actions_addclosefrom_np(fa, (int)SL_LEN(f->fd));
    /* no name is looked for beside the server's files */
    return rc == 0 ? posix_spawn_file_actions_addchdir_np(fa, "/") : rc;
}

/* serve has blocked those that end it. */
static int set_signals(posix_spawnattr_t *attr) {
    sigset_t none, pipe_alone;
    sigemptyset(&none);
    sigemptyset(&pipe_alone);
    sigaddset(&pipe_alone, SIGPIPE);
    int rc = posix_spawnattr_setsigmask(attr, &none);
    if (rc == 0) rc = posix_spawnattr_setsigdefault(attr, &pipe_alone);
    return rc == 0 ? posix_spawnattr_setflags(attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF)
                   : rc;
}

static int spawn(run *r, const sl_plan_request *q, const files *f, const char *program) {
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    int rc = posix_spawn_file_actions_init(&fa);
    if (rc != 0) return rc;
    rc = posix_spawnattr_init(&attr);
    if (rc == 0) {
        char **env = clean_environment();
        rc = env ? set_files(&fa, f) : ENOMEM;
        if (rc == 0) rc = set_signals(&attr);
        if (rc == 0)
            rc = posix_spawn(&r->pid, program, &fa, &attr, (char *const *)(uintptr_t)q->arg, env);
        posix_spawnattr_destroy(&attr);
        sl_free(env);
    }
    posix_spawn_file_actions_destroy(&fa);
    return rc;
}

/* It gives way to those that compute tokens; and should this process die, it ends by itself. */
static void tame(pid_t pid, uint32_t seconds) {
    const struct rlimit cpu = {seconds, seconds}, none = {0};
    if (!sl_quiet_process(pid))
        sl_log(SL_LOG_WARN, "serve", "a deployment is planned at the priority of everything else");
    (void)prlimit(pid, RLIMIT_CPU, &cpu, NULL);
    (void)prlimit(pid, RLIMIT_CORE, &none, NULL);
}

static sl_status begin(run *r, const sl_plan_request *q, const char *program, sl_api_error *e) {
    files f;
    char why[160];
    int rc = open_files(r, q, &f) ? spawn(r, q, &f, program) : EMFILE;
    close_files(&f);
    if (rc == 0) {
        tame(r->pid, r->call->server->o.plan_timeout_s);
        return SL_OK;
    }
    r->pid = 0;
    snprintf(why, sizeof why, "the planner cannot be started: %s", strerror(rc));
    return sl_api_error_of(e, SL_ERR_IO, NULL, why);
}

/* ---- what it says ---- */

/* "DONE TOTAL" of the last whole line. */
static void take_report(run *r) {
    char *end = r->report.len ? memrchr(r->report.data, '\n', r->report.len) : NULL;
    if (!end) return;
    *end = 0;
    char *line = strrchr(r->report.data, '\n');
    uint64_t done, total;
    if (sscanf(line ? line + 1 : r->report.data, "%" SCNu64 " %" SCNu64, &done, &total) == 2) {
        pthread_mutex_lock(&r->planner->lock);
        r->planner->done = done;
        r->planner->total = total;
        pthread_mutex_unlock(&r->planner->lock);
    }
    sl_jbuf_clear(&r->report);
}

static void stop(run *r, unsigned http, const char *why) {
    if (!r->stopped) {
        r->stopped = why;
        r->http = http;
    }
    kill(r->pid, SIGKILL);
}

static void take(run *r, int i) {
    sl_jbuf *to[N_PIPES] = {&r->out, &r->notes, &r->report};
    size_t most = i == OUT ? r->call->server->o.max_answer_bytes : MAX_NOTES;
    char part[16384];
    ssize_t n = read(r->from[i], part, sizeof part);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        close(r->from[i]);
        r->from[i] = -1;
        return;
    }
    if (to[i]->len + (size_t)n <= most)
        sl_jbuf_put(to[i], part, (size_t)n);
    else if (i == OUT)
        stop(r, MHD_HTTP_BAD_REQUEST,
             "the plans are longer than an answer may be (--max-answer-bytes)");
    if (i == REPORT) take_report(r);
}

static bool is_wanted(sl_call *call) {
    pthread_mutex_lock(&call->lock);
    bool wanted = call->abort == SL_ABORT_NONE;
    pthread_mutex_unlock(&call->lock);
    return wanted;
}

/* Reads until it has closed everything, and waits for its end. Returns its status. */
static int follow(run *r) {
    uint64_t until_ns = sl_now_ns() + r->call->server->o.plan_timeout_s * 1000000000ull;
    int status = 0;
    pid_t got = 0;
    while (got == 0 || got == -1) {
        struct pollfd p[N_PIPES];
        bool open = false;
        for (int i = 0; i < N_PIPES; i++) {
            p[i] = (struct pollfd){.fd = r->from[i], .events = POLLIN};
            open = open || r->from[i] >= 0;
        }
        (void)poll(p, N_PIPES, open ? LOOK_MS : 1);
        for (int i = 0; i < N_PIPES; i++)
            if (p[i].revents) take(r, i);
        if (!is_wanted(r->call)) stop(r, 0, "nobody waits for it");
        if (sl_now_ns() > until_ns)
            stop(r, MHD_HTTP_SERVICE_UNAVAILABLE,
                 "planning took longer than it may (--plan-timeout)");
        got = open ? 0 : waitpid(r->pid, &status, WNOHANG);
        if (got == -1 && errno != EINTR) return -1;
    }
    return status;
}

/* ---- the answer ---- */

/* The planner's last line without its name, "sluice plan: ...". */
static const char *last_line(sl_jbuf *notes) {
    if (notes->len == 0) return "";
    if (notes->data[notes->len - 1] == '\n') notes->data[--notes->len] = 0;
    const char *line = strrchr(notes->data, '\n');
    line = line ? line + 1 : notes->data;
    return !strncmp(line, "sluice plan: ", 13) ? line + 13 : line;
}

/* "--slo-tpot: ..." is about the field slo_tpot, and so is its text. */
static sl_status refuse(sl_api_error *e, int code, const char *text) {
    const char *field = sl_plan_request_field(text);
    char named[512];
    if (field && strchr(text, ':')) {
        snprintf(named, sizeof named, "%s%s", field, strchr(text, ':'));
        text = named;
    }
    if (code == 2) return sl_api_error_bad(e, field, "%s", text);
    if (code != 3) return sl_api_error_of(e, SL_ERR_INTERNAL, field, text);
    sl_api_error_bad(e, field, "%s", text);
    e->http = MHD_HTTP_UNPROCESSABLE_CONTENT;
    e->code = "infeasible";
    return SL_ERR_INFEASIBLE;
}

static sl_status judge(run *r, int status, sl_api_error *e) {
    char text[160];
    if (r->stopped) {
        sl_api_error_of(e, SL_ERR_TIMEOUT, NULL, r->stopped);
        e->http = r->http ? r->http : MHD_HTTP_SERVICE_UNAVAILABLE;
        e->code = r->http == MHD_HTTP_BAD_REQUEST ? "answer_too_large" : "planning_took_too_long";
        return SL_ERR_TIMEOUT;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && r->out.len > 2 && r->out.ok) return SL_OK;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && r->notes.len)
        return refuse(e, WEXITSTATUS(status), last_line(&r->notes));
    snprintf(text, sizeof text, "the planner ended with %s %d",
             WIFSIGNALED(status) ? "signal" : "status",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return sl_api_error_of(e, SL_ERR_INTERNAL, NULL, text);
}

/* Names no file of this machine. */
static void put_note(sl_jbuf *b, const char *line, const char *profile) {
    char named[512];
    size_t n = profile ? strlen(profile) : 0;
    if (!strncmp(line, "sluice plan: ", 13)) line += 13;
    if (n && !strncmp(line, profile, n)) {
        snprintf(named, sizeof named, "the profile%s", line + n);
        line = named;
    }
    sl_jbuf_cstring(b, line);
}

static void put_notes(sl_jbuf *b, sl_jbuf *notes, const char *profile) {
    const char *comma = "";
    sl_jbuf_fmt(b, "[");
    for (char *save, *line = notes->len ? strtok_r(notes->data, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save)) {
        sl_jbuf_fmt(b, "%s", comma);
        put_note(b, line, profile);
        comma = ",";
    }
    sl_jbuf_fmt(b, "]");
}

static void write_answer(run *r, uint64_t took_ns, sl_jbuf *b) {
    sl_jbuf_fmt(b, "{\"seconds\":%.3f,\"notes\":", 1e-9 * (double)took_ns);
    put_notes(b, &r->notes, r->planner->profile_path);
    sl_jbuf_fmt(b, ",\"result\":");
    sl_jbuf_put(b, r->out.data, r->out.len);
    sl_jbuf_fmt(b, "}");
}

static void plan(sl_planner *p, sl_call *call) {
    run r = {.call = call,
             .planner = p,
             .from = {-1, -1, -1},
             .out = sl_jbuf_init(),
             .notes = sl_jbuf_init(),
             .report = sl_jbuf_init()};
    uint64_t began_ns = sl_now_ns();
    sl_status st = begin(&r, &p->request, call->server->o.planner, &call->refusal);
    if (st == SL_OK) st = judge(&r, follow(&r), &call->refusal);
    if (st == SL_OK) write_answer(&r, sl_now_ns() - began_ns, &call->answer);
    for (int i = 0; i < N_PIPES; i++)
        if (r.from[i] >= 0) close(r.from[i]);
    sl_log_request(SL_LOG_DEBUG, "serve", call->request_id, "planned: %s",
                   st == SL_OK ? "done" : call->refusal.msg);
    sl_jbuf_free(&r.out);
    sl_jbuf_free(&r.notes);
    sl_jbuf_free(&r.report);
}

/* ---- the thread ---- */

static void *work(void *arg) {
    sl_server *s = arg;
    sl_planner *p = &s->planner;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        sl_call *call = p->call;
        if (!call && p->stopping) break;
        if (!call) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        plan(p, call);
        sl_plan_request_free(&p->request);
        pthread_mutex_lock(&p->lock);
        p->call = NULL;
        pthread_mutex_unlock(&p->lock);
        sl_work_give_back(call);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

void sl_planner_init(sl_planner *p) {
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->changed, NULL);
}

sl_status sl_planner_start(sl_server *s, sl_err *err) {
    sl_planner *p = &s->planner;
    if (!s->o.planner) return SL_OK;
    p->program = realpath(s->o.planner, NULL);
    p->model_path = realpath(s->o.model_path, NULL);
    if (!p->program || !p->model_path)
        return sl_fail(err, SL_ERR_IO, "%s: %s", p->program ? s->o.model_path : s->o.planner,
                       strerror(errno));
    s->o.planner = p->program;
    if (s->o.profile && s->o.profile[0]) {
        sl_status st = sl_profile_load(s->o.profile, &p->costs, err);
        if (st != SL_OK) return st;
        p->profile_path = realpath(s->o.profile, NULL);
        if (!p->profile_path)
            return sl_fail(err, SL_ERR_IO, "%s: %s", s->o.profile, strerror(errno));
    }
    int rc = pthread_create(&p->thread, NULL, work, s);
    if (rc != 0) return sl_fail(err, SL_ERR_IO, "server: thread of the planner: %s", strerror(rc));
    p->started = p->offered = true;
    return SL_OK;
}

void sl_planner_stop(sl_server *s) {
    sl_planner *p = &s->planner;
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    p->started = false;
}

/* ---- requests ---- */

static sl_plan_offer offer_of(const sl_server *s) {
    const sl_planner *p = &s->planner;
    return (sl_plan_offer){.model = s->model,
                           .path = p->model_path,
                           .profile = p->profile_path,
                           .costs = &p->costs,
                           .seconds = s->o.plan_timeout_s};
}

static enum MHD_Result refuse_absent(sl_call *call) {
    sl_api_error e;
    sl_api_error_bad(&e, NULL, "this server plans nothing (--no-planner)");
    e.http = MHD_HTTP_NOT_FOUND;
    e.code = "no_planner";
    return sl_call_reply_error(call, &e);
}

enum MHD_Result sl_planner_catalogue(sl_call *call, const char *rest) {
    (void)rest;
    const sl_server *s = call->server;
    sl_jbuf b = sl_jbuf_init();
    if (!s->planner.offered) return refuse_absent(call);
    sl_plan_offer offer = offer_of(s);
    sl_plan_catalogue(&offer, &b);
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

enum MHD_Result sl_planner_progress(sl_call *call, const char *rest) {
    (void)rest;
    sl_planner *p = &call->server->planner;
    sl_jbuf b = sl_jbuf_init();
    if (!p->offered) return refuse_absent(call);
    pthread_mutex_lock(&p->lock);
    bool runs = p->call != NULL;
    uint64_t done = p->done, total = p->total;
    pthread_mutex_unlock(&p->lock);
    sl_jbuf_fmt(&b, "{\"running\":%s,\"done\":%" PRIu64 ",\"total\":%" PRIu64 "}",
                runs ? "true" : "false", runs ? done : 0, runs ? total : 0);
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &b);
}

static enum MHD_Result reply_plan(sl_call *call) {
    return sl_call_reply(call, MHD_HTTP_OK, JSON_TYPE, &call->answer);
}

/* Whether the call has the planner now. */
static bool enter(sl_planner *p, sl_call *call, const sl_plan_request *request) {
    pthread_mutex_lock(&p->lock);
    bool open = !p->call && !p->stopping;
    if (open) {
        call->job = (sl_job){.then = reply_plan};
        call->phase = SL_CALL_WORK;
        sl_work_lend(call);
        p->call = call;
        p->request = *request;
        p->done = p->total = 0;
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->lock);
    return open;
}

enum MHD_Result sl_planner_plan(sl_call *call, const char *rest) {
    (void)rest;
    sl_server *s = call->server;
    sl_plan_request request;
    sl_api_error e;
    const sl_span body = {(const uint8_t *)call->body.data, call->body.len};
    if (!s->planner.offered) return refuse_absent(call);
    sl_plan_offer offer = offer_of(s);
    if (sl_plan_request_parse(body, &offer, &request, &e) != SL_OK)
        return sl_call_reply_error(call, &e);
    sl_watch_add(call);
    if (enter(&s->planner, call, &request)) return MHD_YES;
    sl_plan_request_free(&request);
    sl_api_error_bad(&e, NULL, "a deployment is planned already, one at a time; try again");
    e.http = MHD_HTTP_SERVICE_UNAVAILABLE;
    e.type = "server_error";
    e.code = "planner_busy";
    e.retry_after_s = 1;
    return sl_call_reply_error(call, &e);
}
