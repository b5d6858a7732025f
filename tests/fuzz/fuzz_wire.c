/* Every decoder of src/net/wire.h, those of rails and of the handshake's hello. Input: selector, 72
 * header bytes, payload; of KV pages and rails the header's kind selects. What decodes is read to
 * its last byte, so that a view outside the payload is found. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "net/net_int.h"
#include "net/rails.h"
#include "spec/kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void read_all(const void *p, size_t n) {
    const uint8_t *b = p;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += b[i];
    sink += sum;
}

/* Rows widen and narrow to values that widen to the same bits. */
static void rows_there_and_back(sl_wire_format f, const uint8_t *data, uint32_t rows, uint32_t d) {
    size_t n = (size_t)rows * d;
    float *wide = malloc(2 * n * sizeof *wide + 1);
    uint8_t *narrow = malloc(rows * sl_wire_row_bytes(f, d) + 1);
    SL_ASSERT(wide && narrow);
    sl_wire_unpack(f, data, rows, d, wide);
    bool finite = true;
    for (size_t i = 0; i < n; i++) finite = finite && isfinite(wide[i]);
    sl_wire_pack(f, wide, rows, d, narrow);
    sl_wire_unpack(f, narrow, rows, d, wide + n);
    for (size_t i = 0; finite && i < n; i++) SL_ASSERT(wide[i] == wide[n + i]);
    free(wide);
    free(narrow);
}

static void dispatch(const sl_wire_header *h, sl_span in, const sl_model_spec *m,
                     sl_wire_format f) {
    sl_wire_dispatch d;
    sl_err err;
    if (sl_wire_dispatch_decode(h, in, m, f, &d, &err) != SL_OK || in.len == 0) return;
    read_all(d.set, 4 * (size_t)d.n_set);
    read_all(d.tag, 8 * (size_t)d.rows);
    SL_ASSERT(d.n_old <= d.rows && (d.n_old == 0 || h->flags & SL_WIRE_OLD));
    read_all(d.old, 4 * (size_t)d.n_old);
    read_all(d.data, (d.rows - d.n_old) * sl_wire_row_bytes(f, m->d_model));
    for (uint32_t r = 0; r < d.rows; r++) {
        SL_ASSERT(d.first[r] < d.first[r + 1]);
        for (uint32_t i = d.first[r]; i < d.first[r + 1]; i++) {
            SL_ASSERT(d.expert[i] < m->n_experts && d.position[i] < m->top_k);
            sink += (uint64_t)(d.gate[i] > 0);
        }
    }
    SL_ASSERT(d.first[d.rows] == d.n_entries);
    rows_there_and_back(f, d.data, d.rows - d.n_old, m->d_model);
}

static void returned(const sl_wire_header *h, sl_span in, const sl_model_spec *m,
                     sl_wire_format f) {
    sl_wire_return d;
    sl_err err;
    if (sl_wire_return_decode(h, in, m, f, &d, &err) != SL_OK || in.len == 0) return;
    read_all(d.set, 4 * (size_t)d.n_set);
    read_all(d.tag, 8 * (size_t)d.rows);
    read_all(d.data, d.rows * sl_wire_row_bytes(f, m->d_model));
    for (uint32_t r = 0; r < d.rows; r++) SL_ASSERT(d.mask[r] != 0);
    rows_there_and_back(f, d.data, d.rows, m->d_model);
}

