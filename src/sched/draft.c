/* Tokens that followed the same ones before, and whether to run them, or those of the block. */
#include "sched/draft.h"

#include "base/mem.h"

#define MOST_BITS   16u  /* of a table: what is older than half as many tokens may be forgotten */
#define LONGEST     16u  /* tokens of a match that are looked at */
#define NEW_SHARE   0.15 /* of a guess in its kind's chance, once there were more of them */
#define OLD_SHARE   0.01 /* ...and in that of all requests, with which the next one begins */
#define FIRST       0.5  /* chance, before anything is known, which counts as one guess */
#define TIME_SHARE  0.2  /* of a measurement in the averages */
#define FIRST_PRICE 0.3  /* of a row, before one was measured */

void sl_draft_begin(sl_draft *d, sl_draft_prior *prior) {
    *d = (sl_draft){.prior = prior, .aside_kind = SL_DRAFT_MTP};
    for (uint32_t i = 0; i < SL_DRAFT_KINDS; i++)
        d->chance[i] = prior->judged[i] ? prior->chance[i] : FIRST;
}

sl_status sl_draft_open(sl_draft *d, uint32_t tokens, sl_err *err) {
    uint32_t bits = 8;
    while (bits < MOST_BITS && (1u << bits) / 2 < tokens) bits++;
    d->mask = (1u << bits) - 1;
    d->behind = sl_alloc((size_t)d->mask + 1, sizeof *d->behind);
    return d->behind ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "guesses of %u tokens", tokens);
}

void sl_draft_close(sl_draft *d) {
    sl_free(d->behind);
    *d = (sl_draft){0};
}

/* Where the place behind the tokens before position n is kept. */
static uint32_t *place_of(const sl_draft *d, const uint32_t *tokens, uint32_t n) {
    uint64_t h = 0;
    for (uint32_t i = n - SL_DRAFT_TOKENS; i < n; i++) h = (h ^ tokens[i]) * 0x9E3779B97F4A7C15u;
    return &d->behind[(h >> 40) & d->mask];
}

/* Tokens before a and b that are the same ones. */
static uint32_t common(const uint32_t *tokens, uint32_t a, uint32_t b) {
    uint32_t n = 0;
    while (n < LONGEST && n < a && tokens[a - n - 1] == tokens[b - n - 1]) n++;
    return n;
}

static uint32_t kind_of(uint32_t length) {
    return length < 5 ? 0 : length < LONGEST ? 1 : 2;
}

/* Where the last tokens stood before, or 0, and of what kind a guess of what followed is. */
static uint32_t look_up(sl_draft *d, const uint32_t *tokens, uint32_t n, uint32_t *kind) {
    if (n < SL_DRAFT_TOKENS || !d->behind) return 0;
    for (d->read = SL_MAX(d->read, SL_DRAFT_TOKENS); d->read < n; d->read++)
        *place_of(d, tokens, d->read) = d->read;
    const uint32_t from = *place_of(d, tokens, n);
    const uint32_t length = from ? common(tokens, from, n) : 0;
    if (length < SL_DRAFT_TOKENS) return 0; /* others have the same hash */
    *kind = kind_of(length);
    return from;
}

uint32_t sl_draft_guess(sl_draft *d, uint32_t *tokens, uint32_t n, uint32_t most) {
    const uint32_t from = look_up(d, tokens, n, &d->kind);
    if (from == 0) return 0;
    most = SL_MIN(most, SL_DRAFT_MOST);
    for (uint32_t i = 0; i < most; i++) tokens[n + i] = tokens[from + i]; /* guesses, too, repeat */
    return most;
}

bool sl_draft_looks_up(sl_draft *d, const uint32_t *tokens, uint32_t n) {
    uint32_t kind;
    return look_up(d, tokens, n, &kind) && d->chance[kind] > d->chance[SL_DRAFT_MTP];
}

void sl_draft_made(sl_draft *d) {
    d->kind = SL_DRAFT_MTP;
}

void sl_draft_look_aside(sl_draft *d, const uint32_t *tokens, uint32_t n) {
    const uint32_t from = look_up(d, tokens, n, &d->aside_kind);
    if (from) d->aside = tokens[from];
}

