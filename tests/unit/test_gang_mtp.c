/* A gang has the block that predicts a further token as one device has it: what 1, 2, 4 and 8
 * ranks, threads, processes and processes that are called as on other machines, make of the same
 * rows are the same bits, of the model's rows and of the block's own, whether ranks gather or add up
 * in segments, and after pages that came from elsewhere. */
#include "device_run.h"
#include "sanitized.h"

static const char *const fixtures[] = {"glm4moe-tiny", "deepseekv3-tiny"};

#define HALF   (ROWS / 2 + 4) /* rows of run_step's first request */
#define ROUNDS 3u             /* guesses of each request */

/* Rows of the block, as of SL_OP_MTP. */
typedef struct guesses {
    uint32_t n, id[ROWS], pos[ROWS], row[ROWS];
    const uint32_t *pages[ROWS];
} guesses;

static void block(run *r, const guesses *g, sl_mem from, sl_mem to, bool again) {
    const sl_stage_call c = {
        .op = SL_OP_MTP,
        .rows = {.n = g->n, .id = g->id, .pos = g->pos, .pages = g->pages, .x = from},
        .mtp = {.row = g->row, .out = to, .again = again}};
    sl_device_submit(r->d, &c);
    sl_device_drain(r->d);
}

/* Logits of its first n rows, in two pieces. */
static void say(run *r, sl_mem rows, uint32_t n) {
    uint32_t row[ROWS];
    const uint32_t cut = r->s->vocab / 3 + 1;
    for (uint32_t i = 0; i < n; i++) row[i] = n - 1 - i;
    for (uint32_t i = 0; i < 2; i++) {
        sl_stage_call c = {.op = SL_OP_HEAD, .rows = {.n = ROWS, .x = rows}};
        c.head = (sl_stage_head){.n = n,
                                 .first = i ? cut : 0,
                                 .count = i ? r->s->vocab - cut : cut,
                                 .row = row,
                                 .h = r->mem[3],
                                 .logits = r->logits,
                                 .mtp = true};
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
    run one, of[6];
    uint32_t ranks[6], n;
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

static void guess(run *r, uint32_t step) {
    follow(r, step);
    say(r, r->mem[2], ROWS);
}

static void guess_on(run *r, uint32_t round) {
    guesses g;
    const sl_mem from = round % 2 ? r->mem[2] : r->mem[1], to = round % 2 ? r->mem[1] : r->mem[2];
    go_on(r, &g, round);
    block(r, &g, from, to, true);
    say(r, to, 2);
}

static sl_device *open_one(const char *path, uint32_t ranks, sl_rank_kind kind, bool segmented,
                           sl_activations how, uint32_t threads) {
    sl_device_opts o = options_of(path, ranks, kind);
    o.hosts.mtp = true;
    o.hosts.segmented = o.exact = segmented;
    o.activations = how;
    o.threads = threads;
    sl_device *d = open_device(&o);
    assert_true(d->mtp);
    return d;
}

static void add(gangs *g, const char *path, uint32_t ranks, sl_rank_kind kind, bool segmented,
                sl_activations how, uint32_t threads) {
    g->ranks[g->n] = ranks;
    g->of[g->n++] = start(open_one(path, ranks, kind, segmented, how, threads));
}

static void check(const char *name, bool segmented, sl_activations how, uint32_t most) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s", name);
    gangs g = {.name = name,
               .one = start(open_one(path, 1, SL_RANKS_THREADS, segmented, how, 1))};
    for (uint32_t n = 1; n <= 8; n *= 2)
        add(&g, path, n, SL_RANKS_THREADS, segmented, how, n == 2 ? 4 : 1);
    add(&g, path, most, SL_RANKS_PROCESSES, segmented, how, 1);
    const servers others = serve_ranks(path, most);
    ranks_at = others.at;
    add(&g, path, most, SL_RANKS_MACHINES, segmented, how, 1);
    for (uint32_t step = 0; step < STEPS; step++) {
        if (step) { /* what was known of these pages is forgotten */
            for (uint32_t i = 0; i < g.n; i++) carry_pages(&g.one, &g.of[i]);
            carry_pages(&g.of[2], &g.one);
        }
        g.of[5].inside = step == 0 && g.of[5].d->inside;
        all_of(&g, one_step, step);
        all_of(&g, guess, step);
        for (uint32_t round = 1; round <= ROUNDS; round++) all_of(&g, guess_on, round);
    }
    for (uint32_t i = 0; i < g.n; i++) end(&g.of[i]);
    served(&others);
    end(&g.one);
}

static void a_gang_guesses_as_one_device(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SL_LEN(fixtures); i++) {
        check(fixtures[i], false, i ? SL_ACTIVATIONS_BF16 : SL_ACTIVATIONS_F32, 2);
        check(fixtures[i], i % 2, SL_ACTIVATIONS_F32, 4);
        if (take_whole()) check(fixtures[i], !(i % 2), SL_ACTIVATIONS_BF16, 4);
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
        cmocka_unit_test(a_gang_guesses_as_one_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
