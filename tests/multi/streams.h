/* Requests on an engine of worker threads or processes while its plan changes: who submits them,
 * what came of each, who waits for how many. Included once, by a program that defines N_NEW tokens
 * of a stream, MAX_PROMPT ids, and DEADLINE_S for anything. */
#ifndef SL_TESTS_STREAMS_H
#define SL_TESTS_STREAMS_H

#include "base/log.h"
#include "base/rng.h"
#include "engine/coord/engine.h"
#include "model/model.h"
#include "net/net.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct outcome {
    uint32_t ids[N_NEW], n;
    uint64_t made_us, longest_us; /* the last token; between two */
    sl_finish finish;
    char message[200];
} outcome;

static const char *transport, *program, *folder;
static sl_model_spec spec;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t n_begun, n_ended; /* requests with a token; with an end */

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < ev->n && o->n < N_NEW; i++) {
        if (o->n > 0) o->longest_us = SL_MAX(o->longest_us, ev->made_us - o->made_us);
        o->made_us = ev->made_us;
        n_begun += o->n == 0;
        o->ids[o->n++] = ev->tokens[i];
    }
    if (ev->finish != SL_FINISH_NONE) {
        o->finish = ev->finish;
        if (ev->message) snprintf(o->message, sizeof o->message, "%s", ev->message);
        n_ended++;
    }
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Until *count is n, or all requests have ended. */
static int await(const uint32_t *count, uint32_t n, uint32_t all) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    int rc = 0;
    pthread_mutex_lock(&lock);
    while (*count < n && n_ended < all && rc == 0)
        rc = pthread_cond_timedwait(&changed, &lock, &until);
    pthread_mutex_unlock(&lock);
    return rc ? printf("FAILED %u of %u after %d s\n", *count, n, DEADLINE_S) : 0;
}

/* The i-th request is the same each time. */
static int submit(sl_engine *e, uint32_t i, uint32_t n_prompt, uint32_t n_new, outcome *o) {
    sl_err err;
    uint64_t id, rng = 77 + i;
    uint32_t prompt[MAX_PROMPT];
    const sl_request_params p = {
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = n_new,
        .sampling = {.temperature = i % 2 ? 0.8f : 0, .top_p = 1, .seed = i},
        .ignore_eos = true,
        .on_event = on_event,
        .ctx = o};
    for (uint32_t j = 0; j < n_prompt; j++) prompt[j] = (uint32_t)sl_rng_below(&rng, spec.vocab);
    *o = (outcome){0};
    return sl_engine_submit(e, &p, &id, &err) == SL_OK ? 0 : printf("FAILED submit: %s\n", err.msg);
}

static int same(const outcome *want, const outcome *got, uint32_t n) {
    int bad = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (got[i].finish != SL_FINISH_LENGTH)
            bad = printf("FAILED request %u: finish %d %s\n", i, got[i].finish, got[i].message);
        else if (got[i].n != want[i].n || memcmp(got[i].ids, want[i].ids, sizeof got[i].ids) != 0)
            bad = printf("FAILED request %u: other tokens\n", i);
    }
    return bad;
}

static sl_engine_opts options_of(const sl_plan *p) {
    return (sl_engine_opts){.model_folder = folder,
                            .plan = *p,
                            .transport = transport,
                            .spawn =
                                strcmp(transport, "loop") ? SL_SPAWN_PROCESSES : SL_SPAWN_THREADS,
                            .host = "127.0.0.1",
                            .program = program,
                            .join_timeout_s = DEADLINE_S};
}

/* TRANSPORT SLUICE MODEL [ONE_IN]. False: that is not what was given, which is said. */
static bool read_arguments(int argc, char **argv, size_t *one_in) {
    sl_err err;
    if (argc < 4) return fprintf(stderr, "usage: %s TRANSPORT SLUICE MODEL [ONE_IN]\n", argv[0]), 0;
    transport = argv[1];
    program = argv[2];
    folder = argv[3];
    *one_in = argc > 4 ? SL_MAX(strtoul(argv[4], NULL, 10), 1ul) : 1;
    if (strcmp(transport, "loop")) sl_net_setup_process(transport);
    sl_log_set_level(SL_LOG_ERROR);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (sl_model_read_spec(folder, &spec, NULL, &err) == SL_OK) return true;
    return printf("%s\n", err.msg), false;
}

#endif
