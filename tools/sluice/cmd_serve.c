/* sluice serve: engine and API until SIGINT or SIGTERM. */
#include "cmd.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/memory.h"
#include "base/notify.h"
#include "format/kv_folder.h"
#include "text/chat.h"
#include "net/net.h"
#include "serve/server.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DRAIN_POLL_MS 20
#define TLS_LOOK_S    10   /* between two looks at the files of the certificate */
#define WHOLE         0.95 /* share of the weights: less of them in memory is said */

/* HTTPS, if it is spoken. */
typedef struct secured {
    sl_tls_pair *pair; /* of the start */
    sl_tls_look look;  /* of the files when they were last read */
} secured;

/* Folder name without slashes: what clients call the model unless told otherwise. */
static void model_name(const sl_options *o, char *out, size_t cap) {
    const char *folder = o->arg[0];
    size_t n = strlen(folder);
    while (n > 1 && folder[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && folder[start - 1] != '/') start--;
    snprintf(out, cap, "%.*s", (int)(n - start), folder + start);
    if (o->served_model_name[0]) snprintf(out, cap, "%s", o->served_model_name);
}

static void print_workers(sl_engine *e) {
    sl_engine_detail d;
    sl_err err;
    if (sl_engine_detail_get(e, &d, &err) != SL_OK) return;
    for (uint32_t i = 0; i < d.n_workers; i++) {
        const sl_worker_stats *w = &d.worker[i];
        if (w->wall_us == 0) continue;
        double wall = (double)w->wall_us / 1e6;
        fprintf(stderr,
                "  worker %u %-10s %9llu attention rows %9llu expert rows %9.2f MB sent %9.2f MB "
                "received  busy %5.1f s of %5.1f s (%4.1f%%)\n",
                w->id,
                w->roles == 3                   ? "both"
                : w->roles == SL_ROLE_ATTENTION ? "attention"
                                                : "expert",
                (unsigned long long)w->attention_rows, (unsigned long long)w->expert_rows,
                (double)w->sent_bytes / 1e6, (double)w->received_bytes / 1e6,
                (double)(w->execute_us + w->pack_us + w->send_us) / 1e6, wall,
                100.0 * (double)(w->execute_us + w->pack_us + w->send_us) / (double)w->wall_us);
    }
    sl_engine_detail_free(&d);
}

static sigset_t stop_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

/* Lets running requests finish; a second signal, or the end of the time, leaves the rest. A
 * launcher signals whole jobs, and more than once: supervised, a second signal says nothing. */
static void drain(sl_server *server, uint32_t timeout_s, bool supervised) {
    const sigset_t set = stop_signals();
    const struct timespec pause = {.tv_nsec = DRAIN_POLL_MS * 1000000};
    uint64_t until_ns = sl_now_ns() + timeout_s * 1000000000ull;
    sl_server_drain(server);
    for (uint32_t n; (n = sl_server_running(server)) > 0;) {
        int sig = sl_now_ns() < until_ns ? sigtimedwait(&set, NULL, &pause) : SIGALRM;
        if (sig < 0 || (supervised && sig != SIGALRM)) continue;
        sl_log(SL_LOG_WARN, "serve", "%s: %u requests are ended unfinished",
               sig == SIGALRM ? "--drain-timeout is over" : "a second signal", n);
        return;
    }
}

/* A file that cannot be read, or has no key, changes nothing. */
static void read_keys_again(sl_server *server, const char *path) {
    sl_err err = {0};
    char *lines = NULL;
    sl_status st = sl_deploy_read_keys(path, &lines, &err);
    if (st == SL_OK) st = sl_server_set_keys(server, lines, &err);
    sl_free(lines);
    if (st == SL_OK)
        sl_log(SL_LOG_WARN, "serve", "%s: its keys are read again and hold from now on", path);
    else
        sl_log(SL_LOG_ERROR, "serve", "%s: %s; the keys are as before", path, err.msg);
}

/* Files that cannot be read, or do not fit, change nothing. */
static void read_tls_again(sl_server *server, const sl_options *o, sl_tls_look *look) {
    sl_err err = {0};
    sl_tls_pair *pair = NULL;
    if (sl_deploy_tls(o, look, &pair, &err) != SL_OK) {
        sl_log(SL_LOG_ERROR, "serve", "%s; the certificate is as before", err.msg);
        return;
    }
    sl_server_set_tls(server, pair);
    sl_tls_pair_unref(pair);
    sl_log(SL_LOG_WARN, "serve", "%s: the certificate is read again, for clients that come now",
           o->tls_cert);
}

static bool hears_hangups(const sl_options *o) {
    return o->api_key_file[0] || o->tls_cert[0];
}

static void read_again(sl_server *server, const sl_options *o, sl_tls_look *look) {
    if (o->api_key_file[0]) read_keys_again(server, o->api_key_file);
    if (o->tls_cert[0]) read_tls_again(server, o, look);
}

/* SIGINT, SIGTERM or SIGHUP. A certificate is read again meanwhile when its files are others: who
 * renews them in Kubernetes sends no signal. */
static int await_signal(sl_server *server, const sl_options *o, sl_tls_look *look) {
    const struct timespec period = {.tv_sec = TLS_LOOK_S};
    sigset_t set = stop_signals();
    if (hears_hangups(o)) sigaddset(&set, SIGHUP);
    for (;;) {
        const int sig =
            o->tls_cert[0] ? sigtimedwait(&set, NULL, &period) : sigwaitinfo(&set, NULL);
        if (sig > 0) return sig;
        if (o->tls_cert[0] && sl_deploy_tls_changed(o, look)) read_tls_again(server, o, look);
    }
}

/* Returns when it is time to stop: at SIGINT, or at SIGTERM when running requests are answered. */
static void await_end(sl_server *server, const sl_options *o, sl_tls_look *look) {
    int sig;
    while ((sig = await_signal(server, o, look)) == SIGHUP) read_again(server, o, look);
    sl_log(SL_LOG_INFO, "serve", "signal %d: stopping, %u requests run", sig,
           sl_server_running(server));
    sl_notify_stopping();
    if (sig == SIGTERM) drain(server, o->drain_timeout, o->supervised);
}

static bool signalled(void) {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGINT) == 1 || sigismember(&pending, SIGTERM) == 1;
}

