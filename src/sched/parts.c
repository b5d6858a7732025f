/* Parts of schedule aep: which slots get rows, which block runs next, what becomes of a batch. */
#include "sched/parts.h"

#include "base/mem.h"

#include <string.h>

#define NONE UINT32_MAX

/* ---- life ---- */

sl_status sl_parts_create(sl_slots *slots, const sl_parts_shape *shape, sl_parts *out,
                          sl_err *err) {
    size_t n = slots->per_lane, ring = shape->n_layers + 1u;
    *out = (sl_parts){.shape = *shape,
                      .slots = slots,
                      .pacer = {.stretch = shape->plan->prefill_stretch},
                      .n_free = shape->max_rows};
    out->arrays = sl_alloc_arrays(SL_ARRAY(out->part, n), SL_ARRAY(out->batch, n),
                                  SL_ARRAY(out->ended, n), SL_ARRAY(out->entered, n),
                                  SL_ARRAY(out->ready, ring), SL_ARRAY(out->queue, ring),
                                  SL_ARRAY(out->total, ring), SL_ARRAY(out->ahead, ring));
    if (out->arrays) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "queues of %zu layers, %zu slots", ring, n);
}

void sl_parts_free(sl_parts *p) {
    sl_free(p->arrays);
    *p = (sl_parts){0};
}

static sl_life *life_at(const sl_parts *p, uint32_t slot) {
    return &sl_slots_of(p->slots, 0)[slot];
}

/* ---- lists ---- */

static void append(sl_parts *p, sl_part_list *l, uint32_t slot) {
    p->part[slot].next = NONE;
    if (l->n++ == 0)
        l->head = slot;
    else
        p->part[l->tail].next = slot;
    l->tail = slot;
}

static uint32_t take_first(sl_parts *p, sl_part_list *l) {
    uint32_t slot = l->head;
    l->head = p->part[slot].next;
    l->n--;
    return slot;
}

/* The part is ready for its layer. */
static void make_ready(sl_parts *p, uint32_t slot) {
    sl_part *t = &p->part[slot];
    sl_queue_state *q = &p->queue[t->layer];
    if (q->rows == 0) *q = (sl_queue_state){.head = p->arrivals, .wave = t->wave};
    p->arrivals++;
    q->wave = SL_MIN(q->wave, t->wave);
    q->rows += t->rows;
    p->total[t->layer] += t->rows;
    p->n_ready += t->rows;
    t->state = SL_PART_READY;
    append(p, &p->ready[t->layer], slot);
}

static void end_part(sl_parts *p, uint32_t slot) {
    sl_part *t = &p->part[slot];
    p->in.rows[t->kind] -= t->rows;
    p->n_free += t->rows;
    t->state = SL_PART_NONE;
    life_at(p, slot)->in_step = false;
}

/* ---- slots get rows ---- */

static sl_part_kind kind_of(const sl_life *l) {
    return sl_intake_kind(l->done, l->given);
}

void sl_parts_wake(sl_parts *p, uint32_t slot) {
    sl_part *t = &p->part[slot];
    const sl_life *l = life_at(p, slot);
    if (t->listed || t->state != SL_PART_NONE || !sl_life_has_work(l)) return;
    t->listed = true;
    append(p, &p->waiting[kind_of(l)], slot);
}

/* The first slot that waits with such work (since it came here, its request may have ended and
 * another begun); NULL: there is none. It stays in the list. */
static const sl_life *peek(sl_parts *p, sl_part_kind kind) {
    sl_part_list *list = &p->waiting[kind];
    while (list->n > 0) {
        const sl_life *l = life_at(p, list->head);
        if (sl_life_has_work(l) && kind_of(l) == kind) return l;
        uint32_t slot = take_first(p, list);
        p->part[slot].listed = p->part[slot].goes_on = false;
        sl_parts_wake(p, slot);
    }
    return NULL;
}

/* A part of `rows` rows, of the first slot that waits with such work, enters block 0. */
static sl_part *begin_part(sl_parts *p, sl_part_kind kind, uint32_t rows, uint64_t now_us) {
    uint32_t slot = take_first(p, &p->waiting[kind]);
    sl_part *t = &p->part[slot];
    sl_life *l = life_at(p, slot);
    SL_ASSERT(t->state == SL_PART_NONE && rows > 0 && rows <= p->n_free);
    bool goes_on = t->goes_on && t->generation == l->generation;
    *t = (sl_part){.kind = kind,
                   .sample = l->done + rows >= l->tokens,
                   .guesses = l->done + rows - SL_MIN(l->done + rows, l->tokens),
                   .rows = rows,
                   .generation = l->generation,
                   .prompts_beside = p->in.rows[SL_PART_PROMPT] + p->in.rows[SL_PART_REST],
                   .wave = sl_intake_wave(goes_on, t->wave, p->newest),
                   .began_us = now_us};
    l->in_step = true;
    l->samples = t->sample;
    p->in.rows[kind] += rows;
    p->n_free -= rows;
    make_ready(p, slot);
    return t;
}

