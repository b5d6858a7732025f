/* sluice task: one task of a job that srun, mpirun or Kubernetes has started. Which of them it is,
 * the launcher's variables say: rank 0 is the coordinator, rank i worker i - 1 of the plan. The
 * order of start does not matter, and who dies is started again. */
#include "cmd.h"
#include "job.h"
#include "supervise.h"

#include "base/log.h"
#include "base/memfd.h"
#include "spec/limits.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_PORT 7000
#define STOP_EXTRA_S 10 /* beyond --drain-timeout, until who still lives is killed */
#define COORDINATORS 5  /* starts in a row that came to nothing, then the task ends */
#define MISSES       5  /* seconds without a coordinator that end a worker that was told to stop */
#define CONNECT_MS   1000
#define HOST_MAX     256
#define FORGIVEN_S   60 /* a worker that served so long was not told to stop before */
#define RANK_UNKNOWN UINT32_MAX

/* What launchers tell their processes, the surest first: a process of mpirun inside a job of Slurm
 * has variables of both, and Slurm's are those of mpirun's helper. */
static const struct {
    const char *who;
    sl_variable rank, size, here; /* here: how many of the job are on this machine */
} launchers[] = {
    {"Open MPI", SL_OMPI_COMM_WORLD_RANK, SL_OMPI_COMM_WORLD_SIZE, SL_OMPI_COMM_WORLD_LOCAL_SIZE},
    {"LeaderWorkerSet", SL_LWS_WORKER_INDEX, SL_LWS_GROUP_SIZE, SL_VARIABLE_COUNT},
    {"PMI", SL_PMI_RANK, SL_PMI_SIZE, SL_MPI_LOCALNRANKS},
    {"PMIx", SL_PMIX_RANK, SL_VARIABLE_COUNT, SL_VARIABLE_COUNT},
    {"Slurm", SL_SLURM_PROCID, SL_SLURM_STEP_NUM_TASKS, SL_VARIABLE_COUNT},
};

typedef struct task {
    const sl_options *o;
    uint32_t rank, size;  /* size 0: nobody says */
    char first[HOST_MAX]; /* where the coordinator is */
    bool one_machine;     /* the launcher says that all tasks are here, or --first is loopback */
    uint32_t port;
    char program[4096], secret[32];
    /* words of the next command line */
    char id[16], port_text[16], join[HOST_MAX + 8], own[HOST_MAX], numbers[8][24];
    /* a worker */
    bool told; /* to stop: it is drained, or the coordinator ends */
    uint32_t misses;
    /* a coordinator */
    uint32_t starts;
} task;

/* ---- who this is ---- */

static sl_status number_of(sl_variable v, uint32_t *out, bool *set, sl_err *err) {
    const char *text = v == SL_VARIABLE_COUNT ? NULL : sl_options_launcher(v);
    char *end = NULL;
    *set = text != NULL;
    if (!text) return SL_OK;
    unsigned long n = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n > SL_MAX_WORKERS)
        return sl_fail(err, SL_ERR_ARG, "%s: '%.40s' is not a whole number from 0 to %u",
                       sl_variable_at(v).name, text, SL_MAX_WORKERS);
    *out = (uint32_t)n;
    return SL_OK;
}

static sl_status find_rank(task *t, sl_err *err) {
    bool set = false, sized = false, counted = false;
    uint32_t here = 0;
    if (t->o->rank != RANK_UNKNOWN) {
        t->rank = t->o->rank;
        return SL_OK;
    }
    for (size_t i = 0; i < SL_LEN(launchers); i++) {
        sl_status st = number_of(launchers[i].rank, &t->rank, &set, err);
        if (st == SL_OK && !set) continue;
        if (st == SL_OK) st = number_of(launchers[i].size, &t->size, &sized, err);
        if (st == SL_OK) st = number_of(launchers[i].here, &here, &counted, err);
        if (st != SL_OK) return st;
        t->one_machine = sized && counted && here == t->size;
        if (sized && t->rank >= t->size)
            return sl_fail(err, SL_ERR_ARG, "%s says rank %u of %u", launchers[i].who, t->rank,
                           t->size);
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_ARG,
                   "which task of the job this is, no launcher has said (%s, %s, %s, ..): --rank N",
                   sl_variable_at(SL_SLURM_PROCID).name,
                   sl_variable_at(SL_OMPI_COMM_WORLD_RANK).name, sl_variable_at(SL_PMI_RANK).name);
}

