/* Draws against distributions, cut-offs, penalties, strange logits. */
#include "model/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define VOCAB 64u

static sl_arena scratch;

static int make_scratch(void **state) {
    (void)state;
    sl_err err;
    return sl_arena_create(sl_sampler_scratch_bytes(200000), &scratch, &err) != SL_OK;
}

static int free_scratch(void **state) {
    (void)state;
    sl_arena_free(&scratch);
    return 0;
}

static void fill(float *logits) {
    for (uint32_t i = 0; i < VOCAB; i++) logits[i] = 3.0f * sinf((float)(i * i));
}

static void greedy_takes_the_largest_and_the_lower_id(void **state) {
    (void)state;
    float l[VOCAB] = {0};
    sl_sampling s = {.top_p = 1};
    l[7] = l[9] = 2;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, NULL, &scratch), 7);
    l[0] = NAN;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, NULL, &scratch), 7);
    s.temperature = 1e-30f; /* two equals share the mass, all others vanish */
    for (uint64_t p = 0; p < 20; p++) {
        uint32_t id = sl_sample(&s, l, VOCAB, p, NULL, &scratch);
        assert_true(id == 7 || id == 9);
    }
}

/* Of a prompt of 2 and what was generated; the thought may have 2 tokens between 10 and 11. */
static void a_thought_is_ended(void **state) {
    (void)state;
    static const struct {
        uint32_t open, n, token[8], want; /* want 7: what the logits say */
    } row[] = {
        {0, 2, {11, 1}, 7},
        {0, 3, {1, 1, 5}, 7},
        {0, 4, {1, 1, 5, 6}, 11},
        {0, 5, {1, 1, 5, 11, 6}, 7},
        {11, 2, {1, 10}, 7},
        {11, 3, {1, 1, 10}, 7},
        {11, 4, {1, 1, 10, 5}, 7},
        {11, 5, {1, 1, 10, 5, 6}, 11},
        {11, 6, {1, 1, 4, 10, 5, 6}, 11},
        {11, 6, {1, 1, 10, 5, 6, 11}, 7},
        {11, 6, {1, 1, 3, 4, 5, 6}, 7},
    };
    float l[VOCAB] = {0};
    l[7] = 2;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const sl_history past = {row[i].token, row[i].n, 2};
        sl_sampling s = {
            .top_p = 1, .thought_most = 2, .thought_open = row[i].open, .thought_close = 12};
        assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), row[i].want);
        s.thought_close = 0;
        assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), 7);
        s.thought_close = VOCAB + 1; /* no such token */
        assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), 7);
    }
    const uint32_t mask[] = {1u << 7, 0}, thought[] = {1, 1, 5, 6};
    sl_sampling s = {
        .top_p = 1, .thought_most = 2, .thought_close = 12, .allowed = mask, .n_allowed = 2};
    const sl_history past = {thought, 4, 2};
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), 7);
    const uint32_t bad[] = {3, 5, 6, 11};
    s.n_allowed = 0;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), 11);
    s.bad = bad;
    s.n_bad = 4;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), 7);
}

static bool is_allowed(const uint32_t *mask, uint32_t id) {
    return mask[id / 32] >> id % 32 & 1;
}

/* Whatever the cut-offs, penalties and biases: what is drawn is allowed, and drawn as often as it
 * would be if the others were never there. */
