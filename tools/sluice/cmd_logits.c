/* sluice logits: logits of given ids as text or .npy. */
#include "cmd.h"

#include "base/mem.h"
#include "base/output.h"

#include <string.h>

typedef struct collector {
    float *data; /* [positions][vocab] */
    uint64_t positions, seen;
    uint32_t vocab;
} collector;

static void collect(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    collector *c = ctx;
    if (first > c->positions || n > c->positions - first) return; /* the token sampled at the end */
    memcpy(c->data + first * c->vocab, logits, (size_t)n * c->vocab * sizeof *logits);
    c->seen += n;
}

/* NPY 1.0: magic, version, header length, a Python dict padded to 64 bytes, then the data. */
static sl_status write_npy(const char *path, const collector *c, sl_err *err) {
    sl_output out;
    sl_status st = sl_output_open(path, &out, err);
    if (st != SL_OK) return st;
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10); /* 118 bytes of header text follow */
    int n =
        snprintf(head + 10, 117, "{'descr': '<f4', 'fortran_order': False, 'shape': (%llu, %u), }",
                 (unsigned long long)c->positions, c->vocab);
    head[10 + n] = ' ';
    head[127] = '\n';
    size_t count = (size_t)c->positions * c->vocab;
    fwrite(head, 1, sizeof head, out.f);
    fwrite(c->data, sizeof(float), count, out.f);
    return sl_output_close(&out, err);
}

static sl_status run(const sl_options *o, const sl_deployment *d, const sl_ids *ids, sl_err *err) {
    sl_engine *e = NULL;
    sl_generation g = {0};
    collector c = {.positions = ids->len, .vocab = d->spec.vocab};
    c.data = sl_alloc(ids->len, (size_t)c.vocab * sizeof *c.data);
    if (!c.data) return sl_fail(err, SL_ERR_NOMEM, "logits of %zu positions", ids->len);
    sl_status st = sl_deploy_start(o, d, &e, err);
    const sl_generate_opts go = {.prompt = ids->data,
                                 .n_prompt = (uint32_t)ids->len,
                                 .max_tokens = 1,
                                 .sampling = {.top_p = 1},
                                 .ignore_eos = true,
                                 .on_logits = collect,
                                 .ctx = &c};
    if (st == SL_OK) st = sl_generate(e, &go, &g, 1, err);
    st = sl_generate_end(e, st, err);
    if (st == SL_OK && c.seen != c.positions)
        st = sl_fail(err, SL_ERR_INTERNAL, "logits of %llu positions came, not %llu",
                     (unsigned long long)c.seen, (unsigned long long)c.positions);
    if (st == SL_OK) st = write_npy(o->npy, &c, err);
    if (st == SL_OK && o->json) {
        printf("{\"positions\": %llu, \"vocab\": %u, \"file\": ", (unsigned long long)c.positions,
               c.vocab);
        sl_print_json_string(stdout, o->npy, strlen(o->npy));
        printf("}\n");
    }
    sl_generation_free(&g);
    sl_free(c.data);
    return st;
}

int cmd_logits(const sl_options *o) {
    sl_err err = {0};
    sl_deployment d = {0};
    sl_ids ids = {0};
    sl_deploy_setup_process(o);
    bool text = o->perplexity[0] != '\0';
    sl_status st = SL_OK;
    if (!text && !o->npy[0]) st = sl_fail(&err, SL_ERR_ARG, "--npy FILE is missing");
    if (text && (o->npy[0] || o->ids[0]))
        st = sl_fail(&err, SL_ERR_ARG, "--perplexity goes without --ids and --npy");
    if (st == SL_OK) st = sl_deploy_prepare(o, strcmp(o->transport, "auto") != 0, 1, &d, &err);
    if (st == SL_OK && sl_device_is_modelled(&d.opts.plan.device))
        st = sl_fail(&err, SL_ERR_ARG, "--device: an emulated device computes no logits");
    if (st == SL_OK && text) st = sl_perplexity_run(o, &d, &err);
    if (st == SL_OK && !text) st = sl_ids_parse(o->ids, d.spec.vocab, &ids, &err);
    if (st == SL_OK && !text) st = run(o, &d, &ids, &err);
    sl_ids_free(&ids);
    sl_deploy_free(&d);
    return st == SL_OK ? 0 : sl_cmd_fail("logits", &err);
}
