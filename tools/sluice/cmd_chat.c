/* `sluice run MODEL --chat` without a prompt: a conversation on the terminal, or from a pipe.
 *
 * Answers go to stdout, everything else to stderr. Ctrl-C ends an answer, not the program: SIGINT
 * is taken by the thread that reads and waits, every other thread and child has it blocked. */
#include "cmd.h"
#include "line_edit.h"

#include "base/clock.h"
#include "text/answer.h"

#include <errno.h>
#include <pthread.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MS  50u        /* between looks at Ctrl-C while an answer comes */
#define MAX_TEXT (1u << 20) /* bytes of one message */

static const char help[] =
    "  /clear    forget the conversation (or /reset)\n"
    "  /undo     forget the last message and its answer\n"
    "  /history  show the conversation\n"
    "  /exit     leave (or /quit, end of input, Ctrl-D)\n"
    "  /help     this text\n"
    "A line that ends in \\ goes on in the next one; \"\"\" alone on a line begins "
    "and ends a text of many lines.\n"
    "Pasted text may have many lines, too, and Alt-Enter begins one. Up and down bring back "
    "earlier "
    "lines.\n"
    "Ctrl-C stops an answer.\n";

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig) {
    (void)sig;
    interrupted = 1;
}

/* An answer under way; tokens arrive on the engine's thread. */
typedef struct answer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    sl_answer *said;     /* what is kept is the answer alone */
    bool shows_thoughts; /* on stderr */
    char *text;
    size_t len, cap;
    sl_token_times times;
    uint32_t n_found; /* tokens of the prompt whose rows were there */
    sl_finish finish;
    sl_status status;
    char message[256];
} answer;

typedef struct session {
    const sl_options *o;
    const sl_deployment *d;
    sl_engine *engine;
    const sl_tokenizer *tok;
    const sl_chat *chat;
    sl_chat_message *message; /* contents are owned */
    size_t n, cap;
    bool tty;
    sl_line_edit *edit; /* NULL: lines are read as they come */
    const char *line;   /* the last one */
    char *buffer;       /* of getline */
    size_t buffer_cap;
} session;

/* ---- answers ---- */

/* Under the lock. */
static void add_text(answer *a, const char *text, size_t n) {
    if (n == 0) return;
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    if (a->cap - a->len < n) {
        size_t cap = SL_MAX(2 * a->cap, a->len + n);
        char *grown = sl_grow(a->text, a->cap, cap, 1);
        if (!grown) {
            a->status = SL_ERR_NOMEM;
            return;
        }
        a->text = grown;
        a->cap = cap;
    }
    memcpy(a->text + a->len, text, n);
    a->len += n;
}

static void on_answer(void *ctx, const sl_answer_event *ev) {
    answer *a = ctx;
    if (ev->kind == SL_ANSWER_TEXT)
        add_text(a, (const char *)ev->text.data, ev->text.len);
    else if (ev->kind == SL_ANSWER_REASONING && a->shows_thoughts)
        fwrite(ev->text.data, 1, ev->text.len, stderr);
}

static void on_event(void *ctx, const sl_request_event *ev) {
    answer *a = ctx;
    pthread_mutex_lock(&a->lock);
    if (ev->n) sl_token_times_add(&a->times, ev);
    a->n_found = ev->n_found;
    for (uint32_t i = 0; i < ev->n; i++)
        if (sl_answer_push(a->said, ev->tokens[i]) != SL_OK) a->status = SL_ERR_NOMEM;
    if (ev->finish != SL_FINISH_NONE) {
        if (sl_answer_end(a->said) != SL_OK) a->status = SL_ERR_NOMEM;
        a->finish = ev->finish;
        if (ev->status != SL_OK) a->status = ev->status;
        snprintf(a->message, sizeof a->message, "%s", ev->message ? ev->message : "");
        pthread_cond_signal(&a->changed);
    }
    pthread_mutex_unlock(&a->lock);
}

