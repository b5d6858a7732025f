/* Logits and greedy ids of the golden fixtures (tests/golden, made by transformers in f32), whole
 * and cut into steps, on every instruction set that runs here. */
#include "format/json.h"
#include "model/model_int.h"
#include "model/sampler.h"
#include "model_run.h"
#include "sanitized.h"

#include <math.h>
#include <stdio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define BAR      2e-4
#define MAX_ROWS 2048u

static const char root[] = SL_SOURCE_DIR "/tests/golden";
static const char *const fixtures[] = {
    "qwen3moe-tiny", "mixtral-tiny", "qwen3moe-sparse", "qwen2moe-tiny",   "olmoe-tiny",
    "glm4moe-tiny",  "llama4-tiny",  "deepseekv2-tiny", "deepseekv3-tiny", "dbrx-tiny",
    "arctic-tiny",   "gptoss-tiny",  "qwen3next-tiny"};

typedef struct golden_case {
    const char *name;
    uint32_t ids[MAX_ROWS], n_prompt, n_all; /* prompt, then greedy ids */
    float *logits;                           /* [n_all][vocab] */
} golden_case;

static void read_ids(sl_json list, golden_case *c) {
    for (size_t i = 0; i < sl_json_count(list); i++) {
        uint64_t id = 0;
        assert_true(sl_json_as_u64(sl_json_at(list, i), &id) && c->n_all < MAX_ROWS);
        c->ids[c->n_all++] = (uint32_t)id;
    }
}

/* float32, C order. */
static float *read_array(const char *path, const char *shape, size_t count) {
    char header[512] = "";
    uint8_t start[10];
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot open", path);
    assert_int_equal(fread(start, 1, sizeof start, f), sizeof start);
    assert_memory_equal(start, "\x93NUMPY\x01", 7);
    size_t n = start[8] + 256u * start[9];
    assert_true(n < sizeof header);
    assert_int_equal(fread(header, 1, n, f), n);
    assert_non_null(strstr(header, "'<f4'"));
    assert_non_null(strstr(header, "'fortran_order': False"));
    if (!strstr(header, shape)) fail_msg("%s: %s, expected %s", path, header, shape);
    float *x = malloc(count * sizeof *x);
    assert_int_equal(fread(x, sizeof *x, count, f), count);
    fclose(f);
    return x;
}

static float *read_npy(const char *path, uint32_t rows, uint32_t cols) {
    char shape[64];
    snprintf(shape, sizeof shape, "(%u, %u)", rows, cols);
    return read_array(path, shape, (size_t)rows * cols);
}

/* max |got - want| / max |want| over each row; the largest. */
static double deviation(const float *got, const float *want, uint32_t rows, uint32_t cols) {
    double worst = 0;
    for (uint32_t r = 0; r < rows; r++, got += cols, want += cols) {
        double d = 0, top = 0;
        for (uint32_t i = 0; i < cols; i++) {
            d = fmax(d, fabs((double)got[i] - want[i]));
            top = fmax(top, fabs((double)want[i]));
        }
        worst = fmax(worst, d / top);
    }
    return worst;
}

/* All positions in one step, within the bar and to the same greedy ids. */
static void check_whole(model_run *r, const golden_case *c, const char *folder, float *whole) {
    uint32_t vocab = r->s->vocab;
    model_seq seq = model_seq_make(r->s, c->n_all);
    model_run_prefill(r, &seq, c->ids, 0, c->n_all, c->n_all, whole);
    model_seq_free(&seq);
    double d = deviation(whole, c->logits, c->n_all, vocab);
    printf("%s %s %s%s: deviation %.2e over %u positions\n", folder, c->name,
           sl_kernels_name(r->ex.k), r->ex.expand_rows ? " expanded" : "", d, c->n_all);
    assert_true(d <= BAR);
    const sl_sampling greedy = {.top_p = 1};
    for (uint32_t i = c->n_prompt; i < c->n_all; i++)
        assert_int_equal(
            sl_sample(&greedy, whole + (size_t)(i - 1) * vocab, vocab, i, NULL, &r->scratch),
            c->ids[i]);
}

