/* Tensor-parallel ranks by sl_arch_tensor_axis: of every family's fixture each rank gets its parts,
 * which are those that a model with its share of heads, widths and vocabulary has. Put together
 * they are the whole, and what the ranks compute adds up to what the whole computes. */
#include "base/rng.h"
#include "format/family.h"
#include "model/convert.h"
#include "model_run.h"
#include "model/model_int.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>
#include <cmocka.h>

#define GOLDEN    SL_SOURCE_DIR "/tests/golden/"
#define ROWS      9u
#define MAX_RANKS 4u
#define APART     2e-6 /* of the largest value: sums of ranks round in another order */

static const char *const fixtures[] = {"arctic-tiny",     "dbrx-tiny",     "deepseekv2-tiny",
                                       "deepseekv3-tiny", "glm4moe-tiny",  "gptoss-tiny",
                                       "llama4-tiny",     "mixtral-tiny",  "olmoe-tiny",
                                       "qwen2moe-tiny",   "qwen3moe-tiny", "qwen3moe-sparse"};

/* What of a model t ranks share, and what each then has whole. */
typedef struct gang {
    const sl_model *whole;
    uint32_t t;
    bool heads, dense, expert, shared;
    sl_model *rank[MAX_RANKS];
} gang;

static bool divides(uint32_t t, uint32_t n) {
    return n > 0 && n % t == 0;
}

static gang gang_of(const sl_model *whole, uint32_t t) {
    const sl_model_spec *s = &whole->spec;
    return (gang){.whole = whole,
                  .t = t,
                  .heads = divides(t, s->n_heads) && (s->kv_lora || divides(t, s->n_kv_heads)),
                  .dense = divides(t, s->d_ff_dense),
                  .expert = divides(t, s->d_ff_expert),
                  .shared = divides(t, s->d_ff_shared)};
}

static uint32_t vocab_begin(const gang *g, uint32_t r) {
    return (uint32_t)((uint64_t)g->whole->spec.vocab * r / g->t);
}

/* The share of rank r. */
static sl_model_spec rank_spec(const gang *g, uint32_t r) {
    sl_model_spec s = g->whole->spec;
    if (g->heads) s.n_heads /= g->t;
    if (g->heads && !s.kv_lora) s.n_kv_heads /= g->t;
    if (g->dense) s.d_ff_dense /= g->t;
    if (g->expert) s.d_ff_expert /= g->t;
    if (g->shared) s.d_ff_shared /= g->t;
    s.vocab = vocab_begin(g, r + 1) - vocab_begin(g, r);
    return s;
}

static void *own(sl_model *m, size_t n, size_t size) {
    void *p = sl_model_own(m, n * size);
    assert_non_null(p);
    return p;
}

/* Where a part of `n` of the whole's `all` begins: 0 where the ranks do not share it. */
static uint32_t part_begin(const gang *g, uint32_t r, sl_arch_dim dim, uint32_t n, uint32_t all) {
    if (dim == SL_DIM_VOCAB) return vocab_begin(g, r);
    return n == all ? 0 : n * r;
}

/* A matrix of rank r, widened: rows and columns that its spec asks for, by the tensor's axis. */
static sl_mat part_of(const gang *g, uint32_t r, const sl_arch_tensor *t, const sl_mat *whole) {
    const sl_exec ex = {.k = sl_kernels_base()};
    sl_model *m = g->rank[r];
    bool vector = t->k == SL_DIM_NONE;
    uint32_t n = (uint32_t)sl_arch_dim_value(&m->spec, t->n);
    uint32_t k = (uint32_t)sl_arch_dim_value(&m->spec, t->k);
    uint32_t all_n = vector ? whole->k : whole->n, all_k = vector ? 1 : whole->k;
    sl_arch_axis axis = sl_arch_tensor_axis(t);
    assert_true(n == all_n || axis == SL_AXIS_ROWS);
    assert_true(k == all_k || axis == SL_AXIS_COLUMNS);
    uint32_t row = part_begin(g, r, t->n, n, all_n), column = part_begin(g, r, t->k, k, all_k);
    float *to = own(m, (size_t)n * k, sizeof *to), *wide = malloc(whole->k * sizeof *wide);
    for (uint32_t i = 0; i < (vector ? 1 : n); i++) {
        sl_widen_row(&ex, whole, vector ? 0 : row + i, wide);
        memcpy(to + (size_t)i * k, wide + (vector ? row : column), (vector ? n : k) * sizeof *to);
    }
    free(wide);
    return (sl_mat){.data = to, .n = vector ? 1 : n, .k = vector ? n : k, .dtype = SL_F32};
}

