/* Answers as blocks: however what is new comes cut, the blocks are those of the whole, and events
 * follow one another as both dialects document. */
#include "base/mem.h"
#include "base/rng.h"
#include "serve/blocks.h"
#include "serve/dialect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct stretch {
    sl_run_kind kind;
    const char *text, *name;
} stretch;

static const stretch answer[] = {{SL_RUN_REASONING, "They ask.\nSo \xE2\x82\xAC", NULL},
                                 {SL_RUN_TEXT, "I look.", NULL},
                                 {SL_RUN_CALL, "{\"city\":\"Oslo\"}", "get"},
                                 {SL_RUN_CALL, "", "now"},
                                 {SL_RUN_CALL, "{\"a\":", "cut"},
                                 {SL_RUN_REASONING, "Hm", NULL},
                                 {SL_RUN_TEXT, "\"Done\"", NULL}};

enum { MAX = 64 };

/* What is new, as choices hand it over. */
typedef struct news {
    sl_reply_choice c;
    char text[256], reasoning[256];
    sl_reply_call calls[MAX];
    sl_reply_run runs[MAX];
} news;

static void start(news *n) {
    *n = (news){0};
    n->c = (sl_reply_choice){.calls = n->calls, .runs = n->runs};
}

static void stop(news *n) {
    for (size_t i = 0; i < n->c.n_calls; i++) {
        sl_jbuf_free(&n->calls[i].name);
        sl_jbuf_free(&n->calls[i].arguments);
    }
}

/* n bytes of a stretch; begins: its first. */
static void add(news *n, const stretch *s, const char *text, size_t len, bool begins,
                uint32_t call) {
    sl_reply_run *last = n->c.n_runs ? &n->runs[n->c.n_runs - 1] : NULL;
    if (s->kind == SL_RUN_CALL) {
        if (begins || !last || last->kind != SL_RUN_CALL) {
            sl_reply_call *k = &n->calls[n->c.n_calls];
            *k = (sl_reply_call){.index = call,
                                 .begins = begins,
                                 .name = sl_jbuf_init(),
                                 .arguments = sl_jbuf_init()};
            if (begins) snprintf(k->id, sizeof k->id, "call_%u", call);
            if (begins) sl_jbuf_put(&k->name, s->name, strlen(s->name));
            n->runs[n->c.n_runs++] = (sl_reply_run){SL_RUN_CALL, n->c.n_calls++};
        }
        sl_jbuf_put(&n->calls[n->c.n_calls - 1].arguments, text, len);
        return;
    }
    if (len == 0) return;
    bool thought = s->kind == SL_RUN_REASONING;
    sl_span *all = thought ? &n->c.reasoning : &n->c.text;
    char *to = thought ? n->reasoning : n->text;
    memcpy(to + all->len, text, len);
    *all = (sl_span){(const uint8_t *)to, all->len + len};
    if (last && last->kind == s->kind)
        last->n += len;
    else
        n->runs[n->c.n_runs++] = (sl_reply_run){s->kind, len};
}

/* The events of the answer, cut where rng says; NULL: whole. Items of the blocks are in *items. */
static void write(const sl_dialect *d, uint64_t *rng, sl_jbuf *events, sl_jbuf *items) {
    sl_blocks blocks = sl_blocks_init();
    const sl_reply_usage usage = {3, 4, 1};
    const sl_reply_head h = {
        .kind = SL_API_CHAT, .id = "x_1", .model = "m", .usage = &usage, .blocks = &blocks};
    uint32_t call = 0;
    news n;
    start(&n);
    d->begin(events, &h, NULL);
    for (size_t i = 0; i < SL_LEN(answer); i++) {
        const stretch *s = &answer[i];
        size_t len = strlen(s->text), at = 0;
        bool begins = true;
        do {
            size_t piece = rng ? (size_t)sl_rng_below(rng, len - at + 1) : len;
            add(&n, s, s->text + at, piece, begins, call);
            at += piece;
            begins = false;
            if (!rng || sl_rng_below(rng, 2)) continue;
            d->news(events, &h, &n.c);
            stop(&n);
            start(&n);
        } while (at < len);
        call += s->kind == SL_RUN_CALL;
    }
    d->news(events, &h, &n.c);
    stop(&n);
    d->finish(events, &h, &(sl_reply_choice){.finish = "tool_calls"});
    d->end(events, &h, usage);
    sl_jbuf_put(items, blocks.items.data, blocks.items.len);
    assert_true(events->ok && items->ok);
    sl_blocks_free(&blocks);
}

static size_t count(const char *text, const char *of) {
    size_t n = 0;
    for (; (text = strstr(text, of)); text += strlen(of)) n++;
    return n;
}

/* Every data line is JSON. */
static void check_events(const char *text) {
    for (const char *line = text; (line = strstr(line, "\ndata: "));) {
        line += 7;
        sl_json_doc *doc = NULL;
        sl_err err = {0};
        sl_span json = {(const uint8_t *)line, strcspn(line, "\n")};
        if (sl_json_parse("event", json, &doc, &err) != SL_OK) fail_msg("%s", err.msg);
        sl_json_doc_free(doc);
    }
}

static void blocks_are_the_same_however_they_come(void **state) {
    (void)state;
    static const struct {
        sl_dialect_id id;
        const char *begins, *ends;
    } dialects[] = {
        {SL_DIALECT_MESSAGES, "event: content_block_start", "event: content_block_stop"},
        {SL_DIALECT_RESPONSES, "event: response.output_item.added",
         "event: response.output_item.done"}};
    for (size_t i = 0; i < SL_LEN(dialects); i++) {
        const sl_dialect *d = &sl_dialects[dialects[i].id];
        sl_jbuf whole = sl_jbuf_init(), events = sl_jbuf_init();
        write(d, NULL, &events, &whole);
        sl_jbuf_free(&events);
        for (uint64_t seed = 0; seed < 2000; seed++) {
            uint64_t rng = seed;
            sl_jbuf items = sl_jbuf_init();
            events = sl_jbuf_init();
            write(d, &rng, &events, &items);
            assert_string_equal(items.data, whole.data);
            assert_int_equal(count(events.data, dialects[i].begins), SL_LEN(answer));
            assert_int_equal(count(events.data, dialects[i].ends), SL_LEN(answer));
            if (seed < 20) check_events(events.data);
            sl_jbuf_free(&items);
            sl_jbuf_free(&events);
        }
        sl_jbuf_free(&whole);
    }
}

static void arguments_that_are_no_object_are_kept(void **state) {
    (void)state;
    sl_jbuf items = sl_jbuf_init(), events = sl_jbuf_init();
    write(&sl_dialects[SL_DIALECT_MESSAGES], NULL, &events, &items);
    assert_non_null(strstr(items.data, "\"input\":{\"city\":\"Oslo\"}"));
    assert_non_null(strstr(items.data, "\"name\":\"now\",\"input\":{}"));
    assert_non_null(strstr(items.data, "\"input\":{\"INVALID_JSON\":\"{\\\"a\\\":\"}"));
    sl_jbuf_free(&items);
    sl_jbuf_free(&events);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_the_same_however_they_come),
        cmocka_unit_test(arguments_that_are_no_object_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