static void check_case(model_run *r, const golden_case *c, const char *folder) {
    static const uint32_t chunks[] = {13, 1};
    static uint32_t turn;
    size_t bytes = (size_t)c->n_all * r->s->vocab * sizeof(float);
    float *whole = malloc(bytes), *cut = malloc(bytes);
    if (r->s->kv_lora) {
        r->ex.expand_rows = 1;
        check_whole(r, c, folder, whole);
        r->ex.expand_rows = 0;
    }
    check_whole(r, c, folder, whole);
    for (size_t i = 0; i < (SL_SLOW_BUILD ? 1 : SL_LEN(chunks)); i++) {
        if (turn++ % take_one_in(7)) continue; /* no number of tables divides it */
        model_seq seq = model_seq_make(r->s, c->n_all);
        model_run_prefill(r, &seq, c->ids, 0, c->n_all, chunks[i], cut);
        model_seq_free(&seq);
        assert_memory_equal(cut, whole, bytes);
    }
    free(whole);
    free(cut);
}

static void check_cases(const sl_model *m, const golden_case *c, const char *folder) {
    const sl_kernels *k;
    bool supported = false;
    sl_pool *pool = NULL;
    sl_err err = {0};
    assert_int_equal(sl_pool_create(2, &pool, &err), SL_OK);
    for (size_t i = 0; (k = sl_kernels_at(i, &supported)) != NULL; i++) {
        if (!supported) {
            printf("skipped: kernels %s cannot run here\n", sl_kernels_name(k));
            continue;
        }
        model_run r = model_run_make(m, k, pool, c->n_all);
        check_case(&r, c, folder);
        model_run_free(&r);
    }
    sl_pool_free(pool);
}

typedef struct golden {
    char folder[512];
    sl_json_doc *doc;
    sl_json cases;
    sl_model *m;
} golden;

static golden golden_open(const char *name) {
    const sl_stages all = {.attention = true, .experts = true};
    golden g = {0};
    char path[1024];
    sl_err err = {0};
    snprintf(g.folder, sizeof g.folder, "%s/%s", root, name);
    snprintf(path, sizeof path, "%s/golden.json", g.folder);
    if (sl_json_load(path, 16u << 20, &g.doc, &err) != SL_OK) fail_msg("%s", err.msg);
    if (sl_model_open(g.folder, &all, &g.m, &err) != SL_OK) fail_msg("%s", err.msg);
    if (sl_json_array(sl_json_root(g.doc), "cases", SL_JSON_REQUIRED, &g.cases, &err) != SL_OK)
        fail_msg("%s", err.msg);
    assert_true(sl_json_count(g.cases) > 0);
    return g;
}

static void golden_close(golden *g) {
    sl_json_doc_free(g->doc);
    sl_model_free(g->m);
}

static golden_case *case_open(const golden *g, size_t i) {
    golden_case *c = calloc(1, sizeof *c);
    sl_json one = sl_json_at(g->cases, i);
    const char *file = NULL;
    char path[1024];
    sl_err err = {0};
    if (sl_json_string(one, "name", SL_JSON_REQUIRED, &c->name, &err) != SL_OK ||
        sl_json_string(one, "logits", SL_JSON_REQUIRED, &file, &err) != SL_OK)
        fail_msg("%s", err.msg);
    read_ids(sl_json_get(one, "prompt_ids"), c);
    c->n_prompt = c->n_all;
    read_ids(sl_json_get(one, "greedy_ids"), c);
    assert_int_equal(c->n_all - c->n_prompt, 64);
    snprintf(path, sizeof path, "%s/%s", g->folder, file);
    c->logits = read_npy(path, c->n_all, sl_model_spec_of(g->m)->vocab);
    return c;
}

static void case_close(golden_case *c) {
    free(c->logits);
    free(c);
}

static void goldens_are_reproduced(void **state) {
    (void)state;
    for (size_t f = 0; f < SL_LEN(fixtures); f++) {
        golden g = golden_open(fixtures[f]);
        for (size_t i = 0; i < sl_json_count(g.cases); i++) {
            if (SL_SLOW_BUILD && (f + i) % take_one_in(3)) continue;
            golden_case *c = case_open(&g, i);
            check_cases(g.m, c, fixtures[f]);
            case_close(c);
        }
        golden_close(&g);
    }
}

/* float32 [positions][layers][K, V][heads][dim], of every step-th position from 0 on. */
#define CACHE_STEP 5u

/* A key or value of a page in the order of the checkpoint: pairs that were put in halves are put
 * together again, and the factor of YaRN that lies in the scale of scores is put back. */
static double cached(const sl_model_spec *s, uint32_t layer, bool is_v, const float *head,
                     uint32_t i) {
    if (is_v || i < s->kv_lora) return head[i];
    bool pairs = s->rope_pairs && !s->unrotated[layer];
    double scale = s->yarn.factor > 0 ? s->yarn.attention : 1;
    if (s->kv_lora) return scale * head[i]; /* a latent's key is kept in halves there, too */
    return scale * (pairs ? head[i / 2 + i % 2 * (s->head_dim / 2)] : head[i]);
}

