/* A pipeline is a device: of every family's fixture, two ranks and more, each with some of the
 * blocks, give the bits of one device, stage by stage as rows travel and with whole blocks inside;
 * with several lanes in flight; pages that one wrote, others go on from. How blocks are cut. */
#include "device_run.h"
#include "sanitized.h"

#include "spec/pipeline.h"

#define LANES 3u

static uint32_t heard; /* rows whose experts came to be known */

static void hears(void *ctx, uint32_t layer, uint32_t rows, const uint32_t *expert) {
    const sl_device *const *d = ctx;
    const sl_model_spec *s = (*d)->spec;
    assert_int_equal(s->ffn[layer], SL_FFN_MOE);
    for (uint32_t i = 0; i < rows * s->top_k; i++) assert_true(expert[i] < s->n_experts);
    heard += rows;
}

static sl_device *piped; /* of `hears` */
static uint32_t tp = 1;  /* ranks of the gang that each rank is */

static sl_device *open_pipeline(const char *folder, uint32_t ranks, sl_rank_kind kind,
                                sl_activations activations) {
    sl_device_opts o = options_of(folder, tp, kind);
    o.pipeline = ranks;
    o.activations = activations;
    o.threads = ranks;
    o.routed = hears;
    o.ctx = &piped;
    return piped = open_device(&o);
}

/* ---- whole steps at once ---- */

/* Rows of one lane's step, which differ from lane to lane and have pages of their own. */
static void fill(run *r, uint32_t lane, uint32_t step) {
    static const uint32_t page[LANES][2] = {{0, 1}, {2, 3}, {4, 5}};
    uint64_t rng = 11 + lane * 100 + step;
    for (uint32_t i = 0; i < ROWS / 2; i++) {
        r->pages[i] = page[lane];
        r->pos[i] = step * (ROWS / 2) + i;
        r->id[i] = (uint32_t)sl_rng_below(&rng, r->s->vocab);
    }
}

static void submit(run *r, sl_stage_op op, uint32_t layer, uint32_t queue) {
    sl_stage_call c = call_of(r, op, layer);
    c.rows.n = ROWS / 2;
    c.queue = queue;
    sl_device_submit(r->d, &c);
}

static void submit_head(run *r, uint32_t queue) {
    static const uint32_t row[] = {ROWS / 2 - 1, 0, 3};
    sl_stage_call c = call_of(r, SL_OP_HEAD, r->s->n_layers);
    c.queue = queue;
    c.rows.n = ROWS / 2;
    c.head = (sl_stage_head){.n = SL_LEN(row),
                             .count = r->s->vocab,
                             .row = row,
                             .h = mem(r->normed, (size_t)ROWS * r->s->d_model),
                             .logits = r->logits};
    sl_device_submit(r->d, &c);
}

static void submit_step(run *r, uint32_t queue) {
    submit(r, SL_OP_EMBED, 0, queue);
    for (uint32_t l = 0; l < r->s->n_layers; l++) {
        submit(r, SL_OP_ATTEND, l, queue);
        submit(r, r->s->ffn[l] == SL_FFN_MOE ? SL_OP_INSIDE : SL_OP_DENSE, l, queue);
    }
    submit_head(r, queue);
}

/* Another set of rows on the same device. */
static void end_rows(run *r) {
    for (uint32_t i = 0; i < SL_LEN(r->mem); i++) sl_device_give(r->d, r->mem[i]);
    free(r->logits), free(r->expert), free(r->gate);
}

