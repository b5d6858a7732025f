/* The prompts of a block of seeds and what each of them is answered when it is alone. */
#include "sim.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SPLITS 5u /* key: exact, or 1 to 4 expert workers */

static sim_prompt prompts[SIM_PROMPTS];
static uint64_t block_now = UINT64_MAX;
static sim_answer *answers[SL_WIRE_FORMAT_COUNT][MAX_SPLITS]; /* by wire and key: [SIM_PROMPTS] */

const uint32_t sim_scored[SIM_SCORED] = {400, 7, 1};

uint64_t sim_hash(const void *data, size_t n) {
    const uint8_t *p = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    for (; n > 0; n--, p++) h = (h ^ *p) * 0x100000001b3u;
    return h ^ h >> 32;
}

/* ---- prompts ---- */

static uint32_t draw(uint64_t *state, uint32_t n) {
    return (uint32_t)sl_rng_below(state, n);
}

static uint32_t draw_length(uint64_t *state) {
    static const uint32_t edges[] = {1, 2, 31, 32, 33, 63, 64, 65, 96, 97};
    switch (draw(state, 4)) {
    case 0:
        return edges[draw(state, SL_LEN(edges))];
    case 1:
        return 1 + draw(state, SIM_MAX_PROMPT);
    default:
        return 1 + draw(state, 24);
    }
}

/* A few tokens are allowed, those that end an answer too, and after each of them half of the others
 * are bad. Two of the families have the first, one of them also the second, which looks at what was
 * generated and so is none of those whose answers may be part of a prompt. */
#define ALLOWED_FAMILY 3u
#define BAD_FAMILY     5u
#define ALLOWED        40u
static uint32_t allowed[ALLOWED], set[SL_MAX_VOCAB / 32], bad[3 * ALLOWED * ALLOWED / 2], n_bad;

static void make_exclusions(void) {
    if (n_bad) return;
    for (uint32_t i = 0; i < ALLOWED; i++) {
        allowed[i] = 3 + i * (sim_spec.vocab / ALLOWED);
        set[allowed[i] / 32] |= 1u << allowed[i] % 32;
    }
    for (uint32_t i = 0; i < sim_spec.n_eos; i++)
        set[sim_spec.eos[i] / 32] |= 1u << sim_spec.eos[i] % 32;
    for (uint32_t i = 0; i < ALLOWED * ALLOWED; i++) {
        if ((i % ALLOWED + i / ALLOWED) % 2) continue;
        bad[n_bad++] = 2;
        bad[n_bad++] = allowed[i / ALLOWED];
        bad[n_bad++] = allowed[i % ALLOWED];
    }
}

static void exclude(uint32_t family, sl_sampling *g) {
    make_exclusions();
    g->allowed = set;
    g->bad = bad;
    if (family == ALLOWED_FAMILY || family == BAD_FAMILY)
        g->n_allowed = sl_id_words(sim_spec.vocab);
    if (family == BAD_FAMILY) g->n_bad = n_bad;
}

static void draw_sampling(uint64_t *state, uint32_t family, sim_prompt *p) {
    sl_sampling *g = &p->sampling;
    *g = (sl_sampling){.top_p = 1, .seed = sl_rng_next(state)};
    if (family % 3 != 0) g->temperature = 0.5f + 0.1f * (float)draw(state, 9);
    if (family == 2 || family == 7) g->top_k = 5 + draw(state, 60);
    if (family == 2 || family == 5) g->top_p = 0.8f + 0.02f * (float)draw(state, 9);
    if (family == 1 || family == 4) g->min_p = 0.02f * (float)(1 + draw(state, 5));
    if (family >= 4) {
        g->presence_penalty = 0.25f * (float)draw(state, 5) - 0.5f;
        g->frequency_penalty = 0.25f * (float)(1 + draw(state, 4));
        g->repetition_penalty = 1.0f + 0.1f * (float)draw(state, 4);
    }
    if (family % 2) g->n_bias = SL_LEN(p->bias);
    uint32_t third = sim_spec.vocab / SL_LEN(p->bias);
    for (uint32_t i = 0; i < SL_LEN(p->bias); i++)
        p->bias[i] = (sl_logit_bias){i * third + draw(state, third), (float)draw(state, 9) - 3};
    /* Text of random prompts seldom ends by itself. */
    if (family % 4 == 1 && sim_spec.n_eos > 0 && sim_spec.eos[0] > p->bias[1].id)
        p->bias[2] = (sl_logit_bias){sim_spec.eos[0], 8};
    g->bias = p->bias;
    exclude(family, g);
}

/* Words that go on for longer than any answer, with letters between that the shape alone decides,
 * byte by byte: one of the families has them. */
#define SHAPED_FAMILY 6u
static sl_shared *shape_of(uint32_t family) {
    static const char words[] = "{\"regex\":\"([a-z]{1,7}éßü[ ,]){500,}\"}";
    static sl_shared *shape;
    if (!shape) shape = sl_shared_create((sl_span){(const uint8_t *)words, sizeof words - 1});
    SL_ASSERT(shape);
    return family == SHAPED_FAMILY ? shape : NULL;
}

