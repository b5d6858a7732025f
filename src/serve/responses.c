/* /v1/responses beyond one answer: conversations that go on from a response that is kept, and what
 * can be done with one by its id. Responses are kept answers like any other (kept.c). What is kept
 * of a request that goes on is the whole conversation, so it outlives the responses before it. */
#include "serve/dialect_int.h"
#include "serve/kept_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PREVIOUS   "previous_response_id"
#define LIST_LIMIT 20u /* items of a page: unless it says otherwise, */
#define LIST_MOST  100u

/* ---- conversations that go on ---- */

static sl_status refuse_previous(sl_api_error *e, const char *id) {
    sl_api_error_bad(e, PREVIOUS,
                     PREVIOUS ": no response of yours is kept as %.64s: it was not stored, or it "
                              "failed, or its time is over (--responses, --responses-ttl)",
                     id);
    e->http = MHD_HTTP_NOT_FOUND;
    e->code = "previous_response_not_found";
    return SL_ERR_NOTFOUND;
}

/* The tokens of a kept answer, if it is whole. */
static sl_status copy_tokens(sl_kept *k, sl_call *old, sl_api_error *e) {
    sl_choice *c = &old->choice[0];
    sl_kept_lock(k);
    bool whole = k->n_running == 0 && !k->failed && !k->cancelled;
    pthread_mutex_lock(&old->lock);
    sl_status st = whole ? sl_choice_queue(c, k->track[0].id, k->track[0].n, NULL) : SL_OK;
    c->last = c->taken_last = k->track[0].last;
    pthread_mutex_unlock(&old->lock);
    sl_kept_unlock(k);
    c->taken = c->queue;
    c->queue = (sl_ids){0};
    if (st != SL_OK) return sl_api_error_of(e, st, NULL, NULL);
    return whole ? SL_OK
                 : sl_api_error_bad(e, PREVIOUS, PREVIOUS ": %s is still being made", k->id);
}

/* Items of an answer that is kept: it is decoded as for one who asks for it. */
static sl_status decode(sl_kept *k, sl_jbuf *out, sl_api_error *e) {
    sl_call *old = sl_call_create_unheard(k->server);
    if (!old) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    old->dialect = k->dialect;
    old->kept = k;
    old->fetched = true;
    sl_status st = sl_call_prepare(old, e);
    old->kept = NULL; /* it reads no more, and stops nothing */
    memcpy(old->id, k->id, sizeof old->id);
    if (st == SL_OK) st = copy_tokens(k, old, e);
    if (st == SL_OK && sl_choice_decode(&old->choice[0], SIZE_MAX) != SL_OK)
        st = sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    if (st == SL_OK) {
        sl_jbuf whole = sl_jbuf_init();
        sl_choice_write(&old->choice[0], &whole);
        sl_jbuf_put(out, old->blocks.items.data, old->blocks.items.len);
        out->ok = out->ok && whole.ok;
        sl_jbuf_free(&whole);
    }
    sl_call_unref(old);
    return st;
}

/* The items of an input, with commas between them. */
static void put_items(sl_jbuf *b, sl_json input) {
    size_t n = sl_json_count(input);
    if (sl_json_kind_of(input) == SL_JSON_STRING) {
        sl_jbuf_fmt(b, "{\"type\":\"message\",\"role\":\"user\",\"content\":");
        sl_jbuf_json(b, input);
        sl_jbuf_put(b, "}", 1);
    }
    for (size_t i = 0; i < n && sl_json_kind_of(input) == SL_JSON_ARRAY; i++) {
        if (i > 0) sl_jbuf_put(b, ",", 1);
        sl_jbuf_json(b, sl_json_at(input, i));
    }
}

static sl_status parse_body(sl_span body, sl_json_doc **doc, sl_api_error *e) {
    sl_err err = {0};
    sl_status st = sl_json_parse_within("request body", body, SL_API_MAX_MEMORY, doc, &err);
    return st == SL_OK ? st : sl_api_error_of(e, st, NULL, err.msg);
}

