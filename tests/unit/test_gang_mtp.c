/* A gang has the block that predicts a further token as one device has it, and a pipeline at its
 * last rank: what 1, 2, 4 and 8 ranks, threads, processes and processes that are called as on other
 * machines, make of the same rows are the same bits, of the model's rows and of the block's own,
 * whether ranks gather or add up in segments, and after pages that came from elsewhere. */
#include "device_run.h"
#include "sanitized.h"

static const char *const fixtures[] = {"glm4moe-tiny", "deepseekv3-tiny"};

#define HALF   (ROWS / 2 + 4) /* rows of run_step's first request */
#define ROUNDS 3u             /* guesses of each request */

/* Rows of the block, as of SL_OP_MTP. */
typedef struct guesses {
    uint32_t n, id[ROWS], pos[ROWS], row[ROWS], last[ROWS];
    const uint32_t *pages[ROWS];
} guesses;

/* Logits of all of them, backwards and in two pieces. */
static void block(run *r, guesses *g, sl_mem from, sl_mem to, bool again) {
    const uint32_t cut = r->s->vocab / 3 + 1;
    for (uint32_t i = 0; i < g->n; i++) g->last[i] = g->n - 1 - i;
    sl_stage_call c = {
        .op = SL_OP_MTP,
        .rows = {.n = g->n, .id = g->id, .pos = g->pos, .pages = g->pages, .x = from},
        .mtp = {.row = g->row,
                .out = to,
                .again = again,
                .n_last = g->n,
                .last = g->last,
                .h = r->mem[3]}};
    sl_device_submit(r->d, &c);
    for (uint32_t i = 0; i < 2; i++) {
        c = (sl_stage_call){.op = SL_OP_HEAD, .rows = {.n = ROWS, .x = to}};
        c.head = (sl_stage_head){.n = g->n,
                                 .first = i ? cut : 0,
                                 .count = i ? r->s->vocab - cut : cut,
                                 .h = r->mem[3],
                                 .logits = r->logits,
                                 .made = true};
        sl_device_submit(r->d, &c);
        sl_device_drain(r->d);
    }
}

/* All rows of the step with the tokens behind them. */
static void follow(run *r, uint32_t step) {
    guesses g = {.n = ROWS};
    for (uint32_t i = 0; i < ROWS; i++) {
        g.id[i] = (i * 7 + step) % r->s->vocab;
        g.pos[i] = r->pos[i];
        g.row[i] = i;
        g.pages[i] = r->pages[i];
    }
    block(r, &g, r->mem[0], r->mem[2], false);
}

/* The two requests' next ones, of what the block made of the last: that is where g->row says. */
static void go_on(run *r, guesses *g, uint32_t round) {
    static const uint32_t last[] = {HALF - 1, ROWS - 1};
    g->n = SL_LEN(last);
    for (uint32_t i = 0; i < g->n; i++) {
        g->id[i] = (i * 31 + round * 5) % r->s->vocab;
        g->pos[i] = r->pos[last[i]] + round;
        g->row[i] = round == 1 ? last[i] : i;
        g->pages[i] = r->pages[last[i]];
    }
}

typedef struct gangs {
    run one, of[8];
    uint32_t ranks[8], n;
    const char *name;
} gangs;

static void compare(const gangs *g) {
    for (uint32_t i = 0; i < g->n; i++) same_bits(&g->one, &g->of[i], g->name, g->ranks[i]);
}

static void all_of(gangs *g, void (*f)(run *r, uint32_t arg), uint32_t arg) {
    f(&g->one, arg);
    for (uint32_t i = 0; i < g->n; i++) f(&g->of[i], arg);
    compare(g);
}

static void one_step(run *r, uint32_t step) {
    run_step(r, step);
}

static void guess_on(run *r, uint32_t round) {
    guesses g;
    const sl_mem from = round % 2 ? r->mem[2] : r->mem[1], to = round % 2 ? r->mem[1] : r->mem[2];
    go_on(r, &g, round);
    block(r, &g, from, to, true);
}

typedef struct kind {
    uint32_t pipeline, ranks;
    sl_rank_kind kind;
    uint32_t threads;
} kind;

typedef struct sums {
    bool segmented;
    sl_activations activations;
} sums;

static run open_one(const char *path, kind k, sums how) {
    sl_device_opts o = options_of(path, k.ranks, k.kind);
    o.pipeline = k.pipeline;
    o.hosts.mtp = true;
    o.hosts.segmented = o.exact = how.segmented;
    o.activations = how.activations;
    o.threads = k.threads;
    sl_device *d = open_device(&o);
    assert_true(d->mtp);
    return start(d);
}

static void check(const char *name, sums how, uint32_t most) {
    const kind one = {0, 1, SL_RANKS_THREADS, 1};
    const kind gang[] = {{0, 2, SL_RANKS_THREADS, 4}, {0, 4, SL_RANKS_THREADS, 1},
                         {0, 8, SL_RANKS_THREADS, 1}, {0, most, SL_RANKS_PROCESSES, 1},
                         {2, 1, SL_RANKS_THREADS, 2}, {2, 2, SL_RANKS_THREADS, 4}};
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    /* Before there are threads, with which no process is forked. */
    const servers others[] = {serve_ranks(path, most), serve_ranks(path, 3)};
    gangs g = {.name = name, .one = open_one(path, one, how)};
    for (uint32_t i = 0; i < SL_LEN(gang); i++) {
        g.ranks[i] = gang[i].pipeline ? gang[i].pipeline : gang[i].ranks;
        g.of[g.n++] = open_one(path, gang[i], how);
    }
    for (uint32_t i = 0; i < SL_LEN(others); i++) {
        g.ranks[g.n] = i ? 3 : most;
        ranks_at = others[i].at;
        g.of[g.n++] = open_one(path, (kind){i ? 3 : 0, i ? 1 : most, SL_RANKS_MACHINES, 1}, how);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        if (step) { /* what was known of these pages is forgotten */
            for (uint32_t i = 0; i < g.n; i++) carry_pages(&g.one, &g.of[i]);
            carry_pages(&g.of[2], &g.one);
        }
        for (uint32_t i = 0; i < g.n; i++) g.of[i].inside = step == 0 && g.of[i].d->inside;
        all_of(&g, one_step, step);
        all_of(&g, follow, step);
        for (uint32_t round = 1; round <= ROUNDS; round++) all_of(&g, guess_on, round);
    }
    for (uint32_t i = 0; i < g.n; i++) end(&g.of[i]);
    for (uint32_t i = 0; i < SL_LEN(others); i++) served(&others[i]);
    end(&g.one);
}

static void ranks_guess_as_one_device(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SL_LEN(fixtures); i++) {
        if (SL_SLOW_BUILD != 2 || i % take_one_in(2) == 0)
            check(fixtures[i], (sums){false, i ? SL_ACTIVATIONS_BF16 : SL_ACTIVATIONS_F32}, 2);
        check(fixtures[i], (sums){i % 2, SL_ACTIVATIONS_F32}, 4);
        if (take_whole()) check(fixtures[i], (sums){!(i % 2), SL_ACTIVATIONS_BF16}, 4);
    }
}

static int as_rank(int fd) {
    sl_err err;
    if (sl_gang_run_rank(fd, &err) == SL_OK) return 0;
    fprintf(stderr, "%s\n", err.msg);
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[2], "--rank-fd") == 0) return as_rank(atoi(argv[3]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_guess_as_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
