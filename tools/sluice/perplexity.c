/* Perplexity of a text as llama-perplexity has it: the text's tokens in chunks of PPL_CHUNK, each
 * on its own; tokens of a chunk's second half count, given all before them in the chunk. */
#include "cmd.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define PPL_CHUNK 512u

typedef struct scorer {
    const uint32_t *ids; /* of the chunk */
    uint32_t n, vocab;
    double nll;
    uint64_t counted;
} scorer;

static double nll_of(const float *logits, uint32_t vocab, uint32_t id) {
    float top = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < vocab; i++) top = logits[i] > top ? logits[i] : top;
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)(logits[i] - top));
    return log(sum) - (double)(logits[id] - top);
}

static void on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits) {
    scorer *s = ctx;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = first + i;
        if (at < s->n / 2 || at + 1 >= s->n) continue;
        s->nll += nll_of(logits + i * s->vocab, s->vocab, s->ids[at + 1]);
        s->counted++;
    }
}

static sl_status read_text(const char *path, char **out, size_t *out_len, sl_err *err) {
    char *text = NULL;
    long len = 0;
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0 || (len = ftell(f)) < 0 || fseek(f, 0, SEEK_SET) != 0) {
        int why = errno;
        if (f) fclose(f);
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(why));
    }
    text = sl_alloc((size_t)len + 1, 1);
    bool ok = text && fread(text, 1, (size_t)len, f) == (size_t)len;
    fclose(f);
    if (!ok) {
        sl_free(text);
        return sl_fail(err, text ? SL_ERR_IO : SL_ERR_NOMEM, "%s: cannot read %ld bytes", path,
                       len);
    }
    *out = text;
    *out_len = (size_t)len;
    return SL_OK;
}

static sl_status encode_file(const sl_options *o, sl_ids *ids, sl_err *err) {
    char *text = NULL;
    size_t len = 0;
    sl_tokenizer *tok = NULL;
    sl_status st = read_text(o->perplexity, &text, &len, err);
    if (st == SL_OK) st = sl_tokenizer_open(o->arg[0], &tok, err);
    if (st == SL_OK)
        st = sl_tokenizer_encode(tok, (sl_span){(const uint8_t *)text, len}, false, true, ids, err);
    if (st == SL_OK && ids->len < PPL_CHUNK)
        st = sl_fail(err, SL_ERR_ARG, "%s: %zu tokens, a chunk has %u", o->perplexity, ids->len,
                     PPL_CHUNK);
    sl_tokenizer_free(tok);
    sl_free(text);
    return st;
}

/* A text whose tokens begin with one for its beginning has it before each chunk. */
static void begin_chunk(const sl_ids *all, const uint32_t *from, int64_t bos, uint32_t *chunk) {
    memcpy(chunk, from, PPL_CHUNK * sizeof *chunk);
    if (bos >= 0 && all->data[0] == (uint32_t)bos) chunk[0] = (uint32_t)bos;
}

sl_status sl_perplexity_run(const sl_options *o, const sl_deployment *d, sl_err *err) {
    sl_ids ids = {0};
    sl_engine *e = NULL;
    uint32_t chunk[PPL_CHUNK];
    scorer s = {.ids = chunk, .n = PPL_CHUNK, .vocab = d->spec.vocab};
    if (d->opts.plan.context < PPL_CHUNK)
        return sl_fail(err, SL_ERR_ARG, "--perplexity: a chunk has %u tokens, the context %u",
                       PPL_CHUNK, d->opts.plan.context);
    sl_status st = encode_file(o, &ids, err);
    if (st == SL_OK) st = sl_deploy_start(o, d, &e, err);
    size_t n = ids.len / PPL_CHUNK;
    for (size_t c = 0; st == SL_OK && c < n; c++) {
        sl_generation g = {0};
        begin_chunk(&ids, ids.data + c * PPL_CHUNK, d->spec.bos, chunk);
        const sl_generate_opts go = {.prompt = chunk,
                                     .n_prompt = PPL_CHUNK,
                                     .max_tokens = 1,
                                     .sampling = {.top_p = 1},
                                     .ignore_eos = true,
                                     .on_logits = on_logits,
                                     .ctx = &s};
        st = sl_generate(e, &go, &g, 1, err);
        sl_generation_free(&g);
    }
    st = sl_generate_end(e, st, err);
    double ppl = s.counted ? exp(s.nll / (double)s.counted) : 0;
    if (st == SL_OK && o->json)
        printf("{\"perplexity\": %.6f, \"chunks\": %zu, \"tokens\": %llu, \"nll\": %.6f}\n", ppl, n,
               (unsigned long long)s.counted, s.nll);
    else if (st == SL_OK)
        printf("perplexity %.4f over %llu tokens in %zu chunks\n", ppl,
               (unsigned long long)s.counted, n);
    sl_ids_free(&ids);
    return st;
}
