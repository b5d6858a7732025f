/* Guesses of the block that predicts a further token (model/mtp.c), where the plan asks for them:
 * the last of what follows a step's head. Rows that the step has put into the cache go through the
 * block, each with the token behind it, so that the block has keys and values of them; of requests
 * that decode now the last one's logits say a guess, and that guess and the block's result the next
 * one. What its cache lacks (rows of a step without guesses, pages that came from elsewhere) costs
 * a guess its aim, nothing else. Who guesses is sched/guessers.h's.
 *
 * Where both kinds of guesses are asked for, whoever has likelier ones from what was said before
 * (slot.c) only has its rows go through the block, which may be better the next time.
 *
 * A guess is drawn as its token will be, by the same random number: where the block's logits are
 * like the model's they say the same. The shape of an answer is not asked. */
#include "engine/attn/attn_int.h"
#include "sched/guessers.h"

#include <math.h>

struct sl_mtp {
    bool runs;
    uint32_t n, round; /* rows of the running call; calls of this step before it */
    uint64_t began_us;
    sl_guessers who;
    uint32_t last[SL_HEAD_ROWS]; /* the call's row that is theirs */
    uint32_t *id, *pos, *row;    /* [max_rows], as of SL_OP_MTP */
    const uint32_t **pages;
    sl_mem out[2]; /* of even and odd calls */
    void *arrays;
};

/* ---- which rows, whose guesses ---- */

static void add_row(struct sl_mtp *t, uint32_t id, uint32_t pos, const uint32_t *pages,
                    uint32_t row) {
    t->id[t->n] = id;
    t->pos[t->n] = pos;
    t->pages[t->n] = pages;
    t->row[t->n++] = row;
}

/* Rows of part i, which begin at row `first` of the pass, as far as they are sure and what follows
 * them is known. */
static void collect(sl_pass *p, size_t i, uint32_t first, uint32_t decoding) {
    struct sl_mtp *t = p->attn->mtp;
    const sl_step_part *part = &p->step.part[i];
    sl_slot *s = &p->slot[part->slot];
    sl_life *l = s->life;
    if (part->sample) l->guessed = 0;
    if (part->sample) s->unfit = UINT32_MAX;
    const uint32_t ahead = sl_draft_ahead(&s->draft, p->price, decoding, SL_DRAFT_AHEAD);
    if (s->want_logits || ahead == 0) return;
    const uint32_t rows = sl_guessers_rows(l, p->pos[first], part->rows);
    const uint32_t next = p->pos[first] + rows;
    for (uint32_t r = first; r < first + rows; r++)
        add_row(t, s->tokens[p->pos[r] + 1], p->pos[r], s->pages, r);
    const uint32_t want = sl_guessers_want(&t->who, part, l, next, ahead);
    if (want == 0 || sl_slot_looks_up(p->attn, s)) return;
    t->last[t->who.n] = t->n - 1;
    sl_guessers_add(&t->who, (uint32_t)i, next - 1, want);
}

bool sl_mtp_open(sl_pass *p) {
    struct sl_mtp *t = p->attn->mtp;
    const uint32_t decoding = sl_slots_decoding(&p->attn->slots, p->lane);
    uint32_t first = 0;
    t->n = t->round = 0;
    t->who.n = t->who.made = 0;
    for (size_t i = 0; i < p->step.n_parts; i++) {
        if (sl_step_is_open(&p->step, i)) collect(p, i, first, decoding);
        first += p->step.part[i].rows;
    }
    t->runs = t->n > 0;
    if (t->runs) sl_attn_flush(p->attn); /* nobody waits for guesses to hear of tokens */
    t->began_us = sl_clock_now_us(&p->attn->w->clock);
    return t->runs;
}

bool sl_mtp_runs(const sl_attn *a) {
    return a->mtp && a->mtp->runs;
}

void sl_mtp_drop(sl_attn *a) {
    if (a->mtp) a->mtp->runs = false;
}

/* ---- calls ---- */