static double cache_deviation(const model_run *r, const model_seq *seq, uint32_t pos,
                              const float *want) {
    const sl_model_spec *s = r->s;
    const uint8_t *page = sl_kv_page(&model_pages.kv, seq->page[pos / SL_KV_PAGE_TOKENS]);
    double worst = 0;
    uint32_t sides = sl_kv_sides(s);
    for (uint32_t part = 0; part < sides * s->n_layers; part++) {
        if (s->linear[part / sides]) continue;
        double d = 0, top = 0;
        for (uint32_t h = 0; h < s->n_kv_heads; h++)
            for (uint32_t i = 0; i < s->head_dim; i++, want++) {
                uint32_t layer = part / sides, is_v = part % sides;
                const float *head =
                    (const float *)(const void *)(page + sl_kv_tile_offset(s, layer, is_v, h)) +
                    (size_t)(pos % SL_KV_PAGE_TOKENS) * s->head_dim;
                d = fmax(d, fabs(cached(s, layer, is_v, head, i) - *want));
                top = fmax(top, fabs((double)*want));
            }
        worst = fmax(worst, d / top);
    }
    return worst;
}

/* The largest difference, over the largest value. */
static double off_by(const float *got, const float *want, size_t n) {
    double d = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        d = fmax(d, fabs((double)got[i] - want[i]));
        top = fmax(top, fabs((double)want[i]));
    }
    return d / top;
}

/* What linear attention keeps after a prompt, block by block: states, and the convolution's last
 * inputs, of which transformers keeps one more. */
static void check_states(const model_run *r, const model_seq *seq, const char *folder) {
    const sl_model_spec *s = r->s;
    const sl_states *st = &model_states.of;
    const uint32_t K = s->delta_k_heads, V = s->delta_v_heads, channels = sl_delta_channels(s);
    const size_t heads = (size_t)V * s->delta_k_dim * s->delta_v_dim;
    const size_t window = (size_t)(s->delta_taps - 1) * channels;
    char path[1024], shape[96];
    snprintf(path, sizeof path, "%s/state.npy", folder);
    snprintf(shape, sizeof shape, "(%u, %u, %u, %u)", s->n_linear, V, s->delta_k_dim,
             s->delta_v_dim);
    float *state = read_array(path, shape, s->n_linear * heads);
    snprintf(path, sizeof path, "%s/conv.npy", folder);
    snprintf(shape, sizeof shape, "(%u, %u, %u)", s->n_linear, channels, s->delta_taps);
    float *conv = read_array(path, shape, (size_t)s->n_linear * channels * s->delta_taps);
    float *mine = malloc(window * sizeof *mine), *theirs = malloc(window * sizeof *theirs);
    const uint32_t place = 2 * seq->number + model_states.version[seq->number];
    for (uint32_t b = 0; b < s->n_linear; b++) {
        const float *at = st->base + place * st->place + b * (window + heads);
        for (uint32_t j = 0; j + 1 < s->delta_taps; j++)
            for (uint32_t c = 0; c < channels; c++) {
                mine[j * channels + c] = at[j * channels + c];
                theirs[j * channels + c] = conv[((size_t)b * channels + c) * s->delta_taps + j + 1];
            }
        const double windows = off_by(mine, theirs, window);
        const double states = off_by(at + window, state + b * heads, heads);
        printf("linear block %u of %u key heads: states deviate by %.2e, windows by %.2e\n", b, K,
               states, windows);
        assert_true(states <= BAR && windows <= BAR);
    }
    free(state), free(conv), free(mine), free(theirs);
}

/* After a prompt the pages hold what the cache of transformers holds; cut into steps, the same
 * bits.
 */