/* Behind a product whose ranks are summed: one of them adds it. */
static bool added_once(sl_arch_role role) {
    return role == SL_ROLE_O_BIAS || role == SL_ROLE_EXPERT_DOWN_BIAS;
}

typedef void (*site_fn)(gang *g, const sl_arch_tensor *t, uint32_t layer, uint32_t expert);

static void each_tensor(gang *g, site_fn fn) {
    const sl_model_spec *s = &g->whole->spec;
    for (size_t i = 0; i < g->whole->arch->n_tensors; i++) {
        const sl_arch_tensor *t = &g->whole->arch->tensor[i];
        uint32_t layers = t->scope == SL_SCOPE_MODEL ? 1 : s->n_layers;
        uint32_t experts = t->scope == SL_SCOPE_EXPERT ? s->n_experts : 1;
        if (!sl_arch_tensor_used(s, t)) continue;
        for (uint32_t l = 0; l < layers; l++)
            for (uint32_t e = 0; e < experts; e++) {
                if (t->scope == SL_SCOPE_EXPERT && s->ffn[l] != SL_FFN_MOE) continue;
                if (sl_model_mat(g->whole, t, l, e)->data) fn(g, t, l, e);
            }
    }
}

static void bind_part(gang *g, const sl_arch_tensor *t, uint32_t layer, uint32_t expert) {
    const sl_mat *whole = sl_model_mat(g->whole, t, layer, expert);
    for (uint32_t r = 0; r < g->t; r++) {
        if (r > 0 && added_once(t->role)) continue;
        *(sl_mat *)sl_model_mat(g->rank[r], t, layer, expert) = part_of(g, r, t, whole);
    }
}

static uint32_t covered[SL_ROLE_COUNT]; /* tensors of a role that were in parts */

/* The parts, one after the other, are the whole, to the bit. */
static void check_together(gang *g, const sl_arch_tensor *t, uint32_t layer, uint32_t expert) {
    const sl_exec ex = {.k = sl_kernels_base()};
    const sl_mat *whole = sl_model_mat(g->whole, t, layer, expert);
    float *want = malloc(whole->k * sizeof *want);
    sl_arch_axis axis = sl_arch_tensor_axis(t);
    bool across = axis == SL_AXIS_COLUMNS || (axis == SL_AXIS_ROWS && t->k == SL_DIM_NONE);
    const sl_mat *first = sl_model_mat(g->rank[0], t, layer, expert);
    bool parts = first->n != whole->n || first->k != whole->k;
    uint32_t n = 0;
    for (uint32_t row = 0, r = 0; row < whole->n; row++) {
        sl_widen_row(&ex, whole, row, want);
        for (uint32_t at = 0, q = 0; parts && across && at < whole->k; q++) {
            const sl_mat *p = sl_model_mat(g->rank[q], t, layer, expert);
            assert_true(q < g->t && p->n == whole->n && at + p->k <= whole->k);
            assert_memory_equal((const float *)p->data + (size_t)row * p->k, want + at,
                                p->k * sizeof *want);
            at += p->k;
        }
        if (parts && across) continue;
        const sl_mat *p = sl_model_mat(g->rank[r], t, layer, expert);
        assert_true(r < g->t && p->k == whole->k);
        assert_memory_equal((const float *)p->data + (size_t)n * p->k, want, p->k * sizeof *want);
        if (++n == p->n) r++, n = 0;
    }
    covered[t->role] += parts;
    free(want);
}

static sl_model *rank_make(const gang *g, uint32_t r) {
    const sl_model *w = g->whole;
    sl_model *m = sl_alloc(1, sizeof *m);
    m->spec = m->stored = rank_spec(g, r);
    m->held = (sl_extent){0, m->spec.n_layers};
    m->arch = w->arch;
    m->folder = sl_strdup("a rank");
    m->block = sl_alloc(m->spec.n_layers, sizeof *m->block);
    m->expert = sl_alloc((size_t)m->spec.n_moe * m->spec.n_experts, sizeof *m->expert);
    m->made.rope_freq = sl_alloc(m->spec.rope_dim / 2, sizeof *m->made.rope_freq);
    assert_true(m->folder && m->block && m->expert && m->made.rope_freq);
    memcpy(m->made.rope_freq, w->made.rope_freq, m->spec.rope_dim / 2 * sizeof *m->made.rope_freq);
    if (!w->made.ones) return m;
    m->made.ones = sl_alloc(m->spec.head_dim, sizeof *m->made.ones);
    memcpy(m->made.ones, w->made.ones, m->spec.head_dim * sizeof *m->made.ones);
    return m;
}

