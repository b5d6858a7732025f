/* The end of a step: its rows go through the head, and slots advance, report, sample, end.
 * Which rows when, and in how many pieces: sched/head.h. */
#include "engine/attn/attn_int.h"

#include "base/mutate.h"

#include <math.h>
#include <string.h>

static void send_logits(sl_pass *p, const sl_slot *s, uint32_t first_pos, uint32_t n) {
    sl_attn *a = p->attn;
    sl_buf *b = sl_worker_buf(a->w, sl_wire_logits_bytes(n, a->m->vocab));
    if (!b) return;
    float *data = sl_wire_logits_layout(b->data, s->request, first_pos);
    memcpy(data, a->logits, (size_t)n * a->m->vocab * sizeof *data);
    sl_wire_header h = {.kind = SL_MSG_LOGITS, .rows = n};
    sl_worker_send(a->w, SL_NO_WORKER, h, b);
}

/* What row `pos`, whose logits are given, says about the prompt's next token. */
static void report_prompt_token(sl_pass *p, sl_slot *s, uint32_t pos, const float *logits) {
    sl_attn *a = p->attn;
    sl_logprob logprobs[SL_MAX_REPORTED];
    uint32_t next = pos + 1;
    if (next >= s->n_prompt || s->life->ends) return;
    if (!isfinite(logits[s->tokens[next]])) {
        sl_slot_break(s, a->m->n_layers, pos);
        return;
    }
    sl_logprobs(logits, a->m->vocab, s->tokens[next], &s->report, &a->scratch, logprobs);
    sl_attn_emit(a, s, next, s->tokens[next], SL_FINISH_NONE, logprobs, sl_reported(&s->report));
}

/* What the call's rows seek of their logits; those of parts that want to know all rows, all. */
static bool seek(sl_pass *p) {
    sl_attn *a = p->attn;
    const sl_head *h = &a->head;
    if (!a->sought || h->whole) return false;
    for (uint32_t i = 0; i < h->rows; i++)
        sl_draws_seek(a, &p->slot[p->step.part[h->part[i]].slot], p->pos[h->row[i]], &a->sought[i]);
    return true;
}

/* Logits of some columns. */
static void compute(sl_pass *p, const sl_head_piece *piece) {
    sl_attn *a = p->attn;
    const sl_head *h = &a->head;
    sl_pass_begin(p, SL_TRACE_HEAD, h->rows);
    sl_stage_call c = sl_pass_call(p, SL_OP_HEAD);
    if (piece->first == 0) a->seeks = seek(p);
    c.head = (sl_stage_head){.n = h->rows,
                             .first = piece->first,
                             .count = piece->n,
                             .row = h->row,
                             .h = a->head_rows,
                             .logits = a->logits,
                             .sought = a->seeks ? a->sought : NULL,
                             .found = a->found};
    sl_pass_submit(p, &c);
}

/* All the call's rows are of one part. */
static void tell_whole(sl_pass *p) {
    sl_attn *a = p->attn;
    const sl_head *h = &a->head;
    const sl_step_part *part = &p->step.part[h->part[0]];
    sl_slot *s = &p->slot[part->slot];
    uint32_t first = p->pos[h->row[0]];
    if (!sl_step_is_open(&p->step, h->part[0])) return;
    if (s->want_logits) send_logits(p, s, first, h->rows);
    for (uint32_t i = 0; i < h->rows && s->want_prompt_logprobs; i++)
        report_prompt_token(p, s, first + i, a->logits + (size_t)i * a->m->vocab);
    if (part->sample && first + h->rows == s->life->done && sl_step_is_open(&p->step, h->part[0]))
        sl_draws_add(a, s, h->part[0], h->rows - 1);
    sl_draws_make(p);
}