/* Signals are taken by sigwait alone: blocked before any thread exists. */
static void block_signals(bool hangup) {
    sigset_t set = stop_signals();
    if (hangup) sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

/* For whoever starts the server: where it listens, once it does. */
static void print_json(const sl_deployment *d, const char *url, const char *name) {
    const sl_engine_opts *e = &d->opts;
    printf("{\"url\": \"%s\", \"model\": ", url);
    sl_print_json_string(stdout, name, strlen(name));
    printf(", \"workers\": %u, \"transport\": \"%s\", \"context\": %u, ", e->plan.n_workers,
           e->transport, e->plan.context);
    sl_deploy_print_schedule(d, stdout);
    printf("}\n");
    fflush(stdout);
}

/* A plan has room for the requests that it was made for, which may be short. */
static void say_context(const sl_options *o, const sl_deployment *d) {
    uint32_t most = d->spec.max_position;
    if (o->plan[0] && !o->ctx && d->opts.plan.context < most)
        fprintf(stderr,
                "%s has a context of %u, the model's is %u: longer requests are refused (--ctx; "
                "sluice plan --context)\n",
                o->plan, d->opts.plan.context, most);
}

/* What the first minute will be like: a start from a cold disk reads before it serves. start_ns: 0
 * before workers are started. */
static void say_weights(const char *name, const sl_cached *weights, uint64_t start_ns) {
    if (!weights) return;
    uint64_t total = sl_cached_total(weights), now = sl_cached_now(weights),
             room = sl_memory_free();
    double unit = total < 1000000000u ? 1e6 : 1e9, seconds = (double)(sl_now_ns() - start_ns) / 1e9;
    const char *bytes = total < 1000000000u ? "MB" : "GB";
    bool whole = (double)now >= WHOLE * (double)total;
    if (start_ns && whole)
        sl_log(SL_LOG_INFO, "serve", "%.1f of %.1f %s of weights are in memory after %.1f s",
               (double)now / unit, (double)total / unit, bytes, seconds);
    else if (start_ns)
        fprintf(stderr,
                "%s: %.1f of %.1f %s of weights are in memory after %.1f s; the rest is read when "
                "it is used\n",
                name, (double)now / unit, (double)total / unit, bytes, seconds);
    else if (!whole)
        fprintf(stderr, "%s: %.1f %s of weights, %.1f %s of them in memory; the rest is read now\n",
                name, (double)total / unit, bytes, (double)now / unit, bytes);
    if (!start_ns && total > room)
        sl_log(SL_LOG_WARN, "serve",
               "%.1f %s of weights and %.1f %s of memory for them: what does not fit is read from "
               "the disk again and again",
               (double)total / unit, bytes, (double)room / unit, bytes);
}

static sl_status read_sync(const char *text, sl_sync *out, sl_err *err) {
    static const char *const names[] = {
        [SL_SYNC_NEVER] = "never", [SL_SYNC_SECOND] = "second", [SL_SYNC_EACH] = "each"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        *out = (sl_sync)i;
        if (!strcmp(text, names[i])) return SL_OK;
    }
    return sl_fail(err, SL_ERR_ARG, "--journal-sync: \"%s\" is none of never, second, each", text);
}

static sl_status read_cache(const char *text, sl_cache *out, sl_err *err) {
    static const char *const names[] = {
        [SL_CACHE_OFF] = "off", [SL_CACHE_KEY] = "key", [SL_CACHE_SHARED] = "shared"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        *out = (sl_cache)i;
        if (!strcmp(text, names[i])) return SL_OK;
    }
    return sl_fail(err, SL_ERR_ARG, "--prefix-cache: \"%s\" is none of key, shared, off", text);
}

/* Whose pages are whose has to be found again: with a salt of its own each start would find none.
 */
static sl_status read_salt(const sl_options *o, sl_cache cache, uint8_t out[SL_KV_SALT_BYTES],
                           sl_err *err) {
    if (cache == SL_CACHE_OFF)
        return sl_fail(err, SL_ERR_ARG,
                       "--kv-disk is of the prefix cache, which --prefix-cache off has none of");
    return sl_kv_folder_salt(o->kv_disk, out, err);
}

/* Before any worker is started: what is wrong with it is said at once. */
static sl_status open_journal(const sl_options *o, const sl_deployment *d, const sl_tokenizer *tok,
                              sl_journal **out, sl_err *err) {
    sl_journal_about about;
    if (!o->journal[0]) return SL_OK;
    if (!o->responses)
        return sl_fail(err, SL_ERR_ARG,
                       "--journal: --responses N has to say how many answers it "
                       "may hold");
    sl_status st = sl_server_about(&d->spec, tok, &d->gen, &about, err);
    return st == SL_OK ? sl_journal_open(o->journal, &about, out, err) : st;
}

/* ", 1 of them for prompts" of a plan with sides. */
static void name_prefill(const sl_plan *p, char *out, size_t cap) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_workers; i++) n += p->worker[i].prefill;
    if (n) snprintf(out, cap, ", %u of them for prompts", n);
}