/* Sinks of all blocks, as a model widens them. */
static void fill_sinks(sl_model *m) {
    uint32_t n = m->spec.n_heads;
    if (!m->block[0].mat[SL_ROLE_SINKS].data) return;
    m->made.sinks = sl_alloc((size_t)m->spec.n_layers * n, sizeof *m->made.sinks);
    for (uint32_t l = 0; l < m->spec.n_layers; l++)
        memcpy(m->made.sinks + (size_t)l * n, m->block[l].mat[SL_ROLE_SINKS].data,
               n * sizeof *m->made.sinks);
}

static void gang_bind(gang *g) {
    sl_err err = {0};
    for (uint32_t r = 0; r < g->t; r++) g->rank[r] = rank_make(g, r);
    each_tensor(g, bind_part);
    for (uint32_t r = 0; r < g->t; r++) {
        sl_model *m = g->rank[r];
        if (m->spec.tied_head) m->whole.mat[SL_ROLE_LM_HEAD] = m->whole.mat[SL_ROLE_EMBED];
        fill_sinks(m);
        m->tables = m->made;
        if (sl_mla_bind(m, &err) != SL_OK) fail_msg("%s", err.msg);
    }
}

/* ---- what ranks compute ---- */

static float *rows_new(size_t width) {
    return calloc(ROWS * width, sizeof(float));
}

static void draw(float *x, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) x[i] = (float)((double)sl_rng_below(&seed, 2001) / 1000 - 1);
}

/* What a model's block adds to rows x, or (shared experts) makes of them. */
typedef void (*stage_fn)(model_run *r, uint32_t layer, const float *x, float *y);

static void less(float *y, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] -= x[i];
}

static void attention(model_run *r, uint32_t layer, const float *x, float *y) {
    static const uint32_t page[1] = {0};
    const uint32_t *pages[ROWS];
    uint32_t pos[ROWS];
    size_t n = (size_t)ROWS * r->s->d_model;
    sl_kv_pool kv = sl_kv_pool_of(r->s, calloc(1, sl_kv_page_bytes(r->s)));
    for (uint32_t i = 0; i < ROWS; i++) pos[i] = i, pages[i] = page;
    const sl_rows rows = {.n = ROWS, .pos = pos, .kv = kv, .pages = pages};
    memcpy(y, x, n * sizeof *y);
    sl_block_attention(r->m, &r->ex, layer, &rows, y, &r->scratch);
    less(y, x, n);
    free(kv.base);
}

static void dense(model_run *r, uint32_t layer, const float *x, float *y) {
    size_t n = (size_t)ROWS * r->s->d_model;
    memcpy(y, x, n * sizeof *y);
    sl_block_dense(r->m, &r->ex, layer, ROWS, y, &r->scratch);
    less(y, x, n);
}

static void shared(model_run *r, uint32_t layer, const float *x, float *y) {
    memcpy(y, x, (size_t)ROWS * r->s->d_model * sizeof *y);
    sl_block_shared(r->m, &r->ex, layer, ROWS, x, y, &r->scratch);
}

/* Row i by expert i. */
static void experts(model_run *r, uint32_t layer, const float *x, float *y) {
    uint32_t expert[ROWS], first[ROWS + 1], n = SL_MIN(ROWS, r->s->n_experts);
    float gate[ROWS];
    for (uint32_t i = 0; i <= n; i++) first[i] = i;
    for (uint32_t i = 0; i < n; i++) expert[i] = i, gate[i] = 0.25f + 0.125f * (float)i;
    const sl_expert_batch b = {.n_groups = n,
                               .expert = expert,
                               .first = first,
                               .row = first,
                               .x = x,
                               .y = y,
                               .gate = gate};
    sl_block_experts(r->m, &r->ex, layer, &b, &r->scratch);
}

static void check_sum(const gang *g, model_run *run, stage_fn stage, const char *what,
                      uint32_t layer) {
    size_t d = g->whole->spec.d_model, n = ROWS * d;
    float *x = rows_new(d), *y = rows_new(d), *want = rows_new(d), *sum = rows_new(d);
    double off = 0, top = 0;
    draw(x, n, 40 + layer);
    stage(&run[g->t], layer, x, want);
    for (uint32_t r = 0; r < g->t; r++) {
        stage(&run[r], layer, x, y);
        for (size_t i = 0; i < n; i++) sum[i] += y[i];
    }
    for (size_t i = 0; i < n; i++) {
        off = fmax(off, fabs((double)sum[i] - want[i]));
        top = fmax(top, fabs((double)want[i]));
    }
    if (!(top > 0 && off <= APART * top))
        fail_msg("%s of block %u by %u ranks: %.2e of %.2e", what, layer, g->t, off, top);
    free(x), free(y), free(want), free(sum);
}