static void what_is_not_allowed_is_never_drawn(void **state) {
    (void)state;
    float l[VOCAB], kept[VOCAB];
    const uint32_t mask[] = {1u << 3 | 1u << 17, 1u << 1 | 1u << 31}; /* 3, 17, 33, 63 */
    const uint32_t past[] = {3, 3, 17, 5};
    const sl_history history = {past, 4, 2};
    const sl_logit_bias bias[] = {{5, 100}, {33, 2}};
    fill(l);
    l[9] = 80;
    for (uint32_t i = 0; i < VOCAB; i++) kept[i] = is_allowed(mask, i) ? l[i] : -INFINITY;
    for (uint32_t k = 0; k < 24; k++) {
        sl_sampling s = {.temperature = k % 2 ? 0.7f : 3,
                         .top_p = k % 3 ? 1 : 0.8f,
                         .top_k = k % 4 ? 0 : 3,
                         .min_p = k % 5 ? 0 : 0.05f,
                         .presence_penalty = k % 7 ? 0 : 0.5f,
                         .repetition_penalty = 1.2f,
                         .seed = k,
                         .bias = bias,
                         .n_bias = k % 6 ? 0 : 2,
                         .allowed = mask};
        for (uint64_t p = 0; p < 100; p++) {
            s.n_allowed = 2;
            uint32_t id = sl_sample(&s, l, VOCAB, p, &history, &scratch);
            assert_true(is_allowed(mask, id));
            s.n_allowed = 0;
            assert_int_equal(sl_sample(&s, kept, VOCAB, p, &history, &scratch), id);
        }
    }
    sl_sampling greedy = {.top_p = 1, .allowed = mask, .n_allowed = 2};
    uint32_t best = sl_sample(&greedy, l, VOCAB, 0, NULL, &scratch);
    assert_true(is_allowed(mask, best));
    for (uint32_t i = 0; i < VOCAB; i++)
        if (is_allowed(mask, i)) assert_true(l[best] >= l[i]);
    const uint32_t one[] = {0, 1u << 8}; /* 40, alone: whatever its logit */
    l[40] = -1e30f;
    greedy.allowed = one;
    assert_int_equal(sl_sample(&greedy, l, VOCAB, 0, NULL, &scratch), 40);
    greedy.temperature = 1;
    assert_int_equal(sl_sample(&greedy, l, VOCAB, 0, NULL, &scratch), 40);
}

/* Of a prompt of 2 and what was generated. What is drawn beside bad words is drawn as often as it
 * would be if their last tokens were never there, and only generated tokens begin one. */
static void bad_words_are_never_whole(void **state) {
    (void)state;
    static const uint32_t bad[] = {1, 9, 2, 4, 9, 3, 4, 5, 6, 2, 63, 33, 1, 9, 2, 4, 12};
    static const struct {
        uint32_t n, token[6], n_out, out[4]; /* excluded ids */
    } row[] = {
        {0, {0}, 1, {9}},
        {2, {4, 63}, 1, {9}},
        {3, {63, 4, 5}, 1, {9}},
        {3, {1, 1, 63}, 2, {9, 33}},
        {4, {1, 1, 4, 5}, 2, {9, 6}},
        {3, {1, 1, 4}, 2, {9, 12}},
        {4, {1, 1, 5, 4}, 2, {9, 12}},
        {4, {1, 4, 5, 5}, 1, {9}},
    };
    float l[VOCAB], kept[VOCAB];
    fill(l);
    l[9] = l[12] = l[33] = l[6] = 9;
    for (size_t i = 0; i < SL_LEN(row); i++) {
        const sl_history past = {row[i].token, row[i].n, SL_MIN(row[i].n, 2u)};
        sl_sampling s = {.temperature = 1.5f, .top_p = 1, .bad = bad, .n_bad = SL_LEN(bad)};
        memcpy(kept, l, sizeof kept);
        for (uint32_t k = 0; k < row[i].n_out; k++) kept[row[i].out[k]] = -INFINITY;
        for (uint32_t id = 0; id < VOCAB; id++)
            assert_int_equal(sl_sampler_excludes(&s, id, &past), kept[id] < -1e30f);
        for (uint64_t p = 0; p < 100; p++) {
            const sl_sampling plain = {.temperature = 1.5f, .top_p = 1};
            const uint32_t id = sl_sample(&s, l, VOCAB, p, &past, &scratch);
            assert_int_equal(sl_sample(&plain, kept, VOCAB, p, &past, &scratch), id);
            assert_false(sl_sampler_excludes(&s, id, &past));
        }
        assert_false(sl_sampler_excludes_all(&s, VOCAB, &past, &scratch));
    }
}