/* What some rows of the call, whose logits are all there, have to say. */
static void tell(sl_pass *p, const sl_head_piece *piece) {
    sl_attn *a = p->attn;
    const sl_head *h = &a->head;
    sl_pass_begin(p, SL_TRACE_SAMPLE, piece->n);
    if (h->whole) {
        tell_whole(p);
        return;
    }
    for (uint32_t i = piece->first; i < piece->first + piece->n; i++) {
        sl_slot *s = &p->slot[p->step.part[h->part[i]].slot];
        if (sl_draws_wait(a, s)) sl_draws_make(p); /* its next row's draw is behind this one */
        if (!sl_step_is_open(&p->step, h->part[i])) continue;
        bool right;
        const bool draws = sl_life_draws(s->life, p->pos[h->row[i]], &right);
        a->w->n.guesses_right += right;
        if (draws) sl_draws_add(a, s, h->part[i], i);
    }
    sl_draws_make(p);
}

/* The span of the step that ends here. */
static void note_step(sl_pass *p, uint64_t tokens) {
    const sl_trace_event step = {.kind = SL_TRACE_STEP,
                                 .lane = sl_trace_u16(p->lane),
                                 .round = (uint32_t)p->round,
                                 .rows = p->n,
                                 .tokens = (uint32_t)tokens};
    sl_worker_note_span(p->attn->w, step, p->step_began_ns);
}

/* Part i goes on, and no token says how far it is, which the coordinator wants to know. */
static bool is_silent(const sl_pass *p, size_t i) {
    const sl_step_part *part = &p->step.part[i];
    return sl_step_is_open(&p->step, i) && !part->sample && p->slot[part->slot].tells;
}

static void tell_rows(const sl_pass *p) {
    sl_worker *w = p->attn->w;
    const sl_step *s = &p->step;
    uint32_t n = 0;
    for (size_t i = 0; i < s->n_parts; i++) n += is_silent(p, i);
    sl_buf *b = n ? sl_net_buf_take(w->net, n * sizeof(sl_wire_pair)) : NULL;
    if (!b) return; /* it knows less */
    sl_wire_pair *pair = (sl_wire_pair *)(void *)b->data;
    for (size_t i = 0; i < s->n_parts; i++) {
        const sl_slot *of = &p->slot[s->part[i].slot];
        uint32_t done = of->life->done;
        if (SL_MUTATION(SURE_OF_NEXT)) done = SL_MIN(done + 1, of->life->given - 1);
        if (is_silent(p, i)) *pair++ = (sl_wire_pair){of->request, done};
    }
    sl_worker_send(w, SL_NO_WORKER, (sl_wire_header){.kind = SL_MSG_ROWS, .rows = n}, b);
}

static void end_part(sl_pass *p, size_t i) {
    sl_slot *s = &p->slot[p->step.part[i].slot];
    if (sl_step_ends(&p->step, i))
        sl_slot_end(p->attn, s);
    else if (sl_step_is_open(&p->step, i) && p->step.part[i].sample)
        sl_slot_guess(p->attn, s);
}

static void end_step(sl_pass *p) {
    sl_attn *a = p->attn;
    a->w->n.guesses += p->step.guesses;
    for (size_t i = 0; i < p->step.n_parts; i++) end_part(p, i);
    sl_attn_flush(a);
    tell_rows(p);
    sl_step_end(&p->step, sl_clock_now_us(&a->w->clock));
    note_step(p, a->w->n.tokens - a->head_tokens);
    p->n = 0;
    sl_attn_drop_head(a);
}

void sl_attn_drop_head(sl_attn *a) {
    sl_head_close(&a->head);
    sl_mtp_drop(a);
}

void sl_pass_begin_head(sl_pass *p) {
    sl_attn *a = p->attn;
    sl_head_piece piece;
    if (sl_mtp_runs(a)) {
        sl_mtp_begin(p);
        return;
    }
    if (!a->head.open) {
        a->head_tokens = a->w->n.tokens;
        sl_head_open(&a->head, &p->step);
    }
    if (!sl_head_next(&a->head, &piece)) return;
    if (piece.kind == SL_HEAD_COLUMNS)
        compute(p, &piece);
    else
        tell(p, &piece);
}

bool sl_pass_end_head(sl_pass *p) {
    sl_attn *a = p->attn;
    sl_head *h = &a->head;
    sl_head_piece piece;
    if (sl_mtp_runs(a)) {
        if (!sl_mtp_end(p)) return false;
    } else {
        sl_head_done(h, &p->step);
        if (sl_head_next(h, &piece) || (a->mtp && sl_mtp_open(p))) return false;
    }
    end_step(p);
    return true;
}