static void pages_hold_what_transformers_caches(void **state) {
    (void)state;
    for (size_t f = 0; f < SL_LEN(fixtures); f++) {
        golden g = golden_open(fixtures[f]);
        golden_case *c = NULL;
        for (size_t i = 0; !c || strcmp(c->name, "passage") != 0; i++) {
            assert_true(i < sl_json_count(g.cases));
            if (c) case_close(c);
            c = case_open(&g, i);
        }
        model_run r = model_run_make(g.m, sl_kernels_select(NULL), NULL, c->n_prompt);
        uint32_t sides = sl_kv_sides(r.s);
        uint32_t layers = sl_kv_blocks(r.s, 0, r.s->n_layers);
        uint32_t width = layers * sides * r.s->n_kv_heads * r.s->head_dim;
        uint32_t kept = (c->n_prompt + CACHE_STEP - 1) / CACHE_STEP;
        char path[1024], shape[96];
        snprintf(path, sizeof path, "%s/cache.npy", g.folder);
        snprintf(shape, sizeof shape, "(%u, %u, %u, %u, %u)", kept, layers, sides, r.s->n_kv_heads,
                 r.s->head_dim);
        float *want = read_array(path, shape, (size_t)kept * width);
        model_seq whole = model_seq_make(r.s, c->n_prompt), cut = model_seq_make(r.s, c->n_prompt);
        float *logits = malloc((size_t)c->n_prompt * r.s->vocab * sizeof *logits);
        model_run_prefill(&r, &whole, c->ids, 0, c->n_prompt, c->n_prompt, logits);
        model_run_prefill(&r, &cut, c->ids, 0, c->n_prompt, 7, logits);
        for (uint32_t i = 0; i < whole.n_pages; i++)
            assert_memory_equal(sl_kv_page(&model_pages.kv, whole.page[i]),
                                sl_kv_page(&model_pages.kv, cut.page[i]), sl_kv_page_bytes(r.s));
        double worst = 0;
        for (uint32_t i = 0; i < kept; i++)
            worst =
                fmax(worst, cache_deviation(&r, &whole, i * CACHE_STEP, want + (size_t)i * width));
        if (r.s->n_linear) check_states(&r, &whole, g.folder);
        printf("%s cache: deviation %.2e\n", fixtures[f], worst);
        assert_true(worst <= BAR);
        free(want), free(logits);
        model_seq_free(&whole);
        model_seq_free(&cut);
        model_run_free(&r);
        case_close(c);
        golden_close(&g);
    }
}

/* How many greedy ids agree with the case before the first that does not. */
static uint32_t greedy_agreement(const sl_model *m, const golden_case *c) {
    const sl_sampling greedy = {.top_p = 1};
    model_run r = model_run_make(m, sl_kernels_select(NULL), NULL, c->n_all);
    model_seq seq = model_seq_make(r.s, c->n_all);
    float *logits = malloc((size_t)c->n_all * r.s->vocab * sizeof *logits);
    model_run_prefill(&r, &seq, c->ids, 0, c->n_all, c->n_all, logits);
    uint32_t i = c->n_prompt;
    while (i < c->n_all && sl_sample(&greedy, logits + (size_t)(i - 1) * r.s->vocab, r.s->vocab, i,
                                     NULL, &r.scratch) == c->ids[i])
        i++;
    free(logits);
    model_seq_free(&seq);
    model_run_free(&r);
    return i - c->n_prompt;
}

/* The test of the test: a wrong expert shows in the ids. */
static void two_exchanged_experts_change_the_ids(void **state) {
    (void)state;
    for (size_t f = 0; f < SL_LEN(fixtures); f++) {
        golden g = golden_open(fixtures[f]);
        const sl_model_spec *s = sl_model_spec_of(g.m);
        sl_json swap = sl_json_get(sl_json_root(g.doc), "swap_test");
        sl_json pair = sl_json_get(swap, "experts");
        uint64_t layer = 0, a = 0, b = 0, within = 0;
        uint32_t changed = 0;
        assert_true(sl_json_as_u64(sl_json_get(swap, "within"), &within) && within <= 32);
        assert_true(sl_json_as_u64(sl_json_get(swap, "layer"), &layer) && layer < s->n_layers);
        assert_true(sl_json_as_u64(sl_json_at(pair, 0), &a) && a < s->n_experts);
        assert_true(sl_json_as_u64(sl_json_at(pair, 1), &b) && b < s->n_experts);
        sl_expert_weights *e = g.m->expert + (size_t)s->moe_index[layer] * s->n_experts,
                          keep = e[a];
        e[a] = e[b];
        e[b] = keep;
        for (size_t i = 0; i < sl_json_count(g.cases); i++) {
            golden_case *c = case_open(&g, i);
            uint32_t same = greedy_agreement(g.m, c);
            uint64_t want = UINT64_MAX; /* null in the fixture: this case does not change */
            sl_json first = sl_json_get(sl_json_get(swap, "first_difference"), c->name);
            bool changes = sl_json_as_u64(first, &want);
            assert_true(changes ? same == want && same < within : same >= within);
            changed += changes;
            case_close(c);
        }
        assert_true(changed > 0);
        golden_close(&g);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goldens_are_reproduced),
        cmocka_unit_test(pages_hold_what_transformers_caches),
        cmocka_unit_test(two_exchanged_experts_change_the_ids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