/* What is allowed, bad and never drawn together leaves a token or none. */
static void all_may_be_excluded(void **state) {
    (void)state;
    const uint32_t mask[] = {1u << 3, 1u << 1}, bad[] = {2, 4, 3, 1, 33}, never[] = {3, 70};
    const uint32_t token[] = {3, 4};
    const sl_history past = {token, 2, 1}, none = {token, 1, 1};
    float l[VOCAB];
    fill(l);
    sl_sampling s = {.top_p = 1, .allowed = mask, .bad = bad, .never = never, .n_allowed = 2};
    assert_false(sl_sampler_excludes_all(&s, VOCAB, &past, &scratch));
    s.n_bad = 5;
    assert_true(sl_sampler_excludes_all(&s, VOCAB, &past, &scratch));
    assert_false(sl_sampler_excludes_all(&s, VOCAB, &none, &scratch));
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, &none, &scratch), 3);
    assert_true(sl_sampler_excludes(&s, sl_sample(&s, l, VOCAB, 0, &past, &scratch), &past));
    s.n_never = 2;
    assert_true(sl_sampler_excludes_all(&s, VOCAB, &none, &scratch));
    s.n_allowed = 0;
    assert_false(sl_sampler_excludes_all(&s, VOCAB, &past, &scratch));
    assert_false(sl_sampler_excludes_all(&s, 50, &past, &scratch));
    assert_int_equal(scratch.used, 0);
}

static void never_is_never_drawn(void **state) {
    (void)state;
    float l[VOCAB];
    const uint32_t never[] = {3, 5, 1000000};
    const sl_logit_bias bias[] = {{5, 100}};
    sl_sampling s = {.top_p = 1, .never = never, .n_never = 3, .bias = bias, .n_bias = 1};
    fill(l);
    l[3] = 50;
    l[9] = 40;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, NULL, &scratch), 9);
    s.temperature = 100;
    for (uint32_t k = 0; k <= VOCAB; k += VOCAB / 2) {
        s.top_k = k;
        for (uint64_t p = 0; p < 300; p++) {
            uint32_t id = sl_sample(&s, l, VOCAB, p, NULL, &scratch);
            assert_true(id != 3 && id != 5);
        }
    }
}

static void strange_logits_still_give_an_id(void **state) {
    (void)state;
    float l[VOCAB];
    sl_sampling s = {.temperature = 1, .top_p = 0.5f, .top_k = 3};
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = NAN;
    assert_true(sl_sample(&s, l, VOCAB, 0, NULL, &scratch) < VOCAB);
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = -INFINITY;
    assert_true(sl_sample(&s, l, VOCAB, 0, NULL, &scratch) < VOCAB);
    l[11] = 0;
    for (uint64_t p = 0; p < 50; p++)
        assert_int_equal(sl_sample(&s, l, VOCAB, p, NULL, &scratch), 11);
    l[12] = INFINITY;
    assert_int_equal(sl_sample(&s, l, VOCAB, 0, NULL, &scratch), 12);
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = i == 20 ? -5.0f : NAN;
    for (uint64_t p = 0; p < 50; p++)
        assert_int_equal(sl_sample(&s, l, VOCAB, p, NULL, &scratch), 20);
}

/* Reference: sort all, cut, renormalise. Fills the probability of each id. */
static void expected(const sl_sampling *s, const float *logits, double p[VOCAB]) {
    uint32_t order[VOCAB], k = s->top_k && s->top_k < VOCAB ? s->top_k : VOCAB;
    double w[VOCAB], mass = 0, cut = 0;
    for (uint32_t i = 0; i < VOCAB; i++) order[i] = i;
    for (uint32_t i = 1; i < VOCAB; i++)
        for (uint32_t j = i; j > 0 && logits[order[j]] > logits[order[j - 1]]; j--) {
            uint32_t t = order[j];
            order[j] = order[j - 1];
            order[j - 1] = t;
        }
    for (uint32_t i = 0; i < VOCAB; i++) p[i] = 0;
    for (uint32_t i = 0; i < k; i++) mass += w[i] = exp((double)logits[order[i]] / s->temperature);
    uint32_t kept = 0;
    while (kept < k && (kept == 0 || cut < mass * s->top_p)) cut += w[kept++];
    for (uint32_t i = 0; i < kept; i++) p[order[i]] = w[i] / cut;
}