/* What is allowed is as large as the vocabulary. */
static void submit(sl_span in, uint32_t vocab) {
    sl_wire_submit s;
    sl_err err;
    if (sl_wire_submit_decode(in, vocab, &s, &err) != SL_OK) return;
    read_all(s.tokens, 4 * (size_t)s.n_tokens);
    read_all(s.pages, 4 * (size_t)s.n_pages);
    read_all(s.stop, 4 * (size_t)s.n_stop);
    read_all(s.sampling.bias, 8 * (size_t)s.sampling.n_bias);
    read_all(s.sampling.allowed, 4 * (size_t)s.sampling.n_allowed);
    read_all(s.report.scored, 4 * (size_t)s.report.n_scored);
    for (uint32_t i = 0; i < s.sampling.n_bad; i += s.sampling.bad[i] + 1)
        read_all(s.sampling.bad + i + 1, 4 * (size_t)s.sampling.bad[i]);
    /* What decodes encodes to the same bytes. */
    uint8_t *again = malloc(sl_wire_submit_bytes(&s));
    SL_ASSERT(again && sl_wire_submit_bytes(&s) == in.len);
    sl_wire_submit_encode(&s, again);
    SL_ASSERT(memcmp(again, in.data, in.len) == 0);
    free(again);
}

static void records(const sl_wire_header *h, sl_span in, unsigned what) {
    const sl_wire_token *tokens;
    const sl_logprob *logprobs;
    const sl_wire_pair *pairs;
    const uint32_t *set;
    const float *logits;
    uint32_t n, worker;
    uint64_t request, position;
    sl_err err;
    if (what == 0 && sl_wire_tokens_decode(h, in, &tokens, &logprobs, &err) == SL_OK) {
        size_t sum = 0;
        for (uint32_t i = 0; i < h->rows; i++) sum += tokens[i].n_logprobs;
        read_all(tokens, h->rows * sizeof *tokens);
        read_all(logprobs, sum * sizeof *logprobs);
    }
    if (what == 1 && sl_wire_pairs_decode(h, in, &pairs, &err) == SL_OK)
        read_all(pairs, h->rows * sizeof *pairs);
    if (what == 2 && sl_wire_set_decode(in, &set, &n, &err) == SL_OK) read_all(set, 4 * (size_t)n);
    if (what == 3 && sl_wire_worker_decode(in, &worker, &err) == SL_OK) sink += worker;
    if (what == 4 && sl_wire_logits_decode(h, in, 7, &request, &position, &logits, &err) == SL_OK)
        read_all(logits, h->rows * 7 * sizeof *logits);
}

static void pages(const sl_wire_header *h, sl_span in) {
    static const sl_model_spec m = {.n_layers = 3, .n_kv_heads = 1, .head_dim = 2};
    const sl_wire_fetch *f;
    sl_wire_blocks b;
    const uint8_t *data;
    uint8_t again[SL_WIRE_BLOCKS_BYTES];
    sl_err err;
    if (h->kind == SL_MSG_KV_FETCH) {
        if (sl_wire_fetches_decode(h, in, &f, &err) == SL_OK) read_all(f, h->rows * sizeof *f);
        return;
    }
    if (sl_wire_blocks_decode(h, in, &m, &b, &data, &err) != SL_OK) return;
    SL_ASSERT(b.n > 0 && b.first + b.n <= m.n_layers && (uint64_t)b.first + b.n <= m.n_layers);
    if (data) read_all(data, b.bytes);
    sl_wire_blocks_encode(&b, again);
    SL_ASSERT(memcmp(again, in.data, sizeof b) == 0);
}

static void kept(const sl_wire_header *h, sl_span in) {
    const sl_wire_kept *k;
    sl_err err;
    if (sl_wire_kept_decode(h, in, &k, &err) != SL_OK) return;
    read_all(k, h->rows * sizeof *k);
    for (uint32_t i = 0; i < h->rows; i++) SL_ASSERT(!sl_page_key_none(k[i].key));
}