/* As many of that kind as there is room for, each with as many rows as the intake lets it have. */
static uint32_t enter_prompts(sl_parts *p, sl_part_kind kind, uint64_t now_us, uint32_t n) {
    const sl_life *l;
    while (p->n_free > 0 && (l = peek(p, kind)) != NULL) {
        uint32_t slot = p->waiting[kind].head;
        uint32_t rows = sl_intake_chunk(&p->in, &p->pacer, kind, l->done, l->given, sl_life_room(l),
                                        p->waiting[SL_PART_DECODE].n, p->n_free);
        if (rows == 0) break;
        (void)begin_part(p, kind, rows, now_us);
        p->entered[n++] = slot;
    }
    return n;
}

static void tell_entered(const sl_parts *p, uint64_t now_us, uint32_t n) {
    const sl_watch *watch = p->slots->watch;
    if (n > 0) sl_watch_tell(watch, ENTER, now_us, n, p->n_free);
    for (uint32_t i = 0; watch && i < n; i++) {
        uint32_t slot = p->entered[i];
        const sl_part *t = &p->part[slot];
        sl_watch_tell(watch, STEP_PART, slot, life_at(p, slot)->done, t->rows, t->sample);
    }
}

/* Guesses of a request that decodes that get rows. */
static uint32_t guesses_of(const sl_parts *p, const sl_life *l, bool *tried) {
    const uint32_t decoding = p->in.rows[SL_PART_DECODE] + p->waiting[SL_PART_DECODE].n;
    const double price = sl_draft_price_of(&p->price, decoding, l->made);
    const uint32_t worth = sl_draft_worth(l->chance, price, l->guessed);
    *tried = worth == 0 && l->guessed && l->chance >= SL_DRAFT_TRIED &&
             sl_life_room(l) > l->tokens - l->done && sl_draft_price_tries(&p->price);
    return *tried ? 1 : worth;
}

/* Of what it knows, and of guesses that are worth it. */
static void enter_one(sl_parts *p, const sl_life *l, uint32_t most, bool guesses, uint64_t now_us) {
    bool tried = false;
    const uint32_t known = l->tokens - l->done, more = guesses ? guesses_of(p, l, &tried) : 0,
                   want = SL_MIN(known + more, 1 + SL_BATCH_MORE);
    sl_part *t = begin_part(p, SL_PART_DECODE, SL_MIN(SL_MIN(want, sl_life_room(l)), most), now_us);
    t->tried = tried && t->guesses;
    if (t->tried) sl_draft_price_tried(&p->price);
}

static uint32_t enter_decoding(sl_parts *p, uint32_t keep, bool guesses, uint64_t now_us) {
    const sl_life *l;
    uint32_t n = 0;
    while (p->n_free > keep && (l = peek(p, SL_PART_DECODE)) != NULL) {
        p->entered[n++] = p->waiting[SL_PART_DECODE].head;
        enter_one(p, l, p->n_free - keep, guesses, now_us);
    }
    return n;
}

uint32_t sl_parts_enter(sl_parts *p, uint64_t now_us, const uint32_t **slot) {
    bool prompt = peek(p, SL_PART_PROMPT) != NULL, rest = peek(p, SL_PART_REST) != NULL;
    uint32_t keep = sl_intake_keep(&p->in, prompt, rest, p->shape.max_rows);
    uint32_t n = enter_decoding(p, keep, !prompt && !rest, now_us);
    n = enter_prompts(p, SL_PART_PROMPT, now_us, n);
    n = enter_prompts(p, SL_PART_REST, now_us, n);
    tell_entered(p, now_us, n);
    *slot = p->entered;
    return n;
}

/* ---- a batch ---- */

static bool pick(const sl_parts *p, uint32_t *layer) {
    const sl_policy_view v = {.policy = p->shape.plan->policy,
                              .lookahead = p->shape.plan->lookahead,
                              .delta = p->shape.plan->delta,
                              .ring = p->shape.n_layers + 1,
                              .n = 1,
                              .queue = p->queue,
                              .total = p->total,
                              .ahead = p->ahead};
    return sl_policy_pick(&v, layer);
}

/* Drains the queue of p->layer. */
static void drain(sl_parts *p) {
    sl_part_list *list = &p->ready[p->layer];
    p->wave = sl_intake_batch_wave(p->queue[p->layer].wave, p->seen);
    p->n_batch = p->n_rows = p->n_ended = 0;
    while (list->n > 0) {
        uint32_t slot = take_first(p, list);
        sl_part *t = &p->part[slot];
        if (life_at(p, slot)->ends) {
            end_part(p, slot);
            p->ended[p->n_ended++] = slot;
            continue;
        }
        t->wave = p->wave;
        t->state = SL_PART_RUNS;
        p->n_rows += t->rows;
        p->batch[p->n_batch++] = slot;
    }
    p->n_ready -= p->total[p->layer];
    p->total[p->layer] = 0;
    p->queue[p->layer] = (sl_queue_state){0};
}

