/* sluice run: one prompt, or a talk, in this process. */
#include "cmd.h"

#include "base/mem.h"
#include "text/chat.h"

#include <string.h>
#include <unistd.h>

#define PROMPT_MOST (16u << 20) /* bytes, from stdin */

typedef struct printer {
    const sl_tokenizer *tok;
    sl_detok detok;
    sl_answer *answer; /* of a chat: reasoning goes to stderr */
    sl_status st;
    bool quiet;
    sl_status_line *line; /* until the first text */
} printer;

static void print_text(printer *p, FILE *to, const char *text, size_t n) {
    if (p->quiet || n == 0) return;
    sl_status_line_hide(p->line);
    fwrite(text, 1, n, to);
    fflush(to);
}

static void on_answer(void *ctx, const sl_answer_event *ev) {
    FILE *to = ev->kind == SL_ANSWER_TEXT ? stdout : stderr;
    print_text(ctx, to, (const char *)ev->text.data, ev->text.len);
}

static void print_token(void *ctx, uint32_t id) {
    printer *p = ctx;
    char text[SL_DETOK_MAX_OUT];
    if (!p->answer)
        print_text(p, stdout, text, sl_detok_push(&p->detok, p->tok, id, true, text));
    else if (p->st == SL_OK)
        p->st = sl_answer_push(p->answer, id);
}

/* A prompt from stdin, without the newline at its end. */
static sl_status read_prompt(char **text, size_t *len, sl_err *err) {
    size_t cap = 0, n = 0;
    char *data = NULL;
    do {
        if (n == PROMPT_MOST) {
            sl_free(data);
            return sl_fail(err, SL_ERR_LIMIT, "stdin: the prompt is longer than %u bytes",
                           PROMPT_MOST);
        }
        if (n == cap) {
            size_t more = SL_MIN(SL_MAX(2 * cap, 65536u), PROMPT_MOST);
            char *grown = sl_grow(data, cap, more, 1);
            if (!grown) {
                sl_free(data);
                return sl_fail(err, SL_ERR_NOMEM, "stdin: prompt of more than %zu bytes", n);
            }
            data = grown;
            cap = more;
        }
        n += fread(data + n, 1, cap - n, stdin);
    } while (!feof(stdin) && !ferror(stdin));
    sl_status st = SL_OK;
    if (ferror(stdin)) st = sl_fail(err, SL_ERR_IO, "stdin: cannot be read");
    if (st == SL_OK && n > 0 && data[n - 1] == '\n') n--;
    if (st == SL_OK && n == 0)
        st = sl_fail(err, SL_ERR_ARG, "--prompt (-p) or --ids is missing, and stdin is empty");
    *text = data;
    *len = n;
    return st;
}

static sl_status chat_prompt(const sl_options *o, sl_span text, const sl_tokenizer *tok,
                             sl_ids *ids, sl_answer_options *answer, sl_err *err) {
    sl_chat *chat = NULL;
    const sl_chat_message user = {.role = {(const uint8_t *)"user", 4}, .content = text};
    const sl_chat_options how = {.add_generation_prompt = true};
    sl_status st = sl_deploy_chat(o, &chat, err);
    if (st == SL_OK) st = sl_chat_prompt(chat, tok, &user, 1, how, ids, &answer->opened, err);
    if (st == SL_OK) answer->style = sl_chat_style(chat);
    sl_chat_free(chat);
    return st;
}

static sl_status make_prompt(const sl_options *o, const sl_tokenizer *tok, uint32_t vocab,
                             sl_ids *ids, sl_answer_options *answer, sl_err *err) {
    if (o->ids[0] && o->prompt[0])
        return sl_fail(err, SL_ERR_ARG, "--ids and --prompt exclude each other");
    if (o->ids[0]) return sl_ids_parse(o->ids, vocab, ids, err);
    char *read = NULL;
    size_t len = strlen(o->prompt);
    sl_status st = SL_OK;
    if (strcmp(o->prompt, "-") == 0 || (!o->prompt[0] && !isatty(STDIN_FILENO)))
        st = read_prompt(&read, &len, err);
    else if (!o->prompt[0])
        st = sl_fail(err, SL_ERR_ARG, "--prompt (-p) or --ids is missing");
    const sl_span text = {(const uint8_t *)(read ? read : o->prompt), len};
    if (st == SL_OK && o->chat)
        st = chat_prompt(o, text, tok, ids, answer, err);
    else if (st == SL_OK)
        st = sl_tokenizer_encode(tok, text, true, true, ids, err);
    sl_free(read);
    return st;
}

static void print_ids(const char *key, const sl_ids *ids) {
    printf("\"%s\": [", key);
    for (size_t i = 0; i < ids->len; i++) printf("%s%u", i ? ", " : "", ids->data[i]);
    printf("], ");
}

