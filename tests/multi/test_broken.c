/* Values that are not finite: a damaged checkpoint (an embedding row, a router's weight, an expert)
 * ends the requests whose rows meet the damage, with an error that names block and position, and
 * nobody else notices.
 *
 * usage: test_broken loop|shm|tcp SLUICE [ONE_IN]
 * ONE_IN: each damage meets one deployment in so many.
 * Requests run alone in one process; then all at once on each deployment, over few pages, so that
 * healthy ones get pages that broken ones wrote. Each has to end as it did alone. */
#include "unit/model_folder.h"

#include "base/log.h"
#include "engine/coord/engine.h"
#include "format/plan_json.h"
#include "net/net.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#define N_REQUESTS 20u
#define N_NEW      6u
#define DEADLINE_S 120
#define BAD_TOKEN  7u

typedef struct request {
    uint32_t prompt[40], n_prompt;
    bool draws_bad; /* by its bias: what it decodes first is the damaged token */
} request;

typedef struct outcome {
    uint32_t ids[N_NEW], n;
    sl_finish finish;
    sl_status status;
    char message[200];
} outcome;

typedef enum share { NONE, SOME, ALL } share;

/* Every element of a row, or only one, becomes `value`. */
typedef struct damage {
    const char *what, *config, *tensor;
    uint64_t row;
    float value;
    bool alone;
    share breaks;      /* so many of the requests... */
    const char *found; /* ...and where it is noticed */
} damage;

static const damage damages[] = {
    {"an embedding row", folder_mixtral, "model.embed_tokens.weight", BAD_TOKEN, NAN, false, SOME,
     "router of block 0"},
    {"an embedding row before a dense block", folder_glm4, "model.embed_tokens.weight", BAD_TOKEN,
     NAN, false, SOME, "router of block 1"},
    {"an embedding row of a model with dense branches", folder_arctic, "model.embed_tokens.weight",
     BAD_TOKEN, NAN, false, SOME, "router of block 1"},
    {"a router's row", folder_qwen2, "model.layers.2.mlp.gate.weight", 3, NAN, false, ALL,
     "router of block 2"},
    {"a router's weight", folder_qwen2, "model.layers.2.mlp.gate.weight", 3, 3.4e38f, true, SOME,
     "router of block 2"},
    {"an expert", folder_qwen, "model.layers.0.mlp.experts.4.down_proj.weight", 1, INFINITY, false,
     SOME, "router of block 2"},
    {"an expert of the last block", folder_qwen, "model.layers.2.mlp.experts.4.up_proj.weight", 1,
     INFINITY, false, SOME, "at the head"},
    {"a row of a router of scores", folder_glm4, "model.layers.1.mlp.gate.weight", 0, NAN, false,
     NONE, ""}, /* that expert never wins */
};

static const struct {
    const char *name;
    uint32_t attention, experts, lanes, chunks;
    sl_schedule schedule;
    sl_chunking chunking;
} deployments[] = {
    {"one process", 0, 0, 1, 1, SL_SCHED_EP, SL_CHUNK_TOKENS},
    {"one process, eps", 0, 0, 1, 3, SL_SCHED_EPS, SL_CHUNK_TOKENS},
    {"one process, aep", 0, 0, 1, 1, SL_SCHED_AEP, SL_CHUNK_TOKENS},
    {"3 colocated, ep", 3, 0, 1, 1, SL_SCHED_EP, SL_CHUNK_TOKENS},
    {"1+2, dep", 1, 2, 1, 1, SL_SCHED_DEP, SL_CHUNK_TOKENS},
    {"1+2, pingpong", 1, 2, 3, 1, SL_SCHED_PINGPONG, SL_CHUNK_TOKENS},
    {"2+1, findep", 2, 1, 2, 2, SL_SCHED_FINDEP, SL_CHUNK_EXPERTS},
    {"1+2, aep", 1, 2, 1, 1, SL_SCHED_AEP, SL_CHUNK_TOKENS},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint32_t n_open;
static const char *program, *transport;
static size_t one_in = 1;

static void on_event(void *ctx, const sl_request_event *ev) {
    outcome *o = ctx;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < ev->n && o->n < N_NEW; i++) o->ids[o->n++] = ev->tokens[i];
    if (ev->finish != SL_FINISH_NONE) {
        o->finish = ev->finish;
        o->status = ev->status;
        snprintf(o->message, sizeof o->message, "%s", ev->message ? ev->message : "");
        n_open--;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
}

/* Every third has the damaged token in its prompt, every fourth decodes it. */
static void make_requests(request *r, uint32_t vocab, uint64_t state) {
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        r[i] =
            (request){.n_prompt = 1 + (uint32_t)sl_rng_below(&state, 40), .draws_bad = i % 4 == 1};
        if (i % 4 == 3) r[i].n_prompt = 1;
        for (uint32_t j = 0; j < r[i].n_prompt; j++) {
            uint32_t id = (uint32_t)sl_rng_below(&state, vocab - 1);
            r[i].prompt[j] = id + (id >= BAD_TOKEN);
        }
        if (i % 3 == 0) r[i].prompt[sl_rng_below(&state, r[i].n_prompt)] = BAD_TOKEN;
    }
}