void sl_mtp_begin(sl_pass *p) {
    sl_attn *a = p->attn;
    const struct sl_mtp *t = a->mtp;
    sl_stage_call block = sl_pass_call(p, SL_OP_MTP), head = sl_pass_call(p, SL_OP_HEAD);
    const sl_mem out = t->out[t->round % 2];
    sl_pass_begin(p, SL_TRACE_HEAD, t->n);
    block.rows = (sl_rowset){.n = t->n, .id = t->id, .pos = t->pos, .pages = t->pages};
    block.rows.x = t->round ? t->out[(t->round - 1) % 2] : p->x;
    block.mtp = (sl_stage_mtp){.row = t->row,
                               .out = out,
                               .again = t->round > 0,
                               .n_last = t->who.n,
                               .last = t->last,
                               .h = a->head_rows};
    sl_pass_submit(p, &block);
    if (t->who.n == 0) return;
    head.rows.x = out;
    head.head = (sl_stage_head){
        .n = t->who.n, .count = a->m->vocab, .h = a->head_rows, .logits = a->logits, .made = true};
    sl_pass_submit(p, &head);
}

/* A request's guess of the token at `at`; false: there is none. */
static bool guess(sl_attn *a, sl_slot *s, uint32_t at, const float *logits) {
    const sl_history past = {s->tokens, at, s->n_prompt};
    sl_slot_spare_stops(s, at);
    sl_sampling how = s->sampling;
    how.allowed = s->only; /* not the shape's, which is of the token before */
    how.n_allowed = s->only ? sl_id_words(a->m->vocab) : 0;
    const uint32_t id = sl_sample(&how, logits, a->m->vocab, at, &past, &a->scratch);
    if (!isfinite(logits[id])) return false;
    s->tokens[at] = id;
    return true;
}

/* What the logits say; who wants more of it has the rows of the next call. */
static void take(sl_pass *p) {
    sl_attn *a = p->attn;
    struct sl_mtp *t = a->mtp;
    const uint32_t n = t->who.n;
    t->n = t->who.n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const sl_guesser g = t->who.of[i];
        sl_slot *s = &p->slot[p->step.part[g.part].slot];
        if (!sl_step_is_open(&p->step, g.part)) continue;
        const uint32_t from = t->last[i], at = s->life->tokens + s->life->guessed;
        if (!guess(a, s, at, a->logits + (size_t)i * a->m->vocab) ||
            !sl_guessers_go_on(&t->who, &g, s->life, &s->draft))
            continue;
        t->last[t->who.n - 1] = t->n;
        add_row(t, s->tokens[at], g.pos + 1, s->pages, from);
    }
    t->round++;
}

bool sl_mtp_end(sl_pass *p) {
    struct sl_mtp *t = p->attn->mtp;
    take(p);
    t->runs = t->n > 0;
    if (t->runs) return false;
    sl_guessers_close(&t->who, &p->step, p->price,
                      sl_clock_now_us(&p->attn->w->clock) - t->began_us);
    return true;
}

/* ---- life ---- */

sl_status sl_mtp_create(sl_attn *a, sl_err *err) {
    const size_t rows = a->max_rows;
    struct sl_mtp *t = a->mtp = sl_alloc(1, sizeof *t);
    if (t)
        t->arrays = sl_alloc_arrays(SL_ARRAY(t->id, rows), SL_ARRAY(t->pos, rows),
                                    SL_ARRAY(t->row, rows), SL_ARRAY(t->pages, rows));
    if (!t || !t->arrays) return sl_fail(err, SL_ERR_NOMEM, "guesses of %zu rows", rows);
    sl_status st =
        sl_device_take_rows(a->w->device, SL_MAX(rows, (size_t)SL_HEAD_ROWS), &t->out[0], err);
    return st == SL_OK ? sl_device_take_rows(a->w->device, SL_HEAD_ROWS, &t->out[1], err) : st;
}

void sl_mtp_free(sl_attn *a) {
    if (!a->mtp) return;
    for (size_t i = 0; i < SL_LEN(a->mtp->out); i++) sl_device_give(a->w->device, a->mtp->out[i]);
    sl_free(a->mtp->arrays);
    sl_free(a->mtp);
    a->mtp = NULL;
}