/* Columns of logits, one rank's after the other's, are the whole's to the bit. */
static void check_head(const gang *g, model_run *run) {
    static const uint32_t row[ROWS] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const sl_model_spec *s = &g->whole->spec;
    float *x = rows_new(s->d_model), *want = rows_new(s->vocab), *got = rows_new(s->vocab);
    draw(x, (size_t)ROWS * s->d_model, 90);
    sl_model_head(g->whole, &run[g->t].ex, x, row, ROWS, want, &run[g->t].scratch);
    for (uint32_t r = 0; r < g->t; r++) {
        uint32_t begin = vocab_begin(g, r), n = run[r].s->vocab;
        sl_model_head(g->rank[r], &run[r].ex, x, row, ROWS, got, &run[r].scratch);
        for (uint32_t i = 0; i < ROWS; i++)
            assert_memory_equal(got + (size_t)i * n, want + (size_t)i * s->vocab + begin,
                                n * sizeof *want);
    }
    free(x), free(want), free(got);
}

/* One mean square of all heads' values, which ranks would have to agree on first. */
static bool norm_of_all_heads(const sl_model *m) {
    return m->spec.qk_norm && m->block[0].mat[SL_ROLE_Q_NORM].k > m->spec.head_dim;
}

static void check_sums(const gang *g) {
    const sl_model_spec *s = &g->whole->spec;
    model_run run[MAX_RANKS + 1];
    for (uint32_t r = 0; r <= g->t; r++)
        run[r] = model_run_make(r < g->t ? g->rank[r] : g->whole, sl_kernels_base(), NULL, ROWS);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        bool moe = s->ffn[l] == SL_FFN_MOE;
        if (g->heads && !norm_of_all_heads(g->whole)) check_sum(g, run, attention, "attention", l);
        if (!moe && g->dense) check_sum(g, run, dense, "dense feed-forward", l);
        if (moe && g->expert) check_sum(g, run, experts, "experts", l);
        if (moe && g->shared) check_sum(g, run, shared, "shared expert", l);
    }
    check_head(g, run);
    for (uint32_t r = 0; r <= g->t; r++) model_run_free(&run[r]);
}

static void check_model(const char *name, const char *path, uint32_t t) {
    sl_model *m = model_run_open(path);
    gang g = gang_of(m, t);
    gang_bind(&g);
    each_tensor(&g, check_together);
    check_sums(&g);
    printf("%s by %u ranks:%s%s%s%s%s\n", name, t, g.heads ? " heads" : "", g.dense ? " dense" : "",
           g.expert ? " experts" : "", g.shared ? " shared" : "",
           g.heads && norm_of_all_heads(m) ? " (attention not summed: a norm of all heads)" : "");
    for (uint32_t r = 0; r < t; r++) sl_model_free(g.rank[r]);
    sl_model_free(m);
}

static void ranks_add_up_to_the_whole(void **state) {
    (void)state;
    for (size_t f = 0; f < SL_LEN(fixtures); f++) {
        char path[256];
        snprintf(path, sizeof path, GOLDEN "%s", fixtures[f]);
        check_model(fixtures[f], path, 2);
        check_model(fixtures[f], path, 4);
    }
}

/* GGUF keeps W_UK and W_UV of latents apart. */
static void parts_of_latents(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/sl-axis-%d.gguf", (int)getpid());
    const sl_convert_options o = {.type = SL_F32, .replace = true};
    sl_convert_report report;
    sl_err err = {0};
    if (sl_convert(GOLDEN "deepseekv3-tiny", path, &o, &report, &err) != SL_OK)
        fail_msg("%s", err.msg);
    check_model("deepseekv3-tiny as GGUF", path, 2);
    check_model("deepseekv3-tiny as GGUF", path, 4);
    assert_int_equal(unlink(path), 0);
}

/* Runs last: whatever a family splits was in parts above. */
static void every_axis_is_covered(void **state) {
    (void)state;
    for (size_t i = 0; i < sl_n_families; i++) {
        const sl_family *f = sl_families[i];
        for (size_t j = 0; j < f->arch.n_tensors; j++) {
            const sl_arch_tensor *t = &f->arch.tensor[j];
            if (sl_arch_tensor_axis(t) != SL_AXIS_WHOLE && !covered[t->role])
                fail_msg("%s: role %d was never in parts", f->name, t->role);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_add_up_to_the_whole),
        cmocka_unit_test(parts_of_latents),
        cmocka_unit_test(every_axis_is_covered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
