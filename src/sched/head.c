/* Order and size of what follows the last block. */
#include "sched/head.h"

#define TOLD_ROWS 4u /* of a small piece */

void sl_head_init(sl_head *h, const sl_plan *p, uint32_t id, uint32_t vocab) {
    const sl_device_spec device = sl_plan_device_of(p, id);
    uint32_t some = (vocab / SL_HEAD_PIECES / 32 + 1) * 32;
    bool small = p->lanes > 1 && sl_device_is_cpu(&device) && some < vocab;
    *h = (sl_head){.vocab = SL_MAX(vocab, 1u)};
    h->columns = small ? some : h->vocab;
}

/* ---- calls ---- */

static const sl_life *life_of(const sl_step *s, size_t part) {
    return &sl_slots_of(s->slots, s->lane)[s->part[part].slot];
}

static bool is_whole(const sl_step *s, size_t part) {
    const sl_life *l = life_of(s, part);
    const sl_step_part *p = &s->part[part];
    return l->done - (p->rows - p->guesses) < l->whole_until;
}

static void next_part(sl_head *h, const sl_step *s) {
    h->before += s->part[h->at++].rows;
    h->taken = 0;
}

static void add(sl_head *h, uint32_t row_of_part) {
    h->part[h->rows] = (uint32_t)h->at;
    h->row[h->rows++] = h->before + row_of_part;
}

static void gather_whole(sl_head *h, const sl_step *s) {
    for (; h->at < s->n_parts; next_part(h, s)) {
        uint32_t rows = s->part[h->at].rows;
        if (!sl_step_is_open(s, h->at) || !is_whole(s, h->at) || h->taken == rows) continue;
        while (h->taken < rows && h->rows < SL_HEAD_ROWS) add(h, h->taken++);
        return;
    }
    h->shares = true;
    h->at = 0;
    h->before = 0;
}

static void gather_last_rows(sl_head *h, const sl_step *s) {
    for (; h->at < s->n_parts && h->rows < SL_HEAD_ROWS; next_part(h, s)) {
        const sl_step_part *part = &s->part[h->at];
        if (!sl_step_is_open(s, h->at) || !part->sample || is_whole(s, h->at)) continue;
        while (h->taken <= part->guesses && h->rows < SL_HEAD_ROWS)
            add(h, part->rows - 1 - part->guesses + h->taken++);
        if (h->taken <= part->guesses) return;
    }
}

static void next_call(sl_head *h, const sl_step *s) {
    h->rows = h->computed = h->told = 0;
    if (!h->shares) gather_whole(h, s);
    h->whole = h->rows > 0;
    if (h->shares) gather_last_rows(h, s);
}

/* ---- pieces ---- */

void sl_head_open(sl_head *h, sl_step *s) {
    SL_ASSERT(!h->open);
    sl_step_advance(s);
    sl_head_close(h);
    h->open = true;
    next_call(h, s);
}

bool sl_head_next(const sl_head *h, sl_head_piece *out) {
    bool small = h->columns < h->vocab;
    if (h->rows == 0) return false;
    if (h->computed < h->vocab)
        *out = (sl_head_piece){SL_HEAD_COLUMNS, h->computed,
                               SL_MIN(h->columns, h->vocab - h->computed)};
    else
        *out = (sl_head_piece){SL_HEAD_TELL, h->told,
                               small && !h->whole ? SL_MIN(h->rows - h->told, TOLD_ROWS)
                                                  : h->rows - h->told};
    return true;
}

void sl_head_done(sl_head *h, const sl_step *s) {
    sl_head_piece p;
    if (!sl_head_next(h, &p)) return;
    sl_watch_tell(s->slots->watch, HEAD, s->lane, p.kind, p.first, p.n, h->rows);
    if (p.kind == SL_HEAD_COLUMNS)
        h->computed += p.n;
    else
        h->told += p.n;
    if (h->told == h->rows) next_call(h, s);
}

void sl_head_close(sl_head *h) {
    *h = (sl_head){.vocab = h->vocab, .columns = h->columns};
}
