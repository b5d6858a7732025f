/* The end of a lane's step: its rows go through the head, and slots advance, report, sample, end.
 * Where other lanes could run meanwhile, it is done in pieces. */
#include "engine/attn_int.h"

#include <math.h>
#include <string.h>

/* Rows sampled in one piece. */
#define SAMPLED_ROWS 4u

static void send_logits(sl_lane *lane, const sl_slot *s, uint32_t first_pos, uint32_t n) {
    sl_attn *a = lane->attn;
    sl_buf *b = sl_net_buf_take(a->w->net, sl_wire_logits_bytes(n, a->m->vocab));
    if (!b) return;
    float *data = sl_wire_logits_layout(b->data, s->request, first_pos);
    memcpy(data, a->logits, (size_t)n * a->m->vocab * sizeof *data);
    sl_wire_header h = {.kind = SL_MSG_LOGITS, .rows = n};
    sl_status st = sl_worker_send(a->w, SL_NO_WORKER, h, b);
    (void)st;
}

static void sample_into(sl_lane *lane, sl_slot *s, const float *logits) {
    sl_attn *a = lane->attn;
    const sl_history past = {s->tokens, s->life->tokens, s->n_prompt};
    sl_logprob logprobs[1 + SL_MAX_LOGPROBS];
    bool early = s->life->tokens - s->n_prompt < s->min_tokens;
    s->sampling.never = s->stop;
    s->sampling.n_never = early ? s->n_stop : 0;
    uint32_t id = sl_sample(&s->sampling, logits, a->m->vocab, s->life->tokens, &past, &a->scratch);
    if (!isfinite(logits[id])) { /* it is the largest: there is nothing to draw from */
        sl_slot_break(s, a->m->n_layers, s->life->tokens - 1);
        return;
    }
    if (s->want_logprobs) sl_logprobs(logits, a->m->vocab, id, s->n_top, &a->scratch, logprobs);
    sl_slot_append(a, s, id, logprobs, s->want_logprobs ? 1 + s->n_top : 0);
}

/* Whether rows of a part that has been computed predict tokens of a prompt whose log-probabilities
 * are asked for. */
static bool part_reports_prompt(const sl_slot *s, const sl_step_part *part) {
    return s->want_prompt_logprobs && s->life->done - part->rows + 1 < s->n_prompt;
}

/* What row `pos`, whose logits are given, says about the prompt's next token. */
static void report_prompt_token(sl_lane *lane, sl_slot *s, uint32_t pos, const float *logits) {
    sl_attn *a = lane->attn;
    sl_logprob logprobs[1 + SL_MAX_LOGPROBS];
    uint32_t next = pos + 1;
    if (next >= s->n_prompt || s->life->ends) return;
    if (!isfinite(logits[s->tokens[next]])) {
        sl_slot_break(s, a->m->n_layers, pos);
        return;
    }
    sl_logprobs(logits, a->m->vocab, s->tokens[next], s->n_top, &a->scratch, logprobs);
    sl_attn_emit(a, s, next, s->tokens[next], SL_FINISH_NONE, logprobs, 1 + s->n_top);
}

/* Whether the request still goes on whose rows were in the step. */
static bool is_open(const sl_slot *s) {
    return s->life->in_step && !s->life->ends;
}

static bool is_whole(const sl_slot *s, const sl_step_part *part) {
    return s->want_logits || part_reports_prompt(s, part);
}

/* The next call for parts of which the request wants to know every position. */
static void gather_whole(sl_lane *lane) {
    sl_head *h = &lane->attn->head;
    for (; h->part < lane->step.n_parts; h->part++, h->taken = 0) {
        const sl_step_part *part = &lane->step.part[h->part];
        const sl_slot *s = &lane->slot[part->slot];
        if (!is_open(s) || !is_whole(s, part) || h->taken == part->rows) continue;
        h->n = SL_MIN(part->rows - h->taken, SL_HEAD_ROWS);
        for (uint32_t i = 0; i < h->n; i++) h->row[i] = s->first_row + h->taken + i;
        h->taken += h->n;
        return;
    }
    h->sampling = true;
    h->part = 0;
}

/* Sampling parts share calls. */
static void gather_sampling(sl_lane *lane) {
    sl_head *h = &lane->attn->head;
    for (; h->part < lane->step.n_parts && h->n < SL_HEAD_ROWS; h->part++) {
        const sl_step_part *part = &lane->step.part[h->part];
        const sl_slot *s = &lane->slot[part->slot];
        if (!is_open(s) || !part->sample || is_whole(s, part)) continue;
        h->row[h->n] = s->first_row + part->rows - 1;
        h->slot[h->n++] = part->slot;
    }
}