/* What was asked before and answered, then what is asked now. */
static sl_status put_conversation(sl_jbuf *b, sl_kept *k, sl_json input, sl_api_error *e) {
    sl_json_doc *doc = NULL;
    sl_status st = parse_body(sl_kept_body(k), &doc, e);
    if (st != SL_OK) return st;
    put_items(b, sl_json_get(sl_json_root(doc), "input"));
    sl_json_doc_free(doc);
    size_t had = b->len;
    sl_jbuf_put(b, ",", 1);
    st = decode(k, b, e);
    if (b->len == had + 1) b->len = had; /* it said nothing */
    sl_jbuf_put(b, ",", 1);
    put_items(b, input);
    return st;
}

/* The body with the conversation as its input. */
static sl_status write_whole(sl_call *call, sl_json root, sl_kept *k, sl_jbuf *b, sl_api_error *e) {
    void *iter = NULL;
    const char *key;
    size_t limit = call->server->o.max_body_bytes;
    sl_jbuf_fmt(b, "{\"input\":[");
    sl_status st = put_conversation(b, k, sl_json_get(root, "input"), e);
    if (st != SL_OK) return st;
    sl_jbuf_put(b, "]", 1);
    for (sl_json v; sl_json_next(root, &iter, &key, &v);) {
        if (!strcmp(key, "input")) continue;
        sl_jbuf_put(b, ",", 1);
        sl_jbuf_string(b, key, strlen(key));
        sl_jbuf_put(b, ":", 1);
        sl_jbuf_json(b, v);
    }
    sl_jbuf_put(b, "}", 1);
    if (!b->ok) return sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    if (b->len <= limit) return SL_OK;
    return sl_api_error_bad(e, PREVIOUS, PREVIOUS ": the conversation has %zu bytes, limit %zu",
                            b->len, limit);
}

static sl_status go_on(sl_call *call, sl_json root, const char *id, sl_api_error *e) {
    sl_json input = sl_json_get(root, "input");
    sl_json_kind kind = sl_json_kind_of(input);
    if (kind != SL_JSON_STRING && (kind != SL_JSON_ARRAY || sl_json_count(input) == 0))
        return sl_api_error_bad(e, "input", "input: neither a string nor an array of items");
    sl_kept *k = sl_kept_borrow(call, id);
    if (!k) return refuse_previous(e, id);
    sl_jbuf b = sl_jbuf_init();
    sl_status st = write_whole(call, root, k, &b, e);
    sl_kept_release(k);
    if (st == SL_OK) {
        sl_jbuf_free(&call->body); /* what it counts for is given back with the call */
        call->body = b;
        b = sl_jbuf_init();
    }
    sl_jbuf_free(&b);
    return st;
}

/* A body that names a response to go on from becomes one with the whole conversation. */
static sl_status chain(sl_call *call, sl_api_error *e) {
    static const char key[] = "\"" PREVIOUS "\"";
    const char *id = NULL;
    sl_err err = {0};
    sl_json_doc *doc = NULL;
    sl_span body = {(const uint8_t *)call->body.data, call->body.len};
    bool may = body.len > 0 && (memmem(body.data, body.len, key, sizeof key - 1) ||
                                memmem(body.data, body.len, "\\u", 2)); /* or it is spelt */
    if (!may) return SL_OK;
    sl_status st = parse_body(body, &doc, e);
    if (st != SL_OK) return st;
    sl_json root = sl_json_root(doc);
    if (sl_json_kind_of(root) == SL_JSON_OBJECT &&
        sl_json_string(root, PREVIOUS, SL_JSON_OPTIONAL, &id, &err) != SL_OK)
        st = sl_api_error_of(e, SL_ERR_ARG, PREVIOUS, err.msg);
    if (st == SL_OK && id && call->server->o.responses == 0)
        st = sl_api_error_bad(e, PREVIOUS,
                              PREVIOUS ": this server keeps no answers (--responses N)");
    else if (st == SL_OK && id)
        st = go_on(call, root, id, e);
    sl_json_doc_free(doc);
    return st;
}

enum MHD_Result sl_responses_create(sl_call *call, const char *rest) {
    call->complete = chain;
    return sl_call_generate(call, rest);
}

/* ---- by their ids ---- */

static void set_unknown(sl_api_error *e, const char *id) {
    sl_api_error_bad(e, NULL,
                     "no response of yours is kept as %.64s: it was not stored, or it failed, or "
                     "its time is over (--responses)",
                     id);
    e->http = MHD_HTTP_NOT_FOUND;
    e->code = "response_not_found";
}

static enum MHD_Result refuse_unknown(sl_call *call, const char *id) {
    sl_api_error e;
    set_unknown(&e, id);
    return sl_call_reply_error(call, &e);
}