static void print_json(const sl_tokenizer *tok, const sl_ids *prompt, const sl_generation *g) {
    char *text = NULL;
    size_t len = 0;
    sl_err err;
    printf("{");
    print_ids("prompt_ids", prompt);
    print_ids("ids", &g->ids);
    printf("\"text\": ");
    if (tok && sl_tokenizer_decode(tok, g->ids.data, g->ids.len, true, &text, &len, &err) == SL_OK)
        sl_print_json_string(stdout, text, len);
    else
        printf("null");
    sl_free(text);
    const sl_token_times *t = &g->times;
    printf(", \"finish\": \"%s\", \"timings\": {\"prompt_n\": %zu, \"cached_n\": %u, \"ttft_ms\": "
           "%.3f, \"n\": %zu, "
           "\"decode_ms\": %.3f, \"tokens_per_s\": %.2f}}\n",
           g->finish == SL_FINISH_LENGTH ? "length" : "stop", prompt->len, g->n_found,
           (double)(t->first_us - t->submitted_us) / 1e3, g->ids.len,
           (double)(t->last_us - t->first_us) / 1e3, sl_token_times_rate(t));
}

static sl_status run(const sl_options *o, const sl_deployment *d, sl_tokenizer *tok, sl_ids *prompt,
                     sl_answer_options *answer, sl_err *err) {
    sl_engine *e = NULL;
    sl_generation g = {0};
    /* A plain prompt is continued: a first space belongs to it. */
    printer p = {.tok = tok, .detok = {.started = !o->chat}, .quiet = o->json || !tok};
    sl_status st = SL_OK;
    if (o->chat && tok) {
        answer->style = sl_answer_style_with(answer->style, tok);
        answer->event = on_answer;
        answer->ctx = &p;
        st = sl_answer_create(tok, answer, &p.answer, err);
    }
    if (st == SL_OK) st = sl_deploy_start(o, d, &e, err);
    if (st != SL_OK) {
        sl_answer_free(p.answer);
        return st;
    }
    const sl_generate_opts go = {.prompt = prompt->data,
                                 .n_prompt = (uint32_t)prompt->len,
                                 .max_tokens = o->max_tokens,
                                 .sampling = sl_deploy_sampling(o, &d->gen),
                                 .ignore_eos = o->ignore_eos,
                                 .shares = o->kv_disk[0],
                                 .on_token = tok ? print_token : NULL,
                                 .ctx = &p};
    p.line = sl_status_line_start(o, e);
    st = sl_generate(e, &go, &g, 1, err);
    sl_status_line_stop(p.line);
    st = sl_generate_end(e, st, err);
    if (st == SL_OK && o->json) print_json(tok, prompt, &g);
    if (st == SL_OK && !o->json) {
        char rest[SL_DETOK_MAX_OUT];
        if (p.answer && p.st == SL_OK) p.st = sl_answer_end(p.answer);
        size_t n = tok && !p.answer ? sl_detok_flush(&p.detok, rest) : 0;
        fwrite(rest, 1, n, stdout);
        fputc('\n', stdout);
        char found[32] = "";
        if (g.n_found) snprintf(found, sizeof found, ", %u of them cached", g.n_found);
        fprintf(stderr,
                "[%zu prompt tokens%s, first token after %.0f ms; %zu tokens, %.1f per second]\n",
                prompt->len, found, (double)(g.times.first_us - g.times.submitted_us) / 1e3,
                g.ids.len, sl_token_times_rate(&g.times));
    }
    if (st == SL_OK && p.st != SL_OK) st = sl_fail(err, p.st, "the text of the answer");
    sl_answer_free(p.answer);
    sl_generation_free(&g);
    return st;
}

int cmd_run(const sl_options *o) {
    sl_err err = {0};
    sl_deployment d = {0};
    sl_tokenizer *tok = NULL;
    sl_ids prompt = {0};
    sl_answer_options answer = {0};
    sl_deploy_setup_process(o);
    sl_status st = sl_deploy_prepare(o, strcmp(o->transport, "auto") != 0, 1, &d, &err);
    if (st == SL_OK) {
        st = sl_tokenizer_open(o->arg[0], &tok, &err);
        if (st == SL_ERR_NOTFOUND && o->ids[0]) st = SL_OK; /* ids need no tokenizer */
    }
    bool talk = o->chat && !o->prompt[0] && !o->ids[0];
    if (st == SL_OK && talk && o->json)
        st = sl_fail(&err, SL_ERR_ARG, "--json needs --prompt (-p) or --ids");
    if (st == SL_OK && talk) st = sl_chat_session(o, &d, tok, &err);
    if (st == SL_OK && !talk) st = make_prompt(o, tok, d.spec.vocab, &prompt, &answer, &err);
    if (st == SL_OK && !talk) st = run(o, &d, tok, &prompt, &answer, &err);
    sl_ids_free(&prompt);
    sl_tokenizer_free(tok);
    sl_deploy_free(&d);
    return st == SL_OK ? 0 : sl_cmd_fail("run", &err);
}