static void draws_follow_the_distribution(void **state) {
    (void)state;
    static const sl_sampling cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 0.7f, .top_p = 0.8f},
        {.temperature = 1.5f, .top_p = 1, .top_k = 5},
        {.temperature = 2, .top_p = 0.6f, .top_k = 20},
        {.temperature = 1, .top_p = 1e-6f},
        {.temperature = 100, .top_p = 0.999f, .top_k = VOCAB},
    };
    const int n = 40000;
    float l[VOCAB];
    fill(l);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        sl_sampling s = cases[c];
        double p[VOCAB];
        int count[VOCAB] = {0};
        expected(&s, l, p);
        s.seed = 9;
        for (int i = 0; i < n; i++) count[sl_sample(&s, l, VOCAB, (uint64_t)i, NULL, &scratch)]++;
        for (uint32_t i = 0; i < VOCAB; i++) {
            double sigma = sqrt(p[i] * (1 - p[i]) / n);
            assert_true(fabs((double)count[i] / n - p[i]) <= 5 * sigma + 1e-9);
        }
    }
    assert_int_equal(scratch.used, 0);
}

/* A vocabulary of many blocks, with ties, NaN and tokens that are not there: what is drawn is among
 * those that sorting all of them keeps, as often as its share says. */
#define WIDE  5000u
#define DRAWN 400u