/* The first name of Slurm's list: "n1" of "n1,n2", "rack0n07" of "rack[0-3]n[07,09]". */
static bool first_of_list(const char *list, char *out, size_t cap) {
    size_t n = 0;
    for (const char *c = list; *c && *c != ','; c++) {
        if (*c == ']') continue;
        if (*c == '[') {
            while (*++c && *c != '-' && *c != ',' && *c != ']')
                if (n + 1 < cap) out[n++] = *c;
            while (*c && *c != ']') c++;
            if (!*c) break;
            continue;
        }
        if (n + 1 < cap) out[n++] = *c;
    }
    out[n] = '\0';
    return n > 0 && n + 1 < cap;
}

static sl_status find_first(task *t, sl_err *err) {
    const char *leader = sl_options_launcher(SL_LWS_LEADER_ADDRESS);
    const char *list = sl_options_launcher(SL_SLURM_JOB_NODELIST);
    bool found = true;
    if (t->o->first[0])
        found = snprintf(t->first, sizeof t->first, "%s", t->o->first) < (int)sizeof t->first;
    else if (t->one_machine)
        strcpy(t->first, "127.0.0.1");
    else if (leader)
        found = snprintf(t->first, sizeof t->first, "%s", leader) < (int)sizeof t->first;
    else if (list)
        found = first_of_list(list, t->first, sizeof t->first);
    else if (t->rank == 0)
        strcpy(t->first, "0.0.0.0"); /* it is here, and need not know its name */
    else
        return sl_fail(err, SL_ERR_ARG,
                       "where rank 0 is, the launcher does not say: --first HOST, or SLUICE_FIRST "
                       "for all tasks (mpirun -x)");
    if (!found)
        return sl_fail(err, SL_ERR_ARG, "--first: '%.40s...': limit %d characters", t->o->first,
                       HOST_MAX - 1);
    t->one_machine = t->one_machine || strcmp(t->first, "localhost") == 0 ||
                     strcmp(t->first, "::1") == 0 || strncmp(t->first, "127.", 4) == 0;
    return SL_OK;
}

/* ---- the secret, for the processes that are started: a file without a name, of this user ---- */

static sl_status pass_secret(task *t, sl_err *err) {
    char secret[SL_SECRET_MAX + 1];
    int fd = -1;
    sl_status st = sl_deploy_secret(t->o, secret, err);
    if (st == SL_OK && !secret[0])
        st = sl_fail(err, SL_ERR_ARG,
                     "a secret is needed (--secret-file, - for standard input, or SLUICE_SECRET)");
    if (st == SL_OK) st = sl_memfd_create(strlen(secret), &fd, err);
    if (st != SL_OK) return st;
    const bool ok = fchmod(fd, 0600) == 0 &&
                    write(fd, secret, strlen(secret)) == (ssize_t)strlen(secret) &&
                    fcntl(fd, F_SETFD, 0) == 0;
    snprintf(t->secret, sizeof t->secret, "/proc/self/fd/%d", fd);
    return ok ? SL_OK : sl_fail(err, SL_ERR_IO, "memfd: %s", strerror(errno));
}

/* ---- command lines ---- */

typedef struct line {
    const char **word;
    size_t n;
} line;

static void put(line *l, const char *flag, const char *value) {
    if (!value[0] || l->n + 3 > SL_SUPERVISED_WORDS) return;
    l->word[l->n++] = flag;
    l->word[l->n++] = value;
}

/* Nothing where it is what the verb takes by itself. */
static void put_number(task *t, line *l, size_t slot, const char *flag, uint32_t value) {
    if (!value) return;
    snprintf(t->numbers[slot], sizeof t->numbers[slot], "%u", value);
    put(l, flag, t->numbers[slot]);
}

