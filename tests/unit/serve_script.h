/* An engine that reads its answers from a script, a tokenizer with one token per byte, and a small
 * HTTP client: the server is tested against its contracts, without a model. Symbols of the engine
 * and of chat rendering are defined here, so the linker never takes the real ones. */
#ifndef SL_TEST_SERVE_SCRIPT_H
#define SL_TEST_SERVE_SCRIPT_H

#include "base/clock.h"
#include "base/mem.h"
#include "serve/jbuf.h"
#include "serve/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define SCRIPT_EOS   256u
#define SCRIPT_VOCAB 257u

typedef struct script_request {
    uint64_t id;
    sl_request_params p;
    uint32_t made;
    bool cancelled;
    struct script_request *next;
} script_request;

/* What every request gets; changed with SCRIPT_SET. */
typedef struct sl_script {
    const char *text;    /* then end of text; with ignore_eos it starts again */
    uint32_t delay_us;   /* between two events of a request */
    uint32_t per_event;  /* tokens of one event */
    uint32_t fail_after; /* tokens, then a worker is lost; 0: never */
    bool silent;         /* no token ever, until cancelled */
    bool not_serving, recovering;
    sl_status refuse; /* what submit answers */
} sl_script;

struct sl_engine {
    sl_script script;
    sl_model_spec spec;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
    script_request *requests;
    uint64_t next_id;
    uint32_t running, most_running;
    uint64_t n_prompt, n_generated, n_cancelled;
    uint32_t last_prompt[64], last_n_prompt;
    sl_sampling last_sampling;
    uint32_t last_max_tokens;
};

#define SCRIPT_SET(e, field, to)                                                                   \
    do {                                                                                           \
        sl_engine *set_ = (e);                                                                     \
        pthread_mutex_lock(&set_->lock);                                                           \
        set_->script.field = (to);                                                                 \
        pthread_mutex_unlock(&set_->lock);                                                         \
    } while (0)

const sl_model_spec *sl_engine_spec(const sl_engine *e) {
    return &e->spec;
}

sl_status sl_engine_submit(sl_engine *e, const sl_request_params *p, uint64_t *request,
                           sl_err *err) {
    pthread_mutex_lock(&e->lock);
    sl_status refuse = e->script.refuse;
    pthread_mutex_unlock(&e->lock);
    if (refuse != SL_OK) return sl_fail(err, refuse, "scripted: %s", sl_status_text(refuse));
    script_request *r = sl_alloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_ERR_NOMEM, "scripted");
    r->p = *p;
    r->made = p->n_drawn; /* it goes on behind them */
    pthread_mutex_lock(&e->lock);
    *request = r->id = ++e->next_id;
    r->next = e->requests;
    e->requests = r;
    e->running++;
    e->most_running = SL_MAX(e->most_running, e->running);
    e->n_prompt += p->n_prompt;
    e->last_sampling = p->sampling;
    e->last_max_tokens = p->max_tokens;
    e->last_n_prompt = p->n_prompt;
    memcpy(e->last_prompt, p->prompt, SL_MIN(p->n_prompt, 64u) * sizeof *p->prompt);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    return SL_OK;
}