static enum MHD_Result reply_answer(sl_call *call) {
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &call->answer);
}

/* `rest` is ID/WHAT: the id without it. */
static bool ends_with(const char *rest, const char *what, char *id, size_t cap) {
    size_t n = strlen(rest), m = strlen(what);
    if (n < m || n - m >= cap || strcmp(rest + n - m, what) != 0) return false;
    memcpy(id, rest, n - m);
    id[n - m] = 0;
    return true;
}

static const char *query(sl_call *call, const char *key) {
    return MHD_lookup_connection_value(call->connection, MHD_GET_ARGUMENT_KIND, key);
}

typedef struct item {
    char id[64];
    sl_json v;
} item;

/* The id that the client gave it, or one by its place. */
static item item_at(const sl_kept *k, sl_json input, size_t i) {
    item it = {.v = sl_json_at(input, i)};
    sl_span own = {0};
    if (sl_json_as_span(sl_json_get(it.v, "id"), &own) && own.len > 0 && own.len < sizeof it.id)
        snprintf(it.id, sizeof it.id, "%s", (const char *)own.data);
    else
        snprintf(it.id, sizeof it.id, "in_%s%04zx", strchr(k->id, '_') + 1, i);
    return it;
}

/* A content that is a text, as a part. */
static void put_content(sl_jbuf *b, sl_json content, bool own) {
    if (sl_json_kind_of(content) != SL_JSON_STRING) {
        sl_jbuf_json(b, content);
        return;
    }
    sl_jbuf_fmt(b, "[{\"type\":\"%s\",%s\"text\":", own ? "output_text" : "input_text",
                own ? "\"annotations\":[]," : "");
    sl_jbuf_json(b, content);
    sl_jbuf_fmt(b, "}]");
}

static void put_listed(sl_jbuf *b, const item *it) {
    void *iter = NULL;
    const char *key;
    bool own = sl_json_is_text(sl_json_get(it->v, "role"), "assistant");
    sl_jbuf_fmt(b, "{\"id\":");
    sl_jbuf_cstring(b, it->id);
    if (sl_json_kind_of(sl_json_get(it->v, "type")) <= SL_JSON_NULL)
        sl_jbuf_fmt(b, ",\"type\":\"message\"");
    if (sl_json_kind_of(sl_json_get(it->v, "status")) <= SL_JSON_NULL)
        sl_jbuf_fmt(b, ",\"status\":\"completed\"");
    for (sl_json v; sl_json_next(it->v, &iter, &key, &v);) {
        if (!strcmp(key, "id") || sl_json_kind_of(v) == SL_JSON_NULL) continue;
        sl_jbuf_put(b, ",", 1);
        sl_jbuf_string(b, key, strlen(key));
        sl_jbuf_put(b, ":", 1);
        if (!strcmp(key, "content"))
            put_content(b, v, own);
        else
            sl_jbuf_json(b, v);
    }
    sl_jbuf_put(b, "}", 1);
}

/* A page of them: the newest first, unless order=asc; those behind after=ID, limit=N of them. */
static void put_page(sl_jbuf *b, sl_call *call, const sl_kept *k, sl_json input) {
    const char *after = query(call, "after"), *order = query(call, "order"),
               *most = query(call, "limit");
    size_t n = sl_json_count(input), limit = most ? (size_t)strtoul(most, NULL, 10) : LIST_LIMIT;
    bool rising = order && !strcmp(order, "asc"), begun = !after;
    size_t shown = 0, at = 0;
    item first = {0}, last = {0};
    limit = SL_MIN(SL_MAX(limit, (size_t)1), (size_t)LIST_MOST);
    sl_jbuf_fmt(b, "{\"object\":\"list\",\"data\":[");
    for (; at < n && shown < limit; at++) {
        item it = item_at(k, input, rising ? at : n - 1 - at);
        if (!begun) {
            begun = !strcmp(it.id, after);
            continue;
        }
        if (shown) sl_jbuf_put(b, ",", 1);
        put_listed(b, &it);
        if (shown++ == 0) first = it;
        last = it;
    }
    sl_jbuf_fmt(b, "],\"first_id\":");
    sl_jbuf_cstring(b, first.id);
    sl_jbuf_fmt(b, ",\"last_id\":");
    sl_jbuf_cstring(b, last.id);
    sl_jbuf_fmt(b, ",\"has_more\":%s}", at < n ? "true" : "false");
}