static int by_logit(const void *a, const void *b, void *ctx) {
    const float *l = ctx;
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    if (l[x] != l[y]) return l[x] > l[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void wide(const sl_sampling *how, const float *l) {
    static uint32_t order[WIDE], count[WIDE];
    static double w[WIDE], p[WIDE];
    sl_sampling s = *how;
    uint32_t n = 0, kept = 0;
    double all = 0, mass = 0;
    for (uint32_t i = 0; i < WIDE; i++)
        if (!isnan(l[i])) order[n++] = i;
    qsort_r(order, n, sizeof *order, by_logit, (void *)(uintptr_t)l);
    if (s.top_k) n = SL_MIN(n, s.top_k);
    for (uint32_t i = 0; i < n; i++) {
        w[i] = exp(((double)l[order[i]] - l[order[0]]) / s.temperature);
        if (w[i] < s.min_p) w[i] = 0;
        all += w[i];
    }
    while (kept < n && (kept == 0 || mass < all * s.top_p)) mass += w[kept++];
    memset(p, 0, sizeof p);
    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < kept; i++) p[order[i]] = w[i] / mass;
    for (uint64_t i = 0; i < DRAWN; i++) count[sl_sample(&s, l, WIDE, i, NULL, &scratch)]++;
    for (uint32_t i = 0; i < WIDE; i++) {
        const double sigma = sqrt(p[i] * (1 - p[i]) / DRAWN);
        if (p[i] == 0) assert_int_equal(count[i], 0);
        assert_true(fabs((double)count[i] / DRAWN - p[i]) <= 6 * sigma + 4.0 / DRAWN);
    }
}

static void draws_of_many_blocks(void **state) {
    static const sl_sampling cases[] = {
        {.temperature = 1, .top_p = 1},
        {.temperature = 1, .top_p = 1, .min_p = 0.1f},
        {.temperature = 0.8f, .top_p = 0.9f},
        {.temperature = 3, .top_p = 0.7f, .min_p = 0.01f},
        {.temperature = 50, .top_p = 0.5f},
        {.temperature = 1, .top_p = 1, .top_k = 7},
        {.temperature = 2, .top_p = 0.8f, .top_k = 3000},
        {.temperature = 1, .top_p = 0.95f, .top_k = 20, .min_p = 0.05f},
    };
    float *l = malloc(WIDE * sizeof *l);
    (void)state;
    assert_non_null(l);
    for (uint32_t kind = 0; kind < 4; kind++) {
        for (uint32_t i = 0; i < WIDE; i++) l[i] = 4.0f * sinf((float)i * (float)i * 0.37f);
        if (kind == 1) /* few values */
            for (uint32_t i = 0; i < WIDE; i++) l[i] = floorf(l[i]);
        if (kind == 2) /* whole blocks that are not there */
            for (uint32_t i = 700; i < 3000; i++) l[i] = i % 2 ? -INFINITY : NAN;
        if (kind == 3) /* all the same */
            for (uint32_t i = 0; i < WIDE; i++) l[i] = 1;
        for (size_t c = 0; c < SL_LEN(cases); c++) wide(&cases[c], l);
    }
    assert_int_equal(scratch.used, 0);
    free(l);
}

static void a_draw_depends_on_seed_choice_and_position_only(void **state) {
    (void)state;
    float l[VOCAB] = {0};
    sl_sampling a = {.temperature = 1, .top_p = 0.95f, .seed = 1}, b = a, c = a;
    int differ_seed = 0, differ_choice = 0, differ_position = 0;
    b.seed = 2;
    c.choice = 1;
    for (uint64_t p = 0; p < 200; p++) {
        uint32_t id = sl_sample(&a, l, VOCAB, p, NULL, &scratch);
        assert_int_equal(sl_sample(&a, l, VOCAB, p, NULL, &scratch), id);
        differ_seed += id != sl_sample(&b, l, VOCAB, p, NULL, &scratch);
        differ_choice += id != sl_sample(&c, l, VOCAB, p, NULL, &scratch);
        differ_position += id != sl_sample(&a, l, VOCAB, p + 1, NULL, &scratch);
    }
    assert_true(differ_seed > 100 && differ_choice > 100 && differ_position > 100);
}

static void ranges_are_checked_by_name(void **state) {
    (void)state;
    sl_err err = {0};
    sl_sampling s = {.temperature = -0.5f, .top_p = 1};
    assert_int_equal(sl_sampling_check(&s, VOCAB, &err), SL_ERR_ARG);
    assert_string_equal(err.msg, "temperature: -0.5 is outside 0..100");
    s = (sl_sampling){.temperature = 1, .top_p = 0};
    assert_int_equal(sl_sampling_check(&s, VOCAB, &err), SL_ERR_ARG);
    assert_string_equal(err.msg, "top_p: 0 is outside (0..1]");
    s.top_p = NAN;
    assert_int_equal(sl_sampling_check(&s, VOCAB, &err), SL_ERR_ARG);
    s.top_p = 1;
    assert_int_equal(sl_sampling_check(&s, VOCAB, &err), SL_OK);
}

/* Each line of the contract, one after the other, in doubles. */
static void changed_naively(const sl_sampling *s, const sl_history *past, const float *in,
                            double out[VOCAB]) {
    for (uint32_t i = 0; i < VOCAB; i++) {
        bool seen = false;
        int made = 0;
        out[i] = in[i];
        for (uint32_t b = 0; b < s->n_bias; b++)
            if (s->bias[b].id == i) out[i] += s->bias[b].bias;
        for (uint32_t t = 0; t < past->n; t++) {
            seen |= past->tokens[t] == i;
            made += t >= past->n_prompt && past->tokens[t] == i;
        }
        if (seen && s->repetition_penalty > 0)
            out[i] = out[i] > 0 ? out[i] / s->repetition_penalty : out[i] * s->repetition_penalty;
        out[i] -= s->frequency_penalty * made;
        if (made) out[i] -= s->presence_penalty;
    }
}

static void penalties_and_biases_follow_their_definition(void **state) {
    (void)state;
    static const sl_logit_bias bias[] = {{2, 4.5f}, {5, -100}, {9, -1.25f}, {63, 3}};
    static const sl_sampling cases[] = {
        {.presence_penalty = 1.5f},
        {.presence_penalty = -2},
        {.frequency_penalty = 0.75f},
        {.frequency_penalty = -1},
        {.repetition_penalty = 1.3f},
        {.repetition_penalty = 0.5f},
        {.bias = bias, .n_bias = 4},
        {.presence_penalty = 0.5f,
         .frequency_penalty = 0.25f,
         .repetition_penalty = 2,
         .bias = bias,
         .n_bias = 4},
    };
    const uint32_t tokens[] = {9, 2, 2, 41, 63, 17, 9, 17, 17, 30, 2};
    const int n = 4000;
    float l[VOCAB];
    fill(l);
    for (size_t c = 0; c < SL_LEN(cases); c++) {
        const sl_history past = {tokens, SL_LEN(tokens), 5}, none = {tokens, 0, 0};
        double want[VOCAB], p[VOCAB];
        float changed[VOCAB];
        int count[VOCAB] = {0};
        uint32_t best = 0;
        sl_sampling s = cases[c], plain = {.temperature = 1, .top_p = 1};
        s.top_p = 1;
        s.seed = c;
        changed_naively(&s, &past, l, want);
        for (uint32_t i = 0; i < VOCAB; i++) {
            changed[i] = (float)want[i];
            if (want[i] > want[best]) best = i;
        }
        assert_int_equal(sl_sample(&s, l, VOCAB, 0, &past, &scratch), best);
        s.temperature = 1;
        expected(&plain, changed, p);
        for (int i = 0; i < n; i++) count[sl_sample(&s, l, VOCAB, (uint64_t)i, &past, &scratch)]++;
        for (uint32_t i = 0; i < VOCAB; i++) {
            double sigma = sqrt(p[i] * (1 - p[i]) / n);
            assert_true(fabs((double)count[i] / n - p[i]) <= 5 * sigma + 1e-4);
        }
        if (s.n_bias == 0) /* nothing to penalise yet */
            for (uint64_t i = 0; i < 100; i++) {
                plain.seed = s.seed;
                assert_int_equal(sl_sample(&s, l, VOCAB, i, &none, &scratch),
                                 sl_sample(&plain, l, VOCAB, i, NULL, &scratch));
            }
    }
    assert_int_equal(scratch.used, 0);
}

static void min_p_keeps_what_is_likely_enough(void **state) {
    (void)state;
    float l[VOCAB];
    double top = -INFINITY, share = 0;
    fill(l);
    for (uint32_t i = 0; i < VOCAB; i++) top = fmax(top, l[i]);
    for (int round = 0; round < 2; round++) {
        sl_sampling s = {.temperature = 2, .top_p = round ? 0.9999f : 1, .min_p = 0.2f, .seed = 4};
        double p[VOCAB], mass = 0;
        int count[VOCAB] = {0}, n = 40000;
        for (uint32_t i = 0; i < VOCAB; i++) {
            p[i] = exp((l[i] - top) / 2);
            share += p[i] < 0.2;
            mass += p[i] = p[i] < 0.2 ? 0 : p[i];
        }
        for (int i = 0; i < n; i++) count[sl_sample(&s, l, VOCAB, (uint64_t)i, NULL, &scratch)]++;
        for (uint32_t i = 0; i < VOCAB; i++) {
            double q = p[i] / mass, sigma = sqrt(q * (1 - q) / n);
            assert_true(fabs((double)count[i] / n - q) <= 5 * sigma + 1e-9);
        }
        s.min_p = 1; /* the likeliest alone */
        for (uint64_t i = 0; i < 50; i++)
            assert_true(l[sl_sample(&s, l, VOCAB, i, NULL, &scratch)] == (float)top);
    }
    assert_true(share > 10);
}

static void log_probabilities_are_of_the_raw_logits(void **state) {
    (void)state;
    float l[VOCAB];
    sl_logprob out[SL_MAX_REPORTED];
    const uint32_t scored[] = {40, 7, 3, 40};
    fill(l);
    l[40] = l[41]; /* a tie */
    l[7] = -INFINITY;
    l[8] = NAN;
    double sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++) sum += i == 8 ? 0 : exp((double)l[i]);
    for (uint32_t id = 0; id < VOCAB; id++) {
        uint32_t n = id % (SL_MAX_LOGPROBS + 1);
        sl_logprobs(l, VOCAB, id, &(sl_report){n, SL_LEN(scored), scored}, &scratch, out);
        for (uint32_t i = 0; i < SL_LEN(scored); i++) {
            const sl_logprob *p = &out[1 + n + i];
            assert_int_equal(p->id, scored[i]);
            assert_true(p->id == 7 ? p->logprob == SL_LOGPROB_FLOOR
                                   : fabs(p->logprob - (l[p->id] - log(sum))) < 1e-5);
        }
        assert_int_equal(out[0].id, id);
        if (id == 7 || id == 8)
            assert_true(out[0].logprob == SL_LOGPROB_FLOOR);
        else
            assert_true(fabs(out[0].logprob - (l[id] - log(sum))) < 1e-5);
        for (uint32_t i = 1; i <= n; i++) {
            uint32_t better = 0, at = out[i].id;
            for (uint32_t j = 0; j < VOCAB; j++)
                better += l[j] > l[at] || (l[j] == l[at] && j < at);
            assert_int_equal(better, i - 1);
            assert_true(fabs(out[i].logprob - (l[at] - log(sum))) < 1e-5);
        }
    }
    for (uint32_t i = 0; i < VOCAB; i++) l[i] = i % 2 ? NAN : INFINITY;
    const sl_report most = {.n_top = SL_MAX_LOGPROBS};
    sl_logprobs(l, VOCAB, 3, &most, &scratch, out);
    for (uint32_t i = 0; i <= SL_MAX_LOGPROBS; i++) assert_true(isfinite(out[i].logprob));
    assert_int_equal(scratch.used, 0);
}