static void whole_steps(const char *name, const char *path, uint32_t ranks, sl_rank_kind kind,
                        sl_activations how) {
    const servers others = serve_ranks(path, kind == SL_RANKS_MACHINES ? ranks : 1);
    ranks_at = others.at;
    sl_device_opts o = options_of(path, 1, SL_RANKS_THREADS);
    o.activations = how;
    o.inside = true;
    sl_device *one = open_device(&o), *pipe = open_pipeline(path, ranks, kind, how);
    assert_int_equal(pipe->inside, !pipe->spec->dense_branch && tp == 1);
    run alone[LANES], lane[LANES];
    for (uint32_t i = 0; i < LANES; i++) alone[i] = start(one), lane[i] = start(pipe);
    for (uint32_t step = 0; pipe->inside && step < STEPS; step++) {
        heard = 0;
        for (uint32_t i = 0; i < LANES; i++) {
            fill(&alone[i], i, step), fill(&lane[i], i, step);
            submit_step(&alone[i], i), submit_step(&lane[i], i);
        }
        sl_device_drain(pipe);
        assert_int_equal(pipe->in_flight, 0);
        assert_int_equal(heard, LANES * (ROWS / 2) * pipe->spec->n_moe);
        for (uint32_t i = 0; i < LANES; i++) {
            assert_true(pipe->done[i] == pipe->given[i]);
            if (memcmp(alone[i].logits, lane[i].logits, 3 * (size_t)one->spec->vocab * 4) != 0)
                fail_msg("%s, %u ranks, lane %u, step %u: other logits", name, ranks, i, step);
        }
    }
    for (uint32_t i = 0; i < LANES; i++) end_rows(&alone[i]), end_rows(&lane[i]);
    sl_device_close(one);
    sl_device_close(pipe);
    served(&others);
}

/* ---- stage by stage ---- */

static void check(const char *name, const char *path, uint32_t ranks, sl_rank_kind kind,
                  sl_activations how) {
    const servers others = serve_ranks(path, kind == SL_RANKS_MACHINES ? ranks : 1);
    ranks_at = others.at;
    run one = start(open_gang(path, 1, SL_RANKS_THREADS, false, how, 1));
    run moved = start(open_gang(path, 1, SL_RANKS_THREADS, false, how, 1));
    run pipe = start(open_pipeline(path, ranks, kind, how));
    for (uint32_t step = 0; step < STEPS; step++) {
        run_step(&one, step);
        if (step == 1) carry_pages(&pipe, &moved);
        run_step(&pipe, step);
        same_bits(&one, &pipe, name, ranks);
    }
    run_step(&moved, 1);
    same_bits(&one, &moved, name, 1);
    end(&pipe);
    served(&others);
    end(&moved);
    end(&one);
}

static void pipelines_give_the_same(void **state) {
    (void)state;
    DIR *dir = opendir(GOLDEN);
    uint32_t n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL; n++) {
        char path[512];
        sl_model_spec m;
        sl_err err;
        if (!is_fixture(e->d_name, path, sizeof path)) continue;
        assert_int_equal(sl_model_read_spec(path, &m, NULL, &err), SL_OK);
        const sl_activations how = n % 2 == 0   ? SL_ACTIVATIONS_INT8
                                   : n % 4 == 1 ? SL_ACTIVATIONS_BF16
                                                : SL_ACTIVATIONS_BF16_PARTS;
        for (uint32_t ranks = 2; ranks <= SL_MIN(m.n_layers, 4u); ranks++) {
            for (uint32_t kind = 0; kind < 2; kind++) {
                if ((kind + ranks + n / 2) % take_one_in(2)) continue; /* of a sample, in turn */
                if (SL_SLOW_BUILD && (ranks + n) % take_one_in(2)) continue;
                const sl_rank_kind k = kind ? SL_RANKS_MACHINES : SL_RANKS_THREADS;
                check(e->d_name, path, ranks, k, SL_ACTIVATIONS_F32);
                whole_steps(e->d_name, path, ranks, k, how);
            }
            tp = n % 3 ? 2 : 4;
            if (ranks == 2 && n % take_one_in(2) == 0)
                check(e->d_name, path, ranks, SL_RANKS_THREADS, how);
            tp = 1;
        }
    }
    closedir(dir);
    assert_true(n >= 12);
}

/* ---- which blocks ---- */