static int submit(sl_engine *e, const request *r, outcome *o) {
    sl_err err;
    uint64_t id;
    const sl_logit_bias bias = {BAD_TOKEN, r->draws_bad ? 100 : -100};
    const sl_request_params p = {.prompt = r->prompt,
                                 .n_prompt = r->n_prompt,
                                 .max_tokens = N_NEW,
                                 .sampling = {.top_p = 1, .bias = &bias, .n_bias = 1},
                                 .ignore_eos = true,
                                 SOME,
                                 .on_event = on_event,
                                 .ctx = o};
    *o = (outcome){0};
    pthread_mutex_lock(&lock);
    n_open++;
    pthread_mutex_unlock(&lock);
    if (sl_engine_submit(e, &p, &id, &err) == SL_OK) return 0;
    return printf("FAILED submit: %s\n", err.msg), 1;
}

static int await_all(void) {
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += DEADLINE_S;
    pthread_mutex_lock(&lock);
    while (n_open > 0 && rc == 0) rc = pthread_cond_timedwait(&changed, &lock, &until);
    if (rc) printf("FAILED %u requests not finished after %d s\n", n_open, DEADLINE_S);
    pthread_mutex_unlock(&lock);
    return rc != 0;
}

static sl_engine *start(const char *folder, const sl_model_spec *m, size_t d, uint32_t wire,
                        const char *how) {
    sl_err err;
    sl_engine *e = NULL;
    sl_engine_opts o = {.model_folder = folder,
                        .transport = how,
                        .spawn = strcmp(how, "loop") ? SL_SPAWN_PROCESSES : SL_SPAWN_THREADS,
                        .host = "127.0.0.1",
                        .program = program,
                        .join_timeout_s = DEADLINE_S};
    sl_status st =
        sl_plan_local(m, deployments[d].attention, deployments[d].experts, &o.plan, &err);
    if (st == SL_OK && deployments[d].schedule != o.plan.schedule)
        sl_plan_set_schedule(&o.plan, deployments[d].schedule);
    o.plan.lanes = deployments[d].lanes;
    o.plan.chunks = deployments[d].chunks;
    o.plan.chunking = deployments[d].chunking;
    o.plan.exact = true;
    o.plan.wire = wire;
    o.plan.threads = 1;
    o.plan.context = 64;
    o.plan.n_pages = 7; /* three requests or so at a time: pages are soon another's */
    o.plan.max_num_batched_tokens = 48;
    if (st == SL_OK) st = sl_engine_create(&o, &e, &err);
    sl_plan_free(&o.plan);
    if (st != SL_OK) printf("FAILED %s, %s: %s\n", deployments[d].name, how, err.msg);
    return e;
}

/* Alone: one after another, and each as the damage and its tokens say. */
static int run_reference(const char *folder, const sl_model_spec *m, const damage *x, uint32_t wire,
                         const request *r, outcome *ref) {
    sl_engine *e = start(folder, m, 0, wire, "loop");
    uint32_t n_whole = 0, n_broken = 0;
    int bad = !e;
    for (uint32_t i = 0; !bad && i < N_REQUESTS; i++) {
        const outcome *o = &ref[i];
        char where[32];
        bad = submit(e, &r[i], &ref[i]) || await_all();
        n_whole += o->finish == SL_FINISH_LENGTH;
        if (bad || o->finish == SL_FINISH_LENGTH) continue;
        n_broken++;
        uint32_t at = o->n ? r[i].n_prompt + o->n - 1 : 0; /* of the token that was drawn last */
        for (; o->n == 0 && r[i].prompt[at] != BAD_TOKEN && at + 1 < r[i].n_prompt;) at++;
        snprintf(where, sizeof where, "position %u (token %u) ", at, BAD_TOKEN);
        bool named = x->row != BAD_TOKEN || strstr(o->message, where);
        if (named && o->status == SL_ERR_NOT_FINITE && strstr(o->message, x->found)) continue;
        bad = printf("FAILED %s, alone, request %u: status %d, %s\n", x->what, i, o->status,
                     o->message);
    }
    sl_engine_free(e);
    share breaks = n_whole == 0 ? ALL : n_broken == 0 ? NONE : SOME;
    if (!bad && breaks != x->breaks)
        bad = printf("FAILED %s, alone: %u broken, %u whole\n", x->what, n_broken, n_whole);
    return bad != 0;
}