static void new_ranges_are_checked_by_name(void **state) {
    (void)state;
    static const sl_logit_bias twice[] = {{3, 1}, {3, 1}}, far[] = {{VOCAB, 1}}, nan[] = {{1, NAN}};
    static const struct {
        sl_sampling s;
        const char *msg;
    } bad[] = {
        {{.min_p = 1.5f}, "min_p: 1.5 is outside 0..1"},
        {{.presence_penalty = 2.5f}, "presence_penalty: 2.5 is outside -2..2"},
        {{.frequency_penalty = NAN}, "frequency_penalty: nan is outside -2..2"},
        {{.repetition_penalty = -1}, "repetition_penalty: -1 is outside 0..100"},
        {{.bias = twice, .n_bias = 2}, "logit_bias: id 3 after 3"},
        {{.bias = far, .n_bias = 1}, "logit_bias: id 64, the vocabulary has 64"},
        {{.bias = nan, .n_bias = 1}, "logit_bias: nan for id 1 is outside -100..100"},
        {{.n_bias = SL_MAX_LOGIT_BIAS + 1}, "logit_bias: 1025 ids, limit 1024"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        sl_err err = {0};
        sl_sampling s = bad[i].s;
        s.top_p = 1;
        assert_int_not_equal(sl_sampling_check(&s, VOCAB, &err), SL_OK);
        assert_string_equal(err.msg, bad[i].msg);
    }
}

static void a_real_vocabulary_fits_its_scratch(void **state) {
    (void)state;
    uint32_t n = 151936;
    float *l = malloc(n * sizeof *l);
    for (uint32_t i = 0; i < n; i++) l[i] = cosf((float)i) * 4;
    sl_sampling s = {.temperature = 1, .top_p = 0.9f, .seed = 3};
    sl_arena own = {0};
    sl_err err;
    assert_int_equal(sl_arena_create(sl_sampler_scratch_bytes(n), &own, &err), SL_OK);
    const uint32_t tokens[] = {5, 151935};
    const sl_history past = {tokens, 2, 1};
    sl_logprob top[1 + SL_MAX_LOGPROBS];
    for (uint64_t p = 0; p < 4; p++) assert_true(sl_sample(&s, l, n, p, NULL, &own) < n);
    s.presence_penalty = 1;
    for (uint64_t p = 0; p < 4; p++) assert_true(sl_sample(&s, l, n, p, &past, &own) < n);
    sl_logprobs(l, n, 5, &(sl_report){.n_top = SL_MAX_LOGPROBS}, &own, top);
    sl_arena_free(&own);
    free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_largest_and_the_lower_id),
        cmocka_unit_test(never_is_never_drawn),
        cmocka_unit_test(what_is_not_allowed_is_never_drawn),
        cmocka_unit_test(bad_words_are_never_whole),
        cmocka_unit_test(all_may_be_excluded),
        cmocka_unit_test(strange_logits_still_give_an_id),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(draws_of_many_blocks),
        cmocka_unit_test(a_draw_depends_on_seed_choice_and_position_only),
        cmocka_unit_test(ranges_are_checked_by_name),
        cmocka_unit_test(penalties_and_biases_follow_their_definition),
        cmocka_unit_test(a_thought_is_ended),
        cmocka_unit_test(min_p_keeps_what_is_likely_enough),
        cmocka_unit_test(log_probabilities_are_of_the_raw_logits),
        cmocka_unit_test(new_ranges_are_checked_by_name),
        cmocka_unit_test(a_real_vocabulary_fits_its_scratch),
    };
    return cmocka_run_group_tests(tests, make_scratch, free_scratch);
}
