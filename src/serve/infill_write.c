/* Answers of /infill as llama.cpp writes them. */
#include "serve/dialect_int.h"

#include <inttypes.h>

/* Why it ended, in the words of that server. */
static void put_end(sl_jbuf *b, const sl_reply_choice *c) {
    bool cut = c->finish && !strcmp(c->finish, "length");
    const char *word = (const char *)c->stop.text.data;
    sl_jbuf_fmt(b, ",\"stop\":true,\"truncated\":false,\"stop_type\":\"%s\",\"stopping_word\":",
                cut    ? "limit"
                : word ? "word"
                       : "eos");
    sl_jbuf_string(b, word ? word : "", word ? c->stop.text.len : 0);
}

static void put_text(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_jbuf_fmt(b, "{\"index\":%" PRIu32 ",\"id\":", c->index);
    sl_jbuf_cstring(b, h->id);
    sl_jbuf_fmt(b, ",\"model\":");
    sl_jbuf_cstring(b, h->model);
    sl_jbuf_fmt(b, ",\"content\":");
    sl_jbuf_string(b, (const char *)c->text.data, c->text.len);
    sl_jbuf_fmt(b, ",\"tokens\":");
    sl_jbuf_ids(b, c->ids.tokens, c->ids.n_tokens);
}

static void put_counts(sl_jbuf *b, const sl_reply_usage *u) {
    sl_jbuf_fmt(b,
                ",\"tokens_predicted\":%" PRIu64 ",\"tokens_evaluated\":%" PRIu64
                ",\"tokens_cached\":%" PRIu64,
                u->completion, u->prompt, u->cached);
}

void sl_infill_open(sl_jbuf *b, const sl_reply_head *h) {
    (void)b, (void)h; /* there is one choice, whose object is the answer */
}

void sl_infill_add(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    put_text(b, h, c);
    put_end(b, c);
}

void sl_infill_close(sl_jbuf *b, const sl_reply_head *h, const sl_reply_ids *ids,
                     sl_reply_usage usage) {
    (void)ids;
    put_counts(b, &usage);
    sl_reply_timings_write(b, h->timings);
    sl_jbuf_put(b, "}", 1);
}

void sl_infill_news(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_jbuf_fmt(b, "data: ");
    put_text(b, h, c);
    sl_jbuf_fmt(b, ",\"stop\":false");
    put_counts(b, h->usage);
    if (h->timings_each) sl_reply_timings_write(b, h->timings);
    sl_jbuf_fmt(b, "}\n\n");
}

void sl_infill_finish(sl_jbuf *b, const sl_reply_head *h, const sl_reply_choice *c) {
    sl_jbuf_fmt(b, "data: ");
    put_text(b, h, c);
    put_end(b, c);
    put_counts(b, h->usage);
    sl_reply_timings_write(b, h->timings);
    sl_jbuf_fmt(b, "}\n\n");
}

void sl_infill_end(sl_jbuf *b, const sl_reply_head *h, sl_reply_usage usage) {
    (void)b, (void)h, (void)usage; /* the choice's last event is the answer's */
}
