/* Stretches of an answer become blocks. */
#include "serve/blocks.h"

#include <stdio.h>

sl_blocks sl_blocks_init(void) {
    return (sl_blocks){.text = sl_jbuf_init(),
                       .scores = sl_jbuf_init(),
                       .raw = sl_jbuf_init(),
                       .name = sl_jbuf_init(),
                       .items = sl_jbuf_init(),
                       .stop = sl_jbuf_init()};
}

void sl_blocks_free(sl_blocks *k) {
    sl_jbuf_free(&k->text);
    sl_jbuf_free(&k->scores);
    sl_jbuf_free(&k->raw);
    sl_jbuf_free(&k->name);
    sl_jbuf_free(&k->items);
    sl_jbuf_free(&k->stop);
}

static void end_block(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style) {
    sl_blocks *k = h->blocks;
    if (!k->open) return;
    if (k->items.len) sl_jbuf_put(&k->items, ",", 1);
    style->item(&k->items, h);
    if (b) style->end(b, h);
    k->open = false;
    sl_jbuf_clear(&k->text);
    sl_jbuf_clear(&k->scores);
    sl_jbuf_clear(&k->name);
}

static void begin_block(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style,
                        sl_run_kind kind, const sl_reply_call *call) {
    sl_blocks *k = h->blocks;
    end_block(b, h, style);
    k->open = true;
    k->kind = kind;
    k->n++;
    if (call) {
        k->call = call->index;
        snprintf(k->call_id, sizeof k->call_id, "%s", call->id);
        sl_jbuf_put(&k->name, call->name.data, call->name.len);
    }
    if (b) style->begin(b, h);
}

static void add_piece(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style, sl_span text,
                      sl_span scores) {
    sl_blocks *k = h->blocks;
    if (text.len == 0) return;
    if (scores.len && scores.data[0] == ',') scores = (sl_span){scores.data + 1, scores.len - 1};
    k->news = scores;
    sl_jbuf_put(&k->text, (const char *)text.data, text.len);
    if (k->scores.len && scores.len) sl_jbuf_put(&k->scores, ",", 1);
    sl_jbuf_put(&k->scores, (const char *)scores.data, scores.len);
    if (b) style->piece(b, h, text);
    k->news = (sl_span){0};
}

void sl_blocks_add(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style,
                   const sl_reply_choice *c) {
    sl_blocks *k = h->blocks;
    sl_span scores = c->scores, none = {0};
    sl_span left[] = {[SL_RUN_TEXT] = c->text, [SL_RUN_REASONING] = c->reasoning};
    for (size_t i = 0; i < c->n_runs; i++) {
        const sl_reply_run *r = &c->runs[i];
        const sl_reply_call *call = r->kind == SL_RUN_CALL ? &c->calls[r->n] : NULL;
        bool goes_on = k->open && k->kind == r->kind && !(call && call->begins);
        if (!goes_on) begin_block(b, h, style, r->kind, call);
        if (call) {
            add_piece(b, h, style,
                      (sl_span){(const uint8_t *)call->arguments.data, call->arguments.len}, none);
            continue;
        }
        add_piece(b, h, style, (sl_span){left[r->kind].data, r->n},
                  (sl_span){scores.data, r->n_scores});
        if (r->n_scores) scores.data += r->n_scores;
        left[r->kind].data += r->n;
    }
}

void sl_blocks_end(sl_jbuf *b, const sl_reply_head *h, const sl_block_style *style,
                   const sl_reply_choice *c) {
    sl_blocks *k = h->blocks;
    k->finish = c->finish;
    k->full = c->full;
    end_block(b, h, style);
    sl_span stop = c->stop.text;
    if (stop.data) sl_jbuf_put(&k->stop, (const char *)stop.data, stop.len);
    if (b) b->ok = b->ok && k->text.ok && k->scores.ok && k->name.ok && k->items.ok && k->stop.ok;
}

void sl_event_open(sl_jbuf *b, const char *type) {
    sl_jbuf_fmt(b, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

void sl_event_close(sl_jbuf *b) {
    sl_jbuf_fmt(b, "}\n\n");
}

void sl_event_text(sl_jbuf *b, const char *key, const char *text, size_t n) {
    sl_jbuf_fmt(b, ",\"%s\":", key);
    sl_jbuf_string(b, text ? text : "", n);
}