static void tell_batch(const sl_parts *p) {
    const sl_watch *watch = p->slots->watch;
    sl_watch_tell(watch, BATCH, p->layer, p->n_batch, p->n_rows, p->n_ended, p->wave);
    for (uint32_t i = 0; watch && i < p->n_batch; i++)
        sl_watch_tell(watch, BATCH_PART, p->batch[i], p->part[p->batch[i]].rows);
}

bool sl_parts_take(sl_parts *p) {
    SL_ASSERT(p->n_batch == 0);
    if (!pick(p, &p->layer)) return false;
    drain(p);
    if (p->layer == 0 && p->n_batch > 0) p->newest = p->wave;
    tell_batch(p);
    return true;
}

bool sl_parts_leave(sl_parts *p) {
    bool away = p->shape.moe[p->layer] != 0;
    for (uint32_t i = 0; i < p->n_batch; i++) {
        sl_part *t = &p->part[p->batch[i]];
        if (away) {
            t->state = SL_PART_AWAY;
            t->missing = t->rows * p->shape.top_k;
        } else {
            t->layer++;
            make_ready(p, p->batch[i]);
        }
    }
    p->n_batch = 0;
    return away;
}

/* ---- back ---- */

sl_part_state sl_parts_back(sl_parts *p, uint32_t slot, uint32_t pairs) {
    sl_part *t = &p->part[slot];
    SL_ASSERT(t->state == SL_PART_AWAY && pairs <= t->missing);
    t->missing -= pairs;
    if (t->missing > 0) return SL_PART_AWAY;
    t->layer++;
    if (life_at(p, slot)->ends)
        end_part(p, slot);
    else
        make_ready(p, slot);
    return t->state;
}

void sl_parts_meet(sl_parts *p, uint64_t wave) {
    p->seen = SL_MAX(p->seen, wave);
}

/* ---- the head ---- */

/* Of the batch's decoding parts the first one, or the one that is tried; NULL: there is none. */
static const sl_part *that_teaches(const sl_parts *p) {
    const sl_part *first = NULL;
    for (uint32_t i = 0; i < p->n_batch; i++) {
        const sl_part *t = &p->part[p->batch[i]];
        if (t->kind != SL_PART_DECODE) continue;
        if (t->tried) return t;
        if (!first) first = t;
    }
    return first;
}

/* How long a decode row took through all blocks, beside so many rows of prompts. One with what was
 * known to follow it takes another time. */
static void learn(sl_parts *p, uint64_t now_us) {
    const sl_part *t = that_teaches(p);
    if (!t) return;
    if (t->rows == 1) sl_pacer_learn(&p->pacer, 1, t->prompts_beside, now_us - t->began_us);
    if (t->rows == 1 + t->guesses && t->prompts_beside == 0)
        sl_draft_price_learn(&p->price, t->guesses, now_us - t->began_us);
    p->in.hold_rest = false;
}

void sl_parts_head(sl_parts *p, uint64_t now_us, sl_step *step) {
    SL_ASSERT(p->layer == p->shape.n_layers);
    learn(p, now_us);
    sl_step_open(step);
    for (uint32_t i = 0; i < p->n_batch; i++) {
        const sl_part *t = &p->part[p->batch[i]];
        const sl_step_part part = {.slot = p->batch[i],
                                   .rows = t->rows,
                                   .prefill = t->kind != SL_PART_DECODE,
                                   .sample = t->sample,
                                   .guesses = t->guesses};
        sl_step_add(step, &part);
    }
}

void sl_parts_over(sl_parts *p) {
    for (uint32_t i = 0; i < p->n_batch; i++) {
        uint32_t slot = p->batch[i];
        end_part(p, slot);
        sl_parts_wake(p, slot);
        p->part[slot].goes_on = p->part[slot].listed;
    }
    p->n_batch = 0;
    if (p->in.rows[SL_PART_DECODE] == 0) p->in.hold_rest = false;
}

void sl_parts_reset(sl_parts *p) {
    size_t ring = p->shape.n_layers + 1u;
    for (uint32_t i = 0; i < p->slots->per_lane; i++) {
        if (p->part[i].state != SL_PART_NONE) end_part(p, i);
        p->part[i] = (sl_part){0};
    }
    memset(p->ready, 0, ring * sizeof *p->ready);
    memset(p->queue, 0, ring * sizeof *p->queue);
    memset(p->total, 0, ring * sizeof *p->total);
    memset(p->waiting, 0, sizeof p->waiting);
    p->in.hold_rest = false;
    p->n_batch = 0;
    p->n_ready = 0;
    p->newest = p->seen = 0;
}