/* Bodies that are kept may be large: what reads one is done where bodies are read. The call's id
 * says which. */
static enum MHD_Result read_kept(sl_call *call, const char *id, void (*work_on)(sl_call *)) {
    sl_kept *k = sl_kept_borrow(call, id);
    if (!k) return refuse_unknown(call, id);
    size_t n = sl_kept_body(k).len;
    sl_kept_release(k);
    snprintf(call->id, sizeof call->id, "%s", id);
    return sl_work_do(call, n, work_on, reply_answer);
}

static void list_items(sl_call *call) {
    sl_api_error *e = &call->refusal;
    sl_json_doc *doc = NULL, *list = NULL;
    sl_err err = {0};
    sl_kept *k = sl_kept_borrow(call, call->id);
    if (!k) {
        set_unknown(e, call->id);
        return;
    }
    sl_jbuf items = sl_jbuf_init();
    sl_status st = parse_body(sl_kept_body(k), &doc, e);
    if (st == SL_OK) { /* a text is a message, too */
        sl_jbuf_put(&items, "[", 1);
        put_items(&items, sl_json_get(sl_json_root(doc), "input"));
        sl_jbuf_put(&items, "]", 1);
        sl_span text = {(const uint8_t *)items.data, items.len};
        st = items.ok ? sl_json_parse_within("input", text, SL_API_MAX_MEMORY, &list, &err)
                      : SL_ERR_NOMEM;
        if (st != SL_OK) sl_api_error_of(e, st, NULL, err.msg);
    }
    if (st == SL_OK) put_page(&call->answer, call, k, sl_json_root(list));
    sl_json_doc_free(doc);
    sl_json_doc_free(list);
    sl_jbuf_free(&items);
    sl_kept_release(k);
}

enum MHD_Result sl_responses_get(sl_call *call, const char *rest) {
    char id[SL_JOURNAL_ID_BYTES];
    if (ends_with(rest, "/input_items", id, sizeof id)) return read_kept(call, id, list_items);
    return sl_call_fetch(call, rest);
}

enum MHD_Result sl_responses_delete(sl_call *call, const char *rest) {
    sl_kept *k = sl_kept_borrow(call, rest);
    if (!k) return refuse_unknown(call, rest);
    sl_kept_give_up(k);
    sl_kept_release(k);
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"id\":");
    sl_jbuf_cstring(&b, rest);
    sl_jbuf_fmt(&b, ",\"object\":\"response\",\"deleted\":true}");
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}

/* The response as it is shown when its client has given it up: without what there was of it. */
static sl_status put_cancelled(sl_call *call, sl_kept *k, sl_jbuf *b, sl_api_error *e) {
    sl_api_params p = {0};
    sl_status st = sl_dialect_read(k->dialect, sl_kept_body(k), &call->server->limits, &p, e);
    if (st != SL_OK) return st;
    const sl_reply_head head = {.id = k->id,
                                .model = call->server->model,
                                .created = k->created,
                                .stored = true,
                                .echo = {(const uint8_t *)p.extra.echo.data, p.extra.echo.len}};
    sl_responses_cancelled(b, &head);
    sl_api_params_free(&p);
    return SL_OK;
}

static void cancel_kept(sl_call *call) {
    sl_kept *k = sl_kept_borrow(call, call->id);
    if (!k) {
        set_unknown(&call->refusal, call->id);
        return;
    }
    sl_kept_lock(k);
    bool running = k->n_running > 0;
    sl_kept_unlock(k);
    if (!running)
        sl_api_error_bad(&call->refusal, NULL, "%s has ended already", call->id);
    else if (put_cancelled(call, k, &call->answer, &call->refusal) == SL_OK)
        sl_kept_give_up(k);
    sl_kept_release(k);
}

enum MHD_Result sl_responses_post(sl_call *call, const char *rest) {
    char id[SL_JOURNAL_ID_BYTES];
    sl_api_error e;
    if (ends_with(rest, "/cancel", id, sizeof id)) return read_kept(call, id, cancel_kept);
    sl_api_error_bad(&e, NULL, "unknown path /v1/responses/%.100s", rest);
    e.http = MHD_HTTP_NOT_FOUND;
    e.code = "unknown_url";
    return sl_call_reply_error(call, &e);
}