static sl_status coordinator_words(void *ctx, const char *out[SL_SUPERVISED_WORDS], sl_err *err) {
    task *t = ctx;
    const sl_options *o = t->o;
    line l = {.word = out};
    (void)err;
    out[l.n++] = t->program;
    out[l.n++] = "serve";
    out[l.n++] = o->arg[0];
    out[l.n++] = "--remote";
    out[l.n++] = "--supervised";
    put(&l, "--plan", o->plan);
    put_number(t, &l, 0, "--attention", o->attention);
    put_number(t, &l, 1, "--experts", o->experts);
    put_number(t, &l, 2, "--max-attention", o->max_attention);
    put_number(t, &l, 3, "--max-experts", o->max_experts);
    put_number(t, &l, 4, "--threads", o->threads);
    put_number(t, &l, 5, "--join-timeout", o->join_timeout);
    snprintf(t->numbers[6], sizeof t->numbers[6], "%u", o->drain_timeout);
    put(&l, "--drain-timeout", t->numbers[6]);
    put(&l, "--fabric-host", t->own);
    put(&l, "--fabric-port", t->port_text);
    put(&l, "--secret-file", t->secret);
    return SL_OK;
}

/* The coordinator's address. Its name may come to be known later. */
static sl_status resolve(const task *t, struct sockaddr_storage *out, socklen_t *len, sl_err *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(t->first, t->port_text, &hints, &list);
    if (rc != 0 || !list)
        return sl_fail(err, SL_ERR_NOTFOUND, "the coordinator's host '%s': %s", t->first,
                       gai_strerror(rc));
    memcpy(out, list->ai_addr, list->ai_addrlen);
    *len = list->ai_addrlen;
    freeaddrinfo(list);
    return SL_OK;
}

/* Does somebody listen there? */
static bool is_there(const struct sockaddr_storage *a, socklen_t len) {
    int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    if (fd < 0) return false;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    bool ok = connect(fd, (const struct sockaddr *)a, len) == 0;
    if (!ok && errno == EINPROGRESS && poll(&p, 1, CONNECT_MS) == 1)
        ok = getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
    close(fd);
    return ok;
}

/* The address of this machine from which the coordinator is reached: the others are on the same
 * network. Where that is loopback, as a machine's own name often is, the fabric chooses. */
static void own_address(const task *t, const struct sockaddr_storage *a, socklen_t len,
                        char out[HOST_MAX]) {
    struct sockaddr_storage mine = {0};
    socklen_t size = sizeof mine;
    const bool v6 = a->ss_family == AF_INET6;
    int fd = socket(a->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    strcpy(out, v6 ? "::" : "0.0.0.0");
    if (fd >= 0 && connect(fd, (const struct sockaddr *)a, len) == 0 &&
        getsockname(fd, (struct sockaddr *)&mine, &size) == 0) {
        const struct sockaddr_in *four = (const void *)&mine;
        const struct sockaddr_in6 *six = (const void *)&mine;
        const bool loopback =
            v6 ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) : ntohl(four->sin_addr.s_addr) >> 24 == 127;
        if (!loopback || t->one_machine)
            inet_ntop(mine.ss_family, v6 ? (const void *)&six->sin6_addr : &four->sin_addr, out,
                      HOST_MAX);
    }
    if (fd >= 0) close(fd);
}

/* --fabric-host: other than what the option is by itself. */
static bool own_is_said(const sl_options *o) {
    return o->fabric_host[0] && strcmp(o->fabric_host, "127.0.0.1") != 0;
}

static sl_status worker_words(void *ctx, const char *out[SL_SUPERVISED_WORDS], sl_err *err) {
    task *t = ctx;
    const sl_options *o = t->o;
    struct sockaddr_storage a;
    socklen_t len = 0;
    sl_status st = resolve(t, &a, &len, err);
    if (st != SL_OK && !t->told) return st;
    if (t->told && (st != SL_OK || !is_there(&a, len))) {
        if (++t->misses >= MISSES) return SL_ERR_CANCELLED;
        return sl_fail(err, SL_ERR_PEER_DOWN, "it was told to stop, and its coordinator is gone");
    }
    t->misses = 0;
    own_address(t, &a, len, t->own);
    if (own_is_said(o)) snprintf(t->own, sizeof t->own, "%s", o->fabric_host);
    line l = {.word = out};
    out[l.n++] = t->program;
    out[l.n++] = "worker";
    put(&l, "--join", t->join);
    put(&l, "--worker-id", t->id);
    put(&l, "--fabric-host", t->own);
    put(&l, "--secret-file", t->secret);
    put(&l, "--model", o->model[0] ? o->model : o->arg[0]);
    put_number(t, &l, 0, "--threads", o->threads);
    /* Its coordinator may have been about to go when it was there a moment ago. */
    put_number(t, &l, 1, "--join-timeout", t->told ? MISSES : o->join_timeout);
    return SL_OK;
}