static sl_model_spec model_of(uint32_t layers, uint32_t vocab) {
    sl_model_spec m = {.n_layers = layers,
                       .d_model = 64,
                       .n_heads = 4,
                       .n_kv_heads = 2,
                       .head_dim = 16,
                       .vocab = vocab,
                       .d_ff_dense = 64,
                       .d_ff_expert = 32,
                       .n_experts = 8,
                       .top_k = 2};
    for (uint32_t i = 0; i < layers; i++) m.ffn[i] = i < 2 ? SL_FFN_DENSE : SL_FFN_MOE;
    sl_model_number_blocks(&m);
    return m;
}

/* Every block is of one rank, every rank has one, and a large vocabulary takes blocks from rank 0.
 */
static void blocks_are_cut(void **state) {
    (void)state;
    for (uint32_t layers = 1; layers <= 40; layers++) {
        const sl_model_spec m = model_of(layers, 128);
        for (uint32_t ranks = 1; ranks <= SL_MIN(layers, SL_MAX_RANKS); ranks++) {
            uint32_t at = 0;
            for (uint32_t r = 0; r < ranks; r++) {
                const sl_extent e = sl_pipeline_blocks(&m, (sl_rank){r, ranks}, layers % 2);
                assert_int_equal(e.first, at);
                assert_true(e.n > 0);
                at += e.n;
            }
            assert_int_equal(at, layers);
        }
    }
    const sl_model_spec plain = model_of(16, 16), wide = model_of(16, 16384);
    const sl_rank first = {0, 2};
    assert_true(sl_pipeline_blocks(&wide, first, false).n <
                sl_pipeline_blocks(&plain, first, false).n);
    /* Two of them are dense, and small. */
    assert_int_equal(sl_pipeline_blocks(&plain, first, false).n, 9);
    const sl_model_spec more = model_of(17, 16);
    assert_int_equal(sl_pipeline_blocks(&more, first, false).n, 9);
    assert_int_equal(sl_pipeline_blocks(&more, first, true).n, 10); /* 7, and one besides */
}

static void more_ranks_than_blocks_are_refused(void **state) {
    (void)state;
    sl_device_opts o = options_of(GOLDEN "qwen3moe-tiny", 1, SL_RANKS_THREADS);
    sl_device *d = NULL;
    sl_err err;
    o.pipeline = 8;
    assert_int_equal(sl_device_open(&o, &d, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "has 4 blocks"));
    o.pipeline = 2;
    o.rank_kind = SL_RANKS_PROCESSES;
    assert_int_equal(sl_device_open(&o, &d, &err), SL_ERR_UNSUPPORTED);
}

/* Experts that come later, at ranks that have their blocks. */
static void host_later(sl_rank_kind kind) {
    const char *const path = GOLDEN "qwen3moe-tiny";
    sl_hosting left;
    sl_err err;
    const servers others = serve_ranks(path, kind == SL_RANKS_MACHINES ? 2 : 1);
    ranks_at = others.at;
    run one = start(open_gang(path, 1, SL_RANKS_THREADS, false, SL_ACTIVATIONS_F32, 1));
    uint8_t *hosted = calloc((size_t)one.s->n_moe, one.s->n_experts);
    assert_non_null(hosted);
    for (uint32_t i = 0; i < one.s->n_moe * one.s->n_experts; i += 3) hosted[i] = 1;
    sl_device_opts o = options_of(path, 1, kind);
    o.pipeline = 2;
    o.hosts.hosted = hosted;
    run pipe = start(open_device(&o));
    memset(hosted, 1, (size_t)one.s->n_moe * one.s->n_experts);
    do assert_int_equal(sl_device_host(pipe.d, hosted, PAIRS, true, &left, &err), SL_OK);
    while (left != SL_HOSTING_DONE);
    run_step(&one, 0);
    run_step(&pipe, 0);
    same_bits(&one, &pipe, "hosted later", 2);
    end(&pipe);
    served(&others);
    end(&one);
    free(hosted);
}

static void experts_come_later(void **state) {
    (void)state;
    host_later(SL_RANKS_THREADS);
    host_later(SL_RANKS_MACHINES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_cut),
        cmocka_unit_test(more_ranks_than_blocks_are_refused),
        cmocka_unit_test(pipelines_give_the_same),
        cmocka_unit_test(experts_come_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
