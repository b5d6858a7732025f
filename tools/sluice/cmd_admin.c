/* sluice drain, join, restart: what is asked of a running server's workers, and waited for. */
#include "cmd.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOOK_MS    50
#define REQUEST_S  30.0 /* for one answer of the server */
#define ALL        UINT32_MAX
#define MAX_WORKER 999999999ul

typedef struct admin {
    const sl_options *o;
    const char *verb, *done; /* "drain", "is drained" */
    char key[SL_SECRET_MAX + 1];
    bool first; /* nothing is printed of the JSON document's list yet */
} admin;

/* ---- answers ---- */

static const char *text_of(const json_t *obj, const char *key) {
    const char *text = json_string_value(json_object_get(obj, key));
    return text ? text : "";
}

/* What a refusal means for the exit status, and whether it may pass. */
static sl_status refusal(const json_t *doc, unsigned http, bool *not_now, sl_err *err) {
    const json_t *e = json_object_get(doc, "error");
    const char *code = text_of(e, "code"), *message = text_of(e, "message");
    *not_now = strcmp(code, "not_now") == 0;
    sl_status st = strcmp(code, "last_worker") == 0      ? SL_ERR_INFEASIBLE
                   : strcmp(code, "no_memory") == 0      ? SL_ERR_INFEASIBLE
                   : strcmp(code, "unknown_worker") == 0 ? SL_ERR_ARG
                                                         : SL_ERR_UNSUPPORTED;
    if (strcmp(code, "unknown_url") == 0)
        message = "the server has no /admin: it was started without --admin-key-file";
    return sl_fail(err, st, "%s", message[0] ? message : http == 401 ? "wrong key" : "refused");
}

/* body NULL: GET. *not_now: it was refused for now. */
static sl_status ask(const admin *a, const char *path, const char *body, json_t **out,
                     bool *not_now, sl_err *err) {
    sl_http_answer answer;
    *out = NULL;
    *not_now = false;
    const sl_http_server to = {a->o->url, a->o->cacert, a->key};
    sl_status st = sl_http_ask(&to, path, body, REQUEST_S, &answer, err);
    if (st != SL_OK) return st;
    json_t *doc = json_loads(answer.body, 0, NULL);
    sl_free(answer.body);
    if (answer.status == 200 || answer.status == 202) {
        *out = doc;
        return doc ? SL_OK : sl_fail(err, SL_ERR_FORMAT, "%s: that is no JSON", a->o->url);
    }
    st = refusal(doc, answer.status, not_now, err);
    json_decref(doc);
    return st;
}

static sl_status workers(const admin *a, json_t **out, sl_err *err) {
    bool not_now;
    return ask(a, "/admin/workers", NULL, out, &not_now, err);
}

static const json_t *worker_of(const json_t *doc, uint32_t id) {
    const json_t *w;
    size_t i;
    json_array_foreach(json_object_get(doc, "workers"), i,
                       w) if (json_integer_value(json_object_get(w, "id")) ==
                              (json_int_t)id) return w;
    return NULL;
}

/* ---- waiting ---- */

static void rest(void) {
    const struct timespec pause = {.tv_nsec = LOOK_MS * 1000000};
    nanosleep(&pause, NULL);
}

/* Asks until it is not refused for now. */
static sl_status begin(const admin *a, uint32_t id, uint64_t until_ns, json_int_t *number,
                       sl_err *err) {
    char path[64], body[64];
    json_t *doc;
    bool not_now;
    snprintf(path, sizeof path, "/admin/workers/%u/%s", id, a->verb);
    snprintf(body, sizeof body, "{\"timeout\": %.3f}", a->o->grace);
    sl_status st;
    while ((st = ask(a, path, body, &doc, &not_now, err)) != SL_OK && not_now &&
           sl_now_ns() < until_ns)
        rest();
    if (st == SL_OK) *number = json_integer_value(json_object_get(doc, "operation"));
    json_decref(doc);
    return st;
}

/* Whether what was asked is over; *st: how. */
static bool is_over(const json_t *w, uint32_t id, json_int_t number, sl_status *st, sl_err *err) {
    const json_t *op = json_object_get(w, "operation");
    json_int_t n = json_integer_value(json_object_get(op, "number"));
    const char *error = text_of(op, "error");
    *st = SL_OK;
    if (n < number) return false; /* it is shown a little later */
    if (n > number)
        *st = sl_fail(err, SL_ERR_AGAIN, "something else was asked of worker %u meanwhile", id);
    else if (!json_is_true(json_object_get(op, "done")))
        return false;
    else if (error[0])
        *st = sl_fail(err, SL_ERR_AGAIN, "%s", error);
    return true;
}