static void await(sl_engine *e, answer *a, uint64_t id) {
    bool cancelled = false;
    pthread_mutex_lock(&a->lock);
    while (a->finish == SL_FINISH_NONE) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&a->changed, &a->lock, &until);
        if (!interrupted || cancelled || a->finish != SL_FINISH_NONE) continue;
        cancelled = true;
        pthread_mutex_unlock(&a->lock); /* the engine's thread may be waiting for it */
        sl_engine_cancel(e, id);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
}

static void print_end(const answer *a, size_t n_prompt) {
    const char *why = interrupted                     ? "; stopped"
                      : a->finish == SL_FINISH_LENGTH ? "; cut off, see --max-tokens"
                                                      : "";
    char found[32] = "";
    if (a->n_found) snprintf(found, sizeof found, ", %u of them cached", a->n_found);
    fprintf(stderr, "[%zu prompt tokens%s; %llu tokens, %.1f per second%s]\n", n_prompt, found,
            (unsigned long long)a->times.n, sl_token_times_rate(&a->times), why);
}

/* Answers the conversation; the text is moved to *text. */
static sl_status make_answer(session *s, char **text, size_t *len, sl_err *err) {
    answer a = {.lock = PTHREAD_MUTEX_INITIALIZER,
                .changed = PTHREAD_COND_INITIALIZER,
                .shows_thoughts = s->tty};
    sl_answer_options as = {.style = sl_answer_style_with(sl_chat_style(s->chat), s->tok),
                            .event = on_answer,
                            .ctx = &a};
    sl_ids ids = {0};
    uint64_t id = 0;
    uint32_t context = s->d->opts.plan.context;
    const sl_chat_options how = {.add_generation_prompt = true};
    sl_status st = sl_chat_prompt(s->chat, s->tok, s->message, s->n, how, &ids, &as.opened, err);
    if (st == SL_OK) st = sl_answer_create(s->tok, &as, &a.said, err);
    if (st == SL_OK && ids.len >= context)
        st = sl_fail(err, SL_ERR_LIMIT,
                     "the conversation has %zu tokens, the context %u; /clear begins a new one",
                     ids.len, context);
    if (st != SL_OK) goto out;
    const sl_request_params p = {.prompt = ids.data,
                                 .n_prompt = (uint32_t)ids.len,
                                 .max_tokens =
                                     SL_MIN(s->o->max_tokens, context - (uint32_t)ids.len),
                                 .sampling = sl_deploy_sampling(s->o, &s->d->gen),
                                 .ignore_eos = s->o->ignore_eos,
                                 .shares = true,
                                 .on_event = on_event,
                                 .ctx = &a};
    interrupted = 0;
    a.times.submitted_us = sl_now_ns() / 1000;
    st = sl_engine_submit(s->engine, &p, &id, err);
    if (st != SL_OK) goto out;
    await(s->engine, &a, id);
    fputc('\n', stdout);
    fflush(stdout);
    if (a.status != SL_OK) {
        st = sl_fail(err, a.status, "%s", a.message[0] ? a.message : sl_status_text(a.status));
        goto out;
    }
    print_end(&a, ids.len);
    *text = a.text;
    *len = a.len;
    a.text = NULL;
out:
    interrupted = 0;
    sl_answer_free(a.said);
    sl_free(a.text);
    sl_ids_free(&ids);
    return st;
}

/* ---- the conversation ---- */

static void drop_last(session *s) {
    sl_free((void *)(uintptr_t)s->message[--s->n].content.data);
}

/* Takes `text`. */
static sl_status add_message(session *s, const char *role, char *text, size_t len, sl_err *err) {
    if (s->n == s->cap) {
        size_t cap = SL_MAX(2 * s->cap, 8u);
        sl_chat_message *grown = sl_grow(s->message, s->cap, cap, sizeof *grown);
        if (!grown) {
            sl_free(text);
            return sl_fail(err, SL_ERR_NOMEM, "message of %zu bytes", len);
        }
        s->message = grown;
        s->cap = cap;
    }
    s->message[s->n++] = (sl_chat_message){.role = {(const uint8_t *)role, strlen(role)},
                                           .content = {(const uint8_t *)text, len}};
    return SL_OK;
}