const sim_prompt *sim_prompts(uint64_t block) {
    uint64_t state = 42 + block * 1000003;
    if (block == block_now) return prompts;
    for (uint32_t i = 0; i < SL_WIRE_FORMAT_COUNT * MAX_SPLITS; i++) {
        free(answers[i / MAX_SPLITS][i % MAX_SPLITS]);
        answers[i / MAX_SPLITS][i % MAX_SPLITS] = NULL;
    }
    for (uint32_t f = 0; f < SIM_FAMILIES; f++) {
        sim_prompt *p = &prompts[f * SIM_CHOICES];
        p->n = draw_length(&state);
        for (uint32_t j = 0; j < p->n; j++) p->ids[j] = draw(&state, sim_spec.vocab);
        draw_sampling(&state, f, p);
        p->shape = shape_of(f);
        for (uint32_t c = 1; c < SIM_CHOICES; c++) {
            p[c] = p[0];
            p[c].sampling.choice = c;
            p[c].sampling.bias = p[c].bias;
        }
    }
    block_now = block;
    return prompts;
}

/* ---- answers ---- */

typedef struct recorder {
    const sim_prompt *p;
    sim_answer *a;
    uint32_t n;
    sl_finish finish;
    char message[160];
} recorder;

static void record(void *ctx, const sl_request_event *ev) {
    recorder *r = ctx;
    if (ev->n && ev->prompt_position)
        memcpy(r->a->prompt[ev->prompt_position], ev->logprobs, sizeof r->a->prompt[0]);
    else if (ev->n && r->n < SIM_MAX_NEW) {
        memcpy(r->a->logprobs[r->n], ev->logprobs, sizeof r->a->logprobs[0]);
        r->a->ids[r->n++] = ev->tokens[0];
    }
    r->finish = ev->finish;
    if (ev->message) snprintf(r->message, sizeof r->message, "%s", ev->message);
}

static void record_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    recorder *r = ctx;
    for (uint32_t i = 0; i < n && first + i < SIM_CONTEXT; i++)
        r->a->logits[first + i] =
            sim_hash(logits + (size_t)i * sim_spec.vocab, sim_spec.vocab * sizeof *logits);
}

static bool run_alone(sim *s, const sim_prompt *p, sim_answer *a) {
    sl_err err;
    uint64_t id;
    recorder r = {.p = p, .a = a};
    const sl_request_params q = {.prompt = p->ids,
                                 .n_prompt = p->n,
                                 .max_tokens = SIM_MAX_NEW,
                                 .sampling = p->sampling,
                                 .ignore_eos = !p->shape,
                                 .shape = p->shape,
                                 .logprobs = true,
                                 .prompt_logprobs = true,
                                 .report = {SL_MAX_LOGPROBS, SIM_SCORED, sim_scored},
                                 .on_event = record,
                                 .on_logits = record_logits,
                                 .ctx = &r};
    if (sl_engine_submit(s->engine, &q, &id, &err) != SL_OK) return sim_fail(s, "%s", err.msg);
    while (r.finish == SL_FINISH_NONE && !s->what[0]) sim_turn(s);
    return (r.finish == SL_FINISH_LENGTH && r.n == SIM_MAX_NEW) ||
           sim_fail(s, "reference: %s", r.message);
}

static bool make_answers(sim *s, sim_answer *out) {
    sl_err err;
    sim alone = {.seed = 1, .rng = 1, .devices.stateful = s->devices.stateful};
    if (alone.devices.stateful) alone.devices.seed = 1;
    uint32_t experts = 0;
    for (uint32_t i = 0; i < s->n_first; i++) experts += sim_is(s, i, SL_ROLE_EXPERT);
    if (sl_plan_local(&sim_spec, s->plan.exact ? 0 : experts, 0, &alone.plan, &err) != SL_OK)
        return sim_fail(s, "%s", err.msg);
    alone.n_first = alone.plan.n_workers;
    alone.plan.exact = s->plan.exact;
    alone.plan.wire = s->plan.wire;
    alone.plan.threads = 1;
    alone.plan.context = SIM_CONTEXT;
    alone.plan.n_pages = 2 * sl_kv_pages_for(SIM_CONTEXT);
    sl_log_set_level(SL_LOG_ERROR); /* a trace is about the seed */
#ifdef SL_MUTATIONS                 /* what is right is computed without the planted bug */
    sl_mutation planted = sl_mutation_on;
    sl_mutation_on = SL_MUTATE_NONE;
#endif
    bool ok = sim_start(&alone, 1, 0) && sim_await_serving(&alone);
    for (uint32_t i = 0; ok && i < SIM_PROMPTS; i++) ok = run_alone(&alone, &prompts[i], &out[i]);
#ifdef SL_MUTATIONS
    sl_mutation_on = planted;
#endif
    sim_stop(&alone);
    sl_plan_free(&alone.plan);
    if (s->verbose) sl_log_set_level(SL_LOG_DEBUG);
    return ok || sim_fail(s, "%s", alone.what);
}

const sim_answer *sim_reference(sim *s, uint32_t i) {
    uint32_t key = 0;
    for (uint32_t w = 0; !s->plan.exact && w < s->n_first; w++) key += sim_is(s, w, SL_ROLE_EXPERT);
    SL_ASSERT(key < MAX_SPLITS && s->plan.wire < SL_WIRE_FORMAT_COUNT);
    sim_answer **a = &answers[s->plan.wire][key];
    if (!*a) {
        sim_answer *made = calloc(SIM_PROMPTS, sizeof *made);
        if (!made || !make_answers(s, made)) {
            free(made);
            sim_fail(s, "no memory for references");
            return NULL;
        }
        *a = made;
    }
    return &(*a)[i];
}