/* ---- what an end means ---- */

/* 2 and 3: wrong usage, a plan that cannot work: another try says the same. */
static bool is_hopeless(int status) {
    return status == 2 || status == 3 || status == 127;
}

static bool coordinator_again(void *ctx, int status, double lived_s) {
    task *t = ctx;
    if (status == 0 || is_hopeless(status)) return false;
    t->starts = lived_s > t->o->join_timeout + FORGIVEN_S ? 1 : t->starts + 1;
    return t->starts < COORDINATORS;
}

/* 0: somebody has told it to stop. A drained one may be wanted again (sluice join), so it goes on
 * asking as long as there is a coordinator. */
static bool worker_again(void *ctx, int status, double lived_s) {
    task *t = ctx;
    if (status == 0)
        t->told = true;
    else if (lived_s > FORGIVEN_S)
        t->told = false;
    t->misses = 0;
    return !is_hopeless(status);
}

/* The coordinator knows the plan: as many tasks as it has workers, and itself; free places may have
 * theirs. */
static sl_status check_size(const task *t, sl_err *err) {
    sl_job j;
    if (t->rank || !t->size) return SL_OK;
    sl_status st = sl_job_open(t->o, &j, err);
    const uint32_t least = st == SL_OK ? sl_plan_n_first(&j.plan) : 0;
    if (st == SL_OK && (t->size < least + 1 || t->size > j.plan.n_workers + 1))
        st = sl_fail(err, SL_ERR_ARG, "%u tasks: a coordinator and %u worker%s are %u", t->size,
                     least, least == 1 ? "" : "s", least + 1);
    sl_job_free(&j);
    return st;
}

static sl_status prepare(task *t, sl_err *err) {
    sl_status st = find_rank(t, err);
    if (st == SL_OK) st = find_first(t, err);
    if (st == SL_OK) st = pass_secret(t, err);
    if (st == SL_OK) st = check_size(t, err);
    ssize_t n = readlink("/proc/self/exe", t->program, sizeof t->program - 1);
    if (st == SL_OK && n <= 0) st = sl_fail(err, SL_ERR_IO, "/proc/self/exe: %s", strerror(errno));
    t->port = t->o->fabric_port ? t->o->fabric_port : DEFAULT_PORT;
    const bool six = strchr(t->first, ':') != NULL;
    snprintf(t->port_text, sizeof t->port_text, "%u", t->port);
    snprintf(t->join, sizeof t->join, six ? "[%s]:%u" : "%s:%u", t->first, t->port);
    snprintf(t->id, sizeof t->id, "%u", t->rank ? t->rank - 1 : 0);
    snprintf(t->own, sizeof t->own, "%s",
             own_is_said(t->o) ? t->o->fabric_host
             : t->one_machine  ? t->first
             : six             ? "::"
                               : "0.0.0.0");
    return st;
}

int cmd_task(const sl_options *o) {
    sl_err err = {0};
    task t = {.o = o};
    char who[32] = "coordinator";
    sl_status st = prepare(&t, &err);
    if (st != SL_OK) return sl_cmd_fail("task", &err);
    if (t.rank) snprintf(who, sizeof who, "worker %u", t.rank - 1);
    sl_log_set_who(who);
    const sl_supervised s = {.who = who,
                             .words = t.rank ? worker_words : coordinator_words,
                             .again = t.rank ? worker_again : coordinator_again,
                             .ctx = &t,
                             .deaf = t.rank > 0,
                             .stop_s = o->drain_timeout + STOP_EXTRA_S};
    return sl_supervise(&s);
}