static sl_status await(const admin *a, uint32_t id, json_int_t number, uint64_t until_ns,
                       sl_err *err) {
    char state[32] = "";
    for (;;) {
        json_t *doc;
        sl_status st = workers(a, &doc, err), how;
        if (st != SL_OK) return st;
        const json_t *w = worker_of(doc, id);
        bool over = is_over(w, id, number, &how, err);
        snprintf(state, sizeof state, "%s", text_of(w, "state"));
        json_decref(doc);
        if (over) return how;
        if (sl_now_ns() >= until_ns)
            return sl_fail(err, SL_ERR_TIMEOUT,
                           "worker %u is %s after %g s (--timeout); what was asked goes on", id,
                           state, a->o->timeout);
        rest();
    }
}

static void tell(admin *a, uint32_t id, double seconds) {
    if (a->o->json)
        printf("%s{\"id\": %u, \"seconds\": %.3f}", a->first ? "" : ", ", id, seconds);
    else
        printf("worker %u %s (%.1f s)\n", id, a->done, seconds);
    fflush(stdout);
    a->first = false;
}

static sl_status do_one(admin *a, uint32_t id, sl_err *err) {
    uint64_t began_ns = sl_now_ns(), until_ns = began_ns + (uint64_t)(1e9 * a->o->timeout);
    json_int_t number = 0;
    sl_status st = begin(a, id, until_ns, &number, err);
    if (st == SL_OK) st = await(a, id, number, until_ns, err);
    if (st == SL_OK) tell(a, id, 1e-9 * (double)(sl_now_ns() - began_ns));
    return st;
}

/* Those that serve now; each serves again before the next one leaves. */
static sl_status do_all(admin *a, sl_err *err) {
    json_t *doc;
    const json_t *w;
    size_t i;
    sl_status st = workers(a, &doc, err);
    if (st != SL_OK) return st;
    json_array_foreach(json_object_get(doc, "workers"), i, w) {
        uint32_t id = (uint32_t)json_integer_value(json_object_get(w, "id"));
        bool there = strcmp(text_of(w, "state"), "drained") != 0;
        if (!there && !a->o->json) printf("worker %u is drained: it is left alone\n", id);
        if (there) st = do_one(a, id, err);
        if (st != SL_OK) break;
    }
    json_decref(doc);
    return st;
}

/* ---- the verbs ---- */

static sl_status parse_id(const char *text, uint32_t *id, sl_err *err) {
    char *end;
    unsigned long v = *text >= '0' && *text <= '9' ? strtoul(text, &end, 10) : MAX_WORKER + 1;
    if (v > MAX_WORKER || *end)
        return sl_fail(err, SL_ERR_ARG, "'%.40s' is no worker's id: a number from 0 on", text);
    *id = (uint32_t)v;
    return SL_OK;
}

static sl_status whom(const sl_options *o, uint32_t *id, sl_err *err) {
    *id = ALL;
    if (o->all && o->n_args)
        return sl_fail(err, SL_ERR_ARG, "--all, or the id of a worker, not both");
    if (!o->all && !o->n_args)
        return sl_fail(err, SL_ERR_ARG, "the id of a worker is missing, or --all (see --help)");
    return o->all ? SL_OK : parse_id(o->arg[0], id, err);
}

static int run(const sl_options *o, const char *verb, const char *done) {
    admin a = {.o = o, .verb = verb, .done = done, .first = true};
    sl_err err = {0};
    uint32_t id = ALL;
    sl_status st = whom(o, &id, &err);
    if (st == SL_OK && !o->admin_key_file[0])
        st = sl_fail(&err, SL_ERR_ARG,
                     "--admin-key-file FILE is missing: that of the server's option");
    if (st == SL_OK) st = sl_deploy_read_key(o->admin_key_file, a.key, &err);
    if (st == SL_OK && o->json) printf("{\"workers\": [");
    bool begun = st == SL_OK;
    if (st == SL_OK) st = id == ALL ? do_all(&a, &err) : do_one(&a, id, &err);
    if (begun && o->json) {
        printf("], \"error\": ");
        if (st == SL_OK)
            printf("null}\n");
        else
            sl_print_json_string(stdout, err.msg, strlen(err.msg)), printf("}\n");
    }
    return st == SL_OK ? 0 : sl_cmd_fail(verb, &err);
}

int cmd_drain(const sl_options *o) {
    return run(o, "drain", "is drained");
}

int cmd_join(const sl_options *o) {
    return run(o, "join", "serves");
}

int cmd_restart(const sl_options *o) {
    return run(o, "restart", "serves again");
}