static int run_deployment(const char *folder, const sl_model_spec *m, const damage *x, size_t d,
                          uint32_t wire, const request *r, const outcome *ref) {
    outcome got[N_REQUESTS];
    sl_engine_stats stats;
    sl_engine *e = start(folder, m, d, wire, transport);
    int bad = !e;
    for (uint32_t i = 0; !bad && i < N_REQUESTS; i++) bad = submit(e, &r[i], &got[i]);
    if (!bad) bad = await_all();
    if (e) sl_engine_stats_get(e, &stats);
    sl_engine_free(e);
    for (uint32_t i = 0; !bad && i < N_REQUESTS; i++) {
        if (got[i].finish == ref[i].finish && got[i].n == ref[i].n &&
            memcmp(got[i].ids, ref[i].ids, sizeof got[i].ids) == 0 &&
            strcmp(got[i].message, ref[i].message) == 0)
            continue;
        bad =
            printf("FAILED %s, %s, %s, request %u: %u tokens, finish %d (%s), alone %u, %d (%s)\n",
                   x->what, deployments[d].name, transport, i, got[i].n, got[i].finish,
                   got[i].message, ref[i].n, ref[i].finish, ref[i].message);
    }
    if (!bad && !stats.serving)
        bad = printf("FAILED %s, %s, %s: it serves no more\n", x->what, deployments[d].name,
                     transport);
    if (!bad) printf("as alone: %s, %s, %s\n", x->what, deployments[d].name, transport);
    return bad != 0;
}

/* One file, rows of f32. */
static void plant(const char *folder, const damage *x, uint64_t columns) {
    size_t n;
    char *file = folder_read(folder, "model.safetensors", &n), name[128];
    uint64_t head, begin;
    memcpy(&head, file, 8);
    snprintf(name, sizeof name, "\"%s\"", x->tensor);
    const char *at = memmem(file + 8, head, name, strlen(name));
    if (!at || !(at = strstr(at, "data_offsets\":["))) abort();
    begin = strtoull(at + strlen("data_offsets\":["), NULL, 10);
    char *row = file + 8 + head + begin + x->row * columns * sizeof(float);
    for (uint64_t i = 0; i < columns; i++) {
        if (!x->alone || i == columns / 2) memcpy(row + i * sizeof(float), &x->value, 4);
    }
    folder_write(folder, "model.safetensors", file, n);
    free(file);
}

static int check_damage(const damage *x, size_t number) {
    char folder[64];
    sl_model_spec m;
    sl_err err;
    request r[N_REQUESTS];
    outcome ref[N_REQUESTS];
    uint32_t wire = (uint32_t)(number % SL_WIRE_FORMAT_COUNT);
    folder_make(folder, x->config, SL_F32, 1, 5 + number);
    int bad = sl_model_read_spec(folder, &m, NULL, &err) != SL_OK;
    if (bad) printf("FAILED %s: %s\n", folder, err.msg);
    bool down = strstr(x->tensor, "down_proj");
    if (!bad) plant(folder, x, down ? m.d_ff_expert : m.d_model);
    if (!bad) make_requests(r, m.vocab, 77 + number);
    if (!bad) bad = run_reference(folder, &m, x, wire, r, ref);
    for (size_t d = 0; !bad && d < SL_LEN(deployments); d++)
        if ((d + number) % one_in == 0) bad = run_deployment(folder, &m, x, d, wire, r, ref);
    folder_remove(folder);
    return bad;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "usage: test_broken TRANSPORT SLUICE [ONE_IN]\n"), 2;
    transport = argv[1];
    program = argv[2];
    if (argc > 3) one_in = SL_MAX(strtoul(argv[3], NULL, 10), 1ul);
    if (strcmp(transport, "loop")) sl_net_setup_process(transport);
    sl_log_set_level(SL_LOG_ERROR);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int bad = 0;
    for (size_t i = 0; i < SL_LEN(damages); i++) bad |= check_damage(&damages[i], i);
    printf("%s\n", bad ? "FAILED" : "others do not notice");
    return bad;
}