/* What decodes encodes to the same bytes. */
static void rails(const sl_wire_header *h, sl_span in, uint32_t n) {
    sl_rails_greeting g;
    sl_rails_striped s;
    sl_rails_word w;
    uint8_t again[SL_RAILS_GREETING_HEAD + SL_RAILS_MAX * SL_RAILS_ADDRESS];
    sl_err err;
    if (h->kind == SL_MSG_RAILS && sl_rails_greeting_decode(in, &g, &err) == SL_OK) {
        SL_ASSERT(g.n >= 2 && g.n <= SL_RAILS_MAX && sl_rails_greeting_bytes(g.n) == in.len);
        for (uint32_t i = 1; i < g.n; i++) SL_ASSERT(strlen(g.at[i]) < SL_RAILS_ADDRESS);
        sl_rails_greeting_encode(&g, again);
        SL_ASSERT(memcmp(again, in.data, in.len) == 0);
    }
    for (uint32_t k = 0; h->kind == SL_MSG_STRIPED && k < 2; k++) {
        const uint32_t of = k ? 1 : n; /* 1: ranks have the others */
        if (sl_rails_striped_decode(in, of, &s, &err) != SL_OK) continue;
        SL_ASSERT(sl_stripe_begin(s.bytes, of, 1) == in.len - SL_STRIPED_HEAD);
        sl_rails_striped_encode(&s, again);
        SL_ASSERT(memcmp(again, in.data, SL_STRIPED_HEAD) == 0);
    }
    if (h->kind == SL_MSG_RANK_RAIL && sl_rails_word_decode(in, &w, &err) == SL_OK) {
        SL_ASSERT(w.kind > 0 && w.kind < SL_RAILS_WORDS && w.key);
        SL_ASSERT(strlen(w.text) < SL_RAILS_ADDRESS);
        sl_rails_word_encode(&w, again);
        SL_ASSERT(memcmp(again, in.data, in.len) == 0);
    }
}

static void hello(sl_span in) {
    sl_hello h;
    sl_err err;
    uint8_t again[SL_HELLO_BYTES];
    if (in.len != SL_HELLO_BYTES || sl_hello_decode(in.data, &h, &err) != SL_OK) return;
    sl_hello_encode(&h, again);
    SL_ASSERT(memcmp(again, in.data, sizeof again) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_wire_header h = {0};
    sl_err err;
    if (size < 1 + SL_WIRE_HEADER_BYTES) return 0;
    unsigned what = data[0] % 9;
    sl_wire_format f = data[0] < 0x80 ? SL_WIRE_F32 : data[0] & 0x20 ? SL_WIRE_FP8 : SL_WIRE_BF16;
    sl_model_spec m = {.d_model = 3, .n_experts = 8, .top_k = data[0] & 0x40 ? 64 : 4};
    sl_span head = {data + 1, SL_WIRE_HEADER_BYTES};
    if (sl_wire_header_decode(head, &h, &err) != SL_OK) return 0;
    uint8_t again[SL_WIRE_HEADER_BYTES];
    sl_wire_header_encode(&h, again);
    SL_ASSERT(memcmp(again, head.data, sizeof again) == 0);
    size_t n = size - 1 - SL_WIRE_HEADER_BYTES;
    uint8_t *payload = NULL;
    if (n && posix_memalign((void **)&payload, 64, n) != 0) return 0;
    if (n) memcpy(payload, head.data + SL_WIRE_HEADER_BYTES, n);
    sl_span in = {payload, n};
    if (h.kind == SL_MSG_KV_FETCH || h.kind == SL_MSG_KV_GET || h.kind == SL_MSG_KV_PAGES)
        pages(&h, in);
    else if (h.kind == SL_MSG_KV_KEPT || h.kind == SL_MSG_KV_SAVE)
        kept(&h, in);
    else if (h.kind == SL_MSG_RAILS || h.kind == SL_MSG_STRIPED || h.kind == SL_MSG_RANK_RAIL)
        rails(&h, in, 2 + data[0] % (SL_RAILS_MAX - 1));
    else if (what == 0)
        dispatch(&h, in, &m, f);
    else if (what == 1)
        returned(&h, in, &m, f);
    else if (what == 2)
        submit(in, data[0] < 0x80 ? UINT32_MAX : 64);
    else if (what == 3)
        hello(in);
    else
        records(&h, in, what - 4);
    free(payload);
    return 0;
}