static void next_call(sl_lane *lane) {
    sl_head *h = &lane->attn->head;
    h->n = h->columns = h->sampled = 0;
    if (!h->sampling) gather_whole(lane);
    if (h->sampling) gather_sampling(lane);
}

/* Logits of some columns. */
static void compute(sl_lane *lane) {
    sl_attn *a = lane->attn;
    sl_head *h = &a->head;
    uint32_t n = SL_MIN(a->head_columns, a->m->vocab - h->columns);
    sl_lane_begin(lane, SL_TRACE_HEAD, h->n);
    sl_stage_call c = sl_lane_call(lane, SL_OP_HEAD);
    c.head = (sl_stage_head){
        .n = h->n,
        .first = h->columns,
        .count = n,
        .row = h->row,
        .h = sl_mem_host(a->head_rows, SL_HEAD_ROWS * a->m->d_model * sizeof *a->head_rows),
        .logits = a->logits};
    sl_lane_submit(lane, &c);
    h->asked = n;
}

static void finish_whole(sl_lane *lane) {
    sl_attn *a = lane->attn;
    sl_head *h = &a->head;
    const sl_step_part *part = &lane->step.part[h->part];
    sl_slot *s = &lane->slot[part->slot];
    uint32_t first = s->life->done - part->rows + h->taken - h->n;
    if (s->want_logits) send_logits(lane, s, first, h->n);
    for (uint32_t i = 0; i < h->n && s->want_prompt_logprobs; i++)
        report_prompt_token(lane, s, first + i, a->logits + (size_t)i * a->m->vocab);
    if (part->sample && h->taken == part->rows && is_open(s))
        sample_into(lane, s, a->logits + (size_t)(h->n - 1) * a->m->vocab);
    h->sampled = h->n;
}

/* What some rows of the call, whose logits are all there, have to say. */
static void finish(sl_lane *lane) {
    sl_attn *a = lane->attn;
    sl_head *h = &a->head;
    bool in_pieces = a->head_columns < a->m->vocab;
    uint32_t n = in_pieces && h->sampling ? SL_MIN(h->n - h->sampled, SAMPLED_ROWS) : h->n;
    sl_lane_begin(lane, SL_TRACE_SAMPLE, n);
    if (!h->sampling) {
        if (is_open(&lane->slot[lane->step.part[h->part].slot])) finish_whole(lane);
        h->sampled = h->n;
        return;
    }
    for (; n > 0; n--, h->sampled++) {
        sl_slot *s = &lane->slot[h->slot[h->sampled]];
        if (is_open(s)) sample_into(lane, s, a->logits + (size_t)h->sampled * a->m->vocab);
    }
}

static void begin_head(sl_lane *lane) {
    sl_attn *a = lane->attn;
    a->head = (sl_head){.open = true, .tokens = a->w->n.tokens};
    sl_step_advance(&lane->step);
    next_call(lane);
}

/* The span of the step that ends here. */
static void note_step(sl_lane *lane, uint64_t tokens) {
    const sl_trace_event step = {.kind = SL_TRACE_STEP,
                                 .lane = sl_trace_u16(lane->id),
                                 .round = (uint32_t)lane->member.round,
                                 .rows = lane->n_rows,
                                 .tokens = (uint32_t)tokens};
    sl_worker_note_span(lane->attn->w, step, lane->step_began_ns);
}

static void end_step(sl_lane *lane) {
    sl_attn *a = lane->attn;
    for (size_t i = 0; i < lane->step.n_parts; i++)
        if (sl_step_ends(&lane->step, i)) sl_slot_end(a, &lane->slot[lane->step.part[i].slot]);
    sl_attn_flush(a);
    sl_step_end(&lane->step, sl_clock_now_us(&a->w->clock));
    note_step(lane, a->w->n.tokens - a->head.tokens);
    lane->n_rows = 0;
    a->head = (sl_head){0};
}

void sl_head_begin(sl_lane *lane) {
    sl_attn *a = lane->attn;
    sl_head *h = &a->head;
    if (!h->open) begin_head(lane);
    if (h->n > 0 && h->columns < a->m->vocab)
        compute(lane);
    else if (h->n > 0)
        finish(lane);
}

bool sl_head_end(sl_lane *lane) {
    sl_attn *a = lane->attn;
    sl_head *h = &a->head;
    h->columns += h->asked;
    h->asked = 0;
    if (h->n > 0 && h->columns == a->m->vocab && h->sampled == h->n) next_call(lane);
    if (h->n > 0) return false;
    end_step(lane);
    return true;
}