/* One turn: what the user said is kept only with its answer. */
static sl_status turn(session *s, char *text, size_t len) {
    sl_err err = {0};
    char *said = NULL;
    size_t n = 0;
    sl_status st = add_message(s, "user", text, len, &err);
    if (st == SL_OK) {
        st = make_answer(s, &said, &n, &err);
        if (st == SL_OK) st = add_message(s, "assistant", said, n, &err);
        if (st != SL_OK) drop_last(s);
    }
    if (st != SL_OK) fprintf(stderr, "sluice run: %s\n", err.msg);
    return st;
}

/* ---- input ---- */

typedef enum input { INPUT_LINE, INPUT_NONE, INPUT_END } input;

static void mask_interrupt(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(how, &set, NULL);
}

/* Waits until a terminal has a line (it hands out one at a time); false: interrupted. Ctrl-C is let
 * through only while ppoll waits, so none can fall between the prompt and the wait. */
static bool await_line(const session *s, const char *prompt) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    sigset_t open;
    mask_interrupt(SIG_BLOCK);
    pthread_sigmask(SIG_BLOCK, NULL, &open);
    sigdelset(&open, SIGINT);
    if (s->tty) fprintf(stderr, "%s", prompt);
    bool ready = !s->tty || ppoll(&in, 1, NULL, &open) >= 0 || errno != EINTR;
    mask_interrupt(SIG_UNBLOCK);
    return ready;
}

static input edit_line(session *s, const char *prompt, size_t *len) {
    sl_line_result r = sl_line_edit_read(s->edit, prompt, &s->line, len);
    if (r == SL_LINE_DONE) return INPUT_LINE;
    fprintf(stderr, r == SL_LINE_INTERRUPTED ? "\n(Ctrl-D or /exit leaves)\n" : "\n");
    return r == SL_LINE_INTERRUPTED ? INPUT_NONE : INPUT_END;
}

/* s->line without its end; NONE: interrupted. */
static input read_line(session *s, const char *prompt, size_t *len) {
    if (s->edit) return edit_line(s, prompt, len);
    bool ready = await_line(s, prompt);
    errno = 0;
    interrupted = 0;
    ssize_t n = ready ? getline(&s->buffer, &s->buffer_cap, stdin) : -1;
    if (n < 0) {
        bool again = !ready || errno == EINTR;
        clearerr(stdin);
        if (s->tty) fprintf(stderr, again ? "\n(Ctrl-D or /exit leaves)\n" : "\n");
        return again ? INPUT_NONE : INPUT_END;
    }
    while (n > 0 && (s->buffer[n - 1] == '\n' || s->buffer[n - 1] == '\r')) n--;
    s->buffer[n] = '\0';
    s->line = s->buffer;
    *len = (size_t)n;
    return INPUT_LINE;
}

/* Appends the line and '\n' to a growing text. */
static bool join(char **text, size_t *len, const char *line, size_t n) {
    if (*len + n + 1 > MAX_TEXT) {
        fprintf(stderr, "sluice run: a message has at most %u bytes\n", MAX_TEXT);
        return false;
    }
    char *grown = sl_grow(*text, *len, *len + n + 1, 1);
    if (!grown) {
        fprintf(stderr, "sluice run: out of memory\n");
        return false;
    }
    memcpy(grown + *len, line, n);
    grown[*len + n] = '\n';
    *text = grown;
    *len += n + 1;
    return true;
}

/* A message of one or more lines to *text, without its last '\n'. */
static input read_message(session *s, char **text, size_t *len) {
    static const char quotes[] = "\"\"\"";
    size_t n = 0;
    bool block = false, more = true;
    *text = NULL;
    *len = 0;
    for (const char *prompt = "> "; more; prompt = "... ") {
        input in = read_line(s, prompt, &n);
        if (in == INPUT_END && *len > 0) break; /* what is there is the message */
        if (in != INPUT_LINE) goto drop;
        if (strcmp(s->line, quotes) == 0 && (block || *len == 0)) {
            more = block = !block;
            continue;
        }
        more = block || (n > 0 && s->line[n - 1] == '\\');
        if (!join(text, len, s->line, more && !block ? n - 1 : n)) goto drop;
        continue;
    drop:
        sl_free(*text);
        *text = NULL;
        return in == INPUT_END ? INPUT_END : INPUT_NONE;
    }
    if (*len > 0) (*len)--;
    return INPUT_LINE;
}