void sl_engine_cancel(sl_engine *e, uint64_t request) {
    pthread_mutex_lock(&e->lock);
    for (script_request *r = e->requests; r; r = r->next)
        if (r->id == request) r->cancelled = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

sl_status sl_engine_detail_get(sl_engine *e, sl_engine_detail *out, sl_err *err) {
    static sl_worker_stats worker[] = {
        {.id = 0,
         .roles = 1,
         .alive = true,
         .name = "a \"0\"",
         .attention_rows = 12,
         .sent_bytes = 34},
        {.id = 1, .roles = 2, .expert_rows = 56, .sleep_us = 500000},
    };
    (void)e;
    (void)err;
    *out = (sl_engine_detail){.n_workers = 2, .worker = worker};
    return SL_OK;
}

void sl_engine_detail_free(sl_engine_detail *d) {
    (void)d;
}

sl_status sl_engine_wish(sl_engine *e, sl_wish_kind kind, uint32_t worker, uint32_t grace_ms,
                         uint32_t *number, sl_err *err) {
    (void)e, (void)kind, (void)grace_ms;
    *number = 7;
    return worker < 2 ? SL_OK : sl_fail(err, SL_ERR_NOTFOUND, "no worker %u", worker);
}

sl_status sl_engine_look(sl_engine *e, sl_err *err) {
    (void)e, (void)err;
    return SL_OK;
}

sl_status sl_engine_view_get(sl_engine *e, sl_engine_view *out, sl_err *err) {
    (void)e;
    *out = (sl_engine_view){0};
    return sl_fail(err, SL_ERR_NOMEM, "nobody is watched here");
}

void sl_engine_view_free(sl_engine_view *v) {
    (void)v;
}

void sl_engine_stats_get(sl_engine *e, sl_engine_stats *out) {
    *out = (sl_engine_stats){.pages_total = 100, .pages_used = 25, .n_workers = 2};
    pthread_mutex_lock(&e->lock);
    out->running = e->running;
    out->prompt_tokens = e->n_prompt;
    out->generated_tokens = e->n_generated;
    out->serving = !e->script.not_serving;
    out->recovering = e->script.recovering;
    if (out->recovering) {
        out->lost_workers = 2;
        out->restarted_workers = 1;
        out->requeued = 7;
        out->rows_kept = 4096;
        out->rows_recomputed = 11;
        out->longest_pause_s = 0.5;
    }
    pthread_mutex_unlock(&e->lock);
}

/* Next event of a request; true when it is the last. */
static bool script_step(sl_engine *e, const sl_script *s, script_request *r, bool cancelled) {
    uint32_t tokens[256], len = (uint32_t)strlen(s->text);
    sl_request_event ev = {.request = r->id, .tokens = tokens};
    if (cancelled) {
        ev.finish = SL_FINISH_STOP;
    } else if (s->fail_after && r->made >= s->fail_after) {
        ev.finish = SL_FINISH_ERROR;
        ev.status = SL_ERR_WORKER_LOST;
        ev.message = "worker 2 (expert) is gone";
    } else if (s->silent) {
        return false;
    }
    while (ev.finish == SL_FINISH_NONE && ev.n < s->per_event) {
        bool eos = !r->p.ignore_eos && r->made >= len;
        uint32_t id = eos ? SCRIPT_EOS : (uint8_t)s->text[r->made % len];
        tokens[ev.n++] = id;
        r->made++;
        if (eos) ev.finish = SL_FINISH_STOP;
        for (uint32_t i = 0; i < r->p.n_stop; i++)
            if (r->p.stop[i] == id) ev.finish = SL_FINISH_STOP;
        if (ev.finish == SL_FINISH_NONE && r->made == r->p.max_tokens) ev.finish = SL_FINISH_LENGTH;
        if (s->fail_after && r->made == s->fail_after) break;
    }
    pthread_mutex_lock(&e->lock);
    e->n_generated += ev.n;
    if (ev.finish != SL_FINISH_NONE) e->running--;
    if (cancelled) e->n_cancelled++;
    pthread_mutex_unlock(&e->lock);
    r->p.on_event(r->p.ctx, &ev);
    return ev.finish != SL_FINISH_NONE;
}

static void *script_thread(void *arg) {
    sl_engine *e = arg;
    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        if (!e->requests) {
            pthread_cond_wait(&e->wake, &e->lock);
            continue;
        }
        sl_script script = e->script;
        for (script_request *r = e->requests; r;) {
            bool cancelled = r->cancelled;
            pthread_mutex_unlock(&e->lock);
            bool last = script_step(e, &script, r, cancelled);
            pthread_mutex_lock(&e->lock);
            script_request *next = r->next;
            if (last) {
                script_request **at = &e->requests;
                while (*at != r) at = &(*at)->next;
                *at = next;
                sl_free(r);
            }
            r = next;
        }
        pthread_mutex_unlock(&e->lock);
        if (script.delay_us) usleep(script.delay_us);
        pthread_mutex_lock(&e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

static sl_engine *script_engine_create(void) {
    sl_engine *e = sl_alloc(1, sizeof *e);
    SL_ASSERT(e);
    e->script = (sl_script){.text = "Hello, world.", .per_event = 1};
    e->spec.vocab = SCRIPT_VOCAB;
    e->spec.max_position = 100000;
    e->spec.n_eos = 1;
    e->spec.eos[0] = SCRIPT_EOS;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    SL_ASSERT(pthread_create(&e->thread, NULL, script_thread, e) == 0);
    return e;
}

/* Waits until the nth request has come and none runs any more; false after a minute. */
static bool script_idle(sl_engine *e, uint64_t nth) {
    for (int i = 0; i < 60000; i++) {
        pthread_mutex_lock(&e->lock);
        bool idle = e->requests == NULL && e->next_id >= nth;
        pthread_mutex_unlock(&e->lock);
        if (idle) return true;
        usleep(1000);
    }
    return false;
}

static void script_engine_free(sl_engine *e) {
    SL_ASSERT(script_idle(e, 0));
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    sl_free(e);
}

/* Waits until n requests run; false after a minute. */
static inline bool script_busy(sl_engine *e, uint32_t n) {
    for (int i = 0; i < 60000; i++) {
        pthread_mutex_lock(&e->lock);
        bool busy = e->running == n;
        pthread_mutex_unlock(&e->lock);
        if (busy) return true;
        usleep(1000);
    }
    return false;
}

static inline uint64_t script_cancelled(sl_engine *e) {
    pthread_mutex_lock(&e->lock);
    uint64_t n = e->n_cancelled;
    pthread_mutex_unlock(&e->lock);
    return n;
}

/* Long conversations are not encoded before this is let go of. */
static atomic_bool script_hold;
static atomic_uint script_held, script_encoded;

static inline void script_wait(const atomic_bool *hold) {
    for (int i = 0; i < 20000 && atomic_load(hold); i++) usleep(1000);
}

/* How its chats answer. */
static sl_answer_style script_style = {.tools = SL_TOOLS_HERMES};
static bool script_opened; /* its prompts end with an opened thought */

sl_answer_style sl_chat_style(const sl_chat *chat) {
    (void)chat;
    return script_style;
}
sl_span sl_chat_source(const sl_chat *chat, bool of_tools) {
    static const char text[] = "{{ messages }}";
    (void)chat;
    return of_tools ? (sl_span){0} : (sl_span){(const uint8_t *)text, sizeof text - 1};
}
bool sl_chat_has_switch(const sl_chat *chat) {
    (void)chat;
    return script_style.thought != 0;
}
bool sl_chat_has_effort(const sl_chat *chat) {
    (void)chat;
    return false;
}

/* "role: content\n" of each message, then "assistant:". */
sl_status sl_chat_prompt(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, bool *opened, sl_err *err) {
    (void)chat;
    *opened = script_opened;
    sl_jbuf b = sl_jbuf_init();
    if (messages[0].content.len > 1000) {
        atomic_fetch_add(&script_held, 1);
        script_wait(&script_hold);
        atomic_fetch_add(&script_encoded, 1);
    }
    for (size_t i = 0; i < n; i++)
        sl_jbuf_fmt(&b, "%.*s: %.*s\n", (int)messages[i].role.len, (char *)messages[i].role.data,
                    (int)messages[i].content.len, (char *)messages[i].content.data);
    if (options.add_generation_prompt) sl_jbuf_fmt(&b, "assistant:");
    sl_status st =
        sl_tokenizer_encode(tok, (sl_span){(uint8_t *)b.data, b.len}, false, false, out, err);
    sl_jbuf_free(&b);
    return st;
}

/* The same as text, for answers that go on from the last message. */
sl_status sl_chat_render(const sl_chat *chat, const sl_chat_message *messages, size_t n,
                         sl_chat_options options, sl_chat_text *out, sl_err *err) {
    (void)chat, (void)options;
    sl_jbuf b = sl_jbuf_init();
    for (size_t i = 0; i < n; i++)
        sl_jbuf_fmt(&b, "%.*s: %.*s\n", (int)messages[i].role.len, (char *)messages[i].role.data,
                    (int)messages[i].content.len, (char *)messages[i].content.data);
    *out =
        (sl_chat_text){.bytes = b.data, .n_bytes = b.len, .parts = sl_alloc(1, sizeof *out->parts)};
    if (!b.ok || !out->parts) return sl_fail(err, SL_ERR_NOMEM, "scripted");
    out->parts[out->n_parts++] = (sl_text_part){{(uint8_t *)b.data, b.len}, false};
    return SL_OK;
}
void sl_chat_text_free(sl_chat_text *text) {
    sl_free(text->parts);
    sl_free(text->bytes);
    *text = (sl_chat_text){0};
}

/* Byte-level BPE without merges: id = byte; one special token ends the text. */
static sl_tokenizer *script_tokenizer(void) {
    sl_jbuf b = sl_jbuf_init();
    sl_err err = {0};
    sl_tokenizer *tok = NULL;
    sl_jbuf_fmt(&b, "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":256,\"content\":\"<|end|>\","
                    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,"
                    "\"normalized\":false,\"special\":true}],\"normalizer\":null,"
                    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                    "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
                    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,"
                    "\"trim_offsets\":true,\"use_regex\":true},"
                    "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (uint32_t byte = 0, extra = 256; byte < 256; byte++) {
        bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        uint32_t c = plain ? byte : extra++;
        char utf8[3] = {(char)c};
        size_t n = 1;
        if (c >= 0x80) {
            utf8[0] = (char)(0xC0 | c >> 6);
            utf8[1] = (char)(0x80 | (c & 63));
            n = 2;
        }
        if (byte) sl_jbuf_put(&b, ",", 1);
        sl_jbuf_string(&b, utf8, n);
        sl_jbuf_fmt(&b, ":%u", byte);
    }
    sl_jbuf_fmt(&b, "}}}");
    sl_status st = sl_tokenizer_parse("script", (sl_span){(uint8_t *)b.data, b.len},
                                      (sl_span){NULL, 0}, &tok, &err);
    if (st != SL_OK) printf("%s\n", err.msg);
    SL_ASSERT(st == SL_OK);
    sl_jbuf_free(&b);
    return tok;
}

/* receive_bytes: how much the kernel may hold for this client; 0: its own choice. */
static int http_connect_with(uint16_t port, int receive_bytes) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval limit = {.tv_sec = 10};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (receive_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    SL_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

static int http_connect(uint16_t port) {
    return http_connect_with(port, 0);
}

static void http_send(int fd, const char *bytes, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t did = send(fd, bytes + at, n - at, MSG_NOSIGNAL);
        if (did <= 0) return;
        at += (size_t)did;
    }
}

static void http_request(int fd, const char *method, const char *path, const char *headers,
                         const char *body) {
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", method,
                path, headers ? headers : "", body ? strlen(body) : 0, body ? body : "");
    http_send(fd, b.data, b.len);
    sl_jbuf_free(&b);
}

/* One answer; chunks are joined. */
typedef struct http_answer {
    int status; /* 0: none came */
    char head[2048];
    sl_jbuf body;
    bool whole; /* ended as HTTP says */
} http_answer;

static bool http_read_line(int fd, char *line, size_t cap) {
    size_t n = 0;
    for (char c; n + 1 < cap && recv(fd, &c, 1, 0) == 1;) {
        line[n++] = c;
        if (c == '\n') {
            line[n] = 0;
            return true;
        }
    }
    line[n] = 0;
    return false;
}

static bool http_read_bytes(int fd, sl_jbuf *out, size_t n) {
    char buf[4096];
    while (n > 0) {
        ssize_t got = recv(fd, buf, SL_MIN(n, sizeof buf), 0);
        if (got <= 0) return false;
        sl_jbuf_put(out, buf, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

static void http_answer_free(http_answer *a) {
    sl_jbuf_free(&a->body);
}

static http_answer http_read(int fd) {
    http_answer a = {.body = sl_jbuf_init()};
    char line[1024];
    size_t length = 0;
    bool chunked = false;
    while (http_read_line(fd, line, sizeof line)) {
        if (!strcmp(line, "\r\n")) break;
        if (!a.status) sscanf(line, "HTTP/1.1 %d", &a.status);
        if (!strncasecmp(line, "Content-Length:", 15)) length = strtoul(line + 15, NULL, 10);
        if (!strncasecmp(line, "Transfer-Encoding: chunked", 26)) chunked = true;
        strncat(a.head, line, sizeof a.head - strlen(a.head) - 1);
    }
    sl_jbuf_put(&a.body, "", 0);
    if (!chunked) a.whole = a.status && http_read_bytes(fd, &a.body, length);
    while (chunked && http_read_line(fd, line, sizeof line)) {
        size_t n = strtoul(line, NULL, 16);
        if (n && !http_read_bytes(fd, &a.body, n)) break;
        if (!http_read_line(fd, line, sizeof line)) break;
        a.whole = n == 0;
        if (n == 0) break;
    }
    return a;
}

/* A request on a connection of its own. */
static http_answer http_do(uint16_t port, const char *method, const char *path, const char *headers,
                           const char *body) {
    int fd = http_connect(port);
    http_request(fd, method, path, headers, body);
    http_answer a = http_read(fd);
    close(fd);
    return a;
}

#endif