static sl_status serve(const sl_options *o, sl_deployment *d, const sl_tokenizer *tok,
                       const sl_chat *chat, sl_journal *journal, sl_sync sync, secured *tls,
                       sl_err *err) {
    sl_engine *e = NULL;
    sl_server *server = NULL;
    sl_cache cache;
    char name[256], admin_key[SL_SECRET_MAX + 1] = "", *keys = NULL;
    model_name(o, name, sizeof name);
    uint8_t salt[SL_KV_SALT_BYTES];
    sl_status st = read_cache(o->prefix_cache, &cache, err);
    if (st == SL_OK && o->kv_disk[0]) st = read_salt(o, cache, salt, err);
    if (st == SL_OK && o->admin_key_file[0])
        st = sl_deploy_read_key(o->admin_key_file, admin_key, err);
    if (st == SL_OK && o->api_key_file[0]) st = sl_deploy_read_keys(o->api_key_file, &keys, err);
    uint64_t start_ns = sl_now_ns();
    if (st == SL_OK) say_weights(name, d->weights, 0);
    if (st == SL_OK) st = sl_deploy_start(o, d, &e, err);
    if (st == SL_OK) sl_deploy_started(e, d);
    if (st == SL_OK) say_weights(name, d->weights, start_ns);
    const sl_server_opts so = {.engine = e,
                               .tokenizer = tok,
                               .chat = chat,
                               .plan = &d->opts.plan,
                               .tool_format = o->tool_format,
                               .host = o->host,
                               .port = (uint16_t)o->port,
                               .tls = tls->pair,
                               .api_key = o->api_key,
                               .api_keys = keys,
                               .cors_origin = o->cors_origin,
                               .admin_key = admin_key,
                               .max_connections = o->max_connections,
                               .keepalive_s = o->keepalive,
                               .timings = o->timings,
                               .max_unread_tokens = o->max_unread_tokens,
                               .max_answer_bytes = o->max_answer_bytes,
                               .responses = o->responses,
                               .responses_bytes = o->responses_bytes,
                               .responses_ttl_s = o->responses_ttl,
                               .responses_grace_s = o->responses_grace,
                               .journal = journal,
                               .journal_sync = sync,
                               .cache = cache,
                               .salt = o->kv_disk[0] ? salt : NULL,
                               .weights = d->weights,
                               .planner = o->no_planner ? NULL : d->program,
                               .model_path = o->arg[0],
                               .profile = o->profile,
                               .plan_timeout_s = o->plan_timeout,
                               .predicted_dense_s = {d->dense_s[0], d->dense_s[1]},
                               .served_model_name = name,
                               .generation = d->gen,
                               .context = d->opts.plan.context};
    if (st == SL_OK) st = sl_server_create(&so, &server, err);
    sl_free(keys);
    if (st == SL_OK) {
        char prompts[48] = "";
        name_prefill(&d->opts.plan, prompts, sizeof prompts);
        fprintf(stderr, "listening on %s (model %s, %u worker%s%s, %s, context %u, KV %s)\n",
                sl_server_url(server), name, d->opts.plan.n_workers,
                d->opts.plan.n_workers == 1 ? "" : "s", prompts, d->opts.transport,
                d->opts.plan.context, sl_kv_type_names[d->opts.plan.kv_type]);
        if (o->json) print_json(d, sl_server_url(server), name);
        char status[320];
        snprintf(status, sizeof status, "%s on %s", name, sl_server_url(server));
        sl_notify_ready(status);
        sl_status_line *line = sl_status_line_start(o, e);
        await_end(server, o, &tls->look);
        sl_status_line_stop(line);
        print_workers(e);
    }
    sl_server_free(server);
    return sl_generate_end(e, st, err);
}