static void show_conversation(const session *s) {
    for (size_t i = 0; i < s->n; i++) {
        const sl_chat_message *m = &s->message[i];
        fprintf(stderr, "%.*s: %.*s\n", (int)m->role.len, (const char *)m->role.data,
                (int)m->content.len, (const char *)m->content.data);
    }
    if (s->n == 0) fprintf(stderr, "(nothing was said yet)\n");
}

/* A message leaves with its answer. */
static void forget(session *s, size_t n) {
    if (s->n == 0) fprintf(stderr, "(nothing was said yet)\n");
    while (n-- > 0 && s->n > 0) drop_last(s);
}

/* Whether the text was a command; *leave: it was /exit. */
static bool is_command(session *s, const char *text, size_t len, bool *leave) {
    static const struct {
        const char *name;
        enum { EXIT, CLEAR, UNDO, HISTORY, HELP, UNKNOWN } what;
    } commands[] = {{"/exit", EXIT}, {"/quit", EXIT},       {"/clear", CLEAR}, {"/reset", CLEAR},
                    {"/undo", UNDO}, {"/history", HISTORY}, {"/help", HELP}};
    if (len == 0 || text[0] != '/' || memchr(text, '\n', len)) return false;
    int what = UNKNOWN;
    for (size_t i = 0; i < SL_LEN(commands); i++)
        if (len == strlen(commands[i].name) && !memcmp(text, commands[i].name, len))
            what = commands[i].what;
    if (what == EXIT) {
        *leave = true;
    } else if (what == CLEAR) {
        while (s->n > 0) drop_last(s);
        fprintf(stderr, "(a new conversation)\n");
    } else if (what == UNDO) {
        forget(s, 2);
    } else if (what == HISTORY) {
        show_conversation(s);
    } else if (what == HELP) {
        fputs(help, stderr);
    } else {
        fprintf(stderr, "unknown command %.*s; /help lists them\n", (int)SL_MIN(len, 40u), text);
    }
    return true;
}

static sl_status converse(session *s) {
    bool leave = false;
    while (!leave) {
        char *text;
        size_t len;
        input in = read_message(s, &text, &len);
        if (in == INPUT_END) return SL_OK;
        if (in == INPUT_NONE) continue;
        bool command = len == 0 || is_command(s, text, len, &leave);
        sl_status st = SL_OK;
        if (command)
            sl_free(text);
        else
            st = turn(s, text, len);
        if (st == SL_ERR_WORKER_LOST || st == SL_ERR_NOMEM) return st;
    }
    return SL_OK;
}

sl_status sl_chat_session(const sl_options *o, const sl_deployment *d, const sl_tokenizer *tok,
                          sl_err *err) {
    session s = {.o = o, .d = d, .tok = tok, .tty = isatty(STDIN_FILENO) == 1};
    sl_chat *chat = NULL;
    const struct sigaction act = {.sa_handler = on_interrupt}; /* no SA_RESTART: reads end */
    sl_status st = sl_deploy_chat(o, &chat, err);
    if (st != SL_OK) return st;
    s.chat = chat;
    mask_interrupt(SIG_BLOCK); /* threads and children inherit it */
    st = sl_deploy_start(o, d, &s.engine, err);
    if (st == SL_OK) {
        sigaction(SIGINT, &act, NULL);
        mask_interrupt(SIG_UNBLOCK);
        s.edit = sl_line_edit_open(STDIN_FILENO, STDERR_FILENO);
        if (s.tty) fprintf(stderr, "/help lists commands\n");
        st = converse(&s);
        if (st != SL_OK) sl_fail(err, st, "the conversation ended");
        mask_interrupt(SIG_BLOCK);
    }
    sl_line_edit_close(s.edit);
    st = sl_generate_end(s.engine, st, err);
    mask_interrupt(SIG_UNBLOCK);
    while (s.n > 0) drop_last(&s);
    sl_free(s.message);
    free(s.buffer);
    sl_chat_free(chat);
    return st;
}