/* What is thought before the first guess counts as one, and a guess has `least` at least. */
static void weigh(double *chance, uint32_t *judged, double least, bool right) {
    const double share = 1.0 / (*judged + 2);
    *chance += SL_MAX(share, least) * (right - *chance);
    if (share > least) ++*judged;
}

static void learn(sl_draft *d, uint32_t kind, bool right) {
    sl_draft_prior *p = d->prior;
    if (!p->judged[kind]) p->chance[kind] = FIRST;
    weigh(&p->chance[kind], &p->judged[kind], OLD_SHARE, right);
    weigh(&d->chance[kind], &d->judged[kind], NEW_SHARE, right);
}

void sl_draft_judge(sl_draft *d, bool right) {
    learn(d, d->kind, right);
}

void sl_draft_judge_aside(sl_draft *d, bool right) {
    if (d->aside_kind != SL_DRAFT_MTP) learn(d, d->aside_kind, right);
    d->aside_kind = SL_DRAFT_MTP;
}

/* ---- what they cost ---- */

static void blend(double *average, double value) {
    *average = *average > 0 ? *average + TIME_SHARE * (value - *average) : value;
}

/* Tokens that a guess has to be worth, whether or not one may run now. */
static double cost_of(const sl_draft_price *p, uint32_t decoding, bool made) {
    if (sl_speculates_always(p->speculate)) return 0;
    if (p->row_us <= 0 || p->plain_us <= 0) return FIRST_PRICE * decoding;
    return (p->row_us + (made ? p->made_us : 0)) * decoding / p->plain_us;
}

uint32_t sl_draft_ahead(sl_draft *d, const sl_draft_price *p, uint32_t decoding, uint32_t most) {
    const double cost = cost_of(p, decoding, true);
    if (most == 0) return 0;
    if (cost > 1) return p->plain_us > 0 && p->idle - p->asked >= SL_DRAFT_TRIAL;
    const uint32_t n = sl_draft_worth(d->chance[SL_DRAFT_MTP], cost, most);
    return n ? n : ++d->rests % SL_DRAFT_REST < SL_DRAFT_WAKE;
}

double sl_draft_price_of(const sl_draft_price *p, uint32_t decoding, bool made) {
    if (sl_speculates_always(p->speculate)) return 0;
    if (p->speculate == SL_SPECULATE_OFF || p->plain_us <= 0 || p->since >= SL_DRAFT_PROBE)
        return 2;
    return cost_of(p, decoding, made);
}

bool sl_draft_price_tries(const sl_draft_price *p) {
    return p->speculate != SL_SPECULATE_OFF && p->plain_us > 0 && p->idle >= SL_DRAFT_TRIAL;
}

void sl_draft_price_tried(sl_draft_price *p) {
    p->idle = p->asked = 0;
}

void sl_draft_price_asked(sl_draft_price *p) {
    if (p->idle - p->asked >= SL_DRAFT_TRIAL) p->asked = p->idle;
}

void sl_draft_price_made(sl_draft_price *p, uint32_t guesses, uint64_t us) {
    if (guesses) blend(&p->made_us, SL_MAX((double)us, 1.0) / guesses);
}

uint32_t sl_draft_worth(double chance, double price, uint32_t most) {
    uint32_t n = 0;
    for (double right = chance; n < most && right > price; right *= chance) n++;
    return n;
}

void sl_draft_price_learn(sl_draft_price *p, uint32_t guesses, uint64_t step_us) {
    const double us = step_us > 1 ? (double)step_us : 1;
    p->since = guesses ? p->since + 1 : 0;
    if (guesses) sl_draft_price_tried(p);
    p->idle += guesses == 0;
    if (guesses == 0) {
        blend(&p->plain_us, us);
    } else if (p->plain_us > 0) { /* at least a sliver: one lucky step does not make them free */
        const double extra = us - p->plain_us, least = us * 0.01;
        blend(&p->row_us, SL_MAX(extra, least) / guesses);
    }
}