int cmd_serve(const sl_options *o) {
    sl_err err = {0};
    sl_deployment d = {0};
    sl_tokenizer *tok = NULL;
    sl_chat *chat = NULL;
    sl_journal *journal = NULL;
    secured tls = {0};
    sl_sync sync = SL_SYNC_NEVER;
    sl_deploy_setup_process(o);
    block_signals(hears_hangups(o));
    sl_notify_open();
    sl_log_set_who("coordinator");
    sl_status st = sl_deploy_tls(o, &tls.look, &tls.pair, &err);
    if (st == SL_OK) st = sl_deploy_prepare(o, true, 0, &d, &err);
    d.gen = sl_deploy_generation(o, d.gen);
    d.opts.give_up = signalled;
    d.opts.max_queue = o->max_queue;
    d.opts.queue_timeout_s = o->queue_timeout;
    if (st == SL_OK && o->remote) {
        d.opts.spawn = SL_SPAWN_NONE;
        if (!d.secret[0])
            st = sl_fail(&err, SL_ERR_ARG,
                         "--remote: a secret is needed (--secret-file or "
                         "SLUICE_SECRET)");
    }
    if (st == SL_OK) st = sl_tokenizer_open(o->arg[0], &tok, &err);
    if (st == SL_OK) {
        st = sl_deploy_chat(o, &chat, &err);
        bool own = !o->chat_template[0];
        if (own && (st == SL_ERR_NOTFOUND || st == SL_ERR_UNSUPPORTED)) { /* completions work */
            sl_log(SL_LOG_WARN, "serve", "%s: chat requests will be refused", err.msg);
            st = SL_OK;
        }
    }
    if (st == SL_OK) say_context(o, &d);
    if (st == SL_OK) st = read_sync(o->journal_sync, &sync, &err);
    if (st == SL_OK) st = open_journal(o, &d, tok, &journal, &err);
    if (st == SL_OK) st = serve(o, &d, tok, chat, journal, sync, &tls, &err);
    if (st == SL_ERR_CANCELLED && signalled()) st = SL_OK; /* asked to stop before it began */
    sl_journal_close(journal);
    sl_tls_pair_unref(tls.pair);
    sl_chat_free(chat);
    sl_tokenizer_free(tok);
    sl_deploy_free(&d);
    return st == SL_OK ? 0 : sl_cmd_fail("serve", &err);
}
