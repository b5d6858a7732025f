/* An answer that goes on from given words: the last message, the assistant's, is shown to the
 * template with a mark behind its content, and what the template writes from the mark on is cut
 * off. No rule of any template has to be known for that. */
#include "serve/server_int.h"

#include <sodium.h>
#include <stdio.h>

#define NONCE_BYTES 16u
#define MARK_BYTES                                                                                 \
    (2 * NONCE_BYTES + 1) /* digits, and what a template that trims contents takes                 \
                           */

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Where the last of the marks begins; SIZE_MAX: nowhere. */
static size_t find_mark(const sl_chat_text *t, const char *mark, size_t n) {
    size_t at = SIZE_MAX;
    const char *from = t->bytes, *end = t->bytes + t->n_bytes;
    for (const char *hit; from < end && (hit = memmem(from, (size_t)(end - from), mark, n));) {
        at = (size_t)(hit - t->bytes);
        from = hit + 1;
    }
    return at;
}

/* The text ends at `at`; with `trims`, before white space that is the user's there. */
static void cut(sl_chat_text *t, size_t at, bool trims) {
    while (t->n_parts) {
        sl_text_part *last = &t->parts[t->n_parts - 1];
        size_t begin = (size_t)((const char *)last->text.data - t->bytes);
        while (trims && !last->parse_special && at > begin && is_space(t->bytes[at - 1])) at--;
        trims = trims && at > begin;
        last->text.len = at > begin ? at - begin : 0;
        if (last->text.len) return;
        t->n_parts--;
    }
}

int sl_call_given_thought(const sl_call *call) {
    const char *open, *close;
    const sl_api_params *p = &call->params;
    if (!sl_answer_thought_marks(&call->server->style, &open, &close)) return 0;
    sl_span text = p->messages[p->n_messages - 1].content;
    size_t n = strlen(open), m = strlen(close);
    bool words = false;
    for (size_t at = text.len; at-- > 0;) {
        words |= !is_space((char)text.data[at]);
        if (text.len - at >= n && !memcmp(text.data + at, open, n)) return 1;
        if (text.len - at >= m && !memcmp(text.data + at, close, m)) return -1;
    }
    return words ? -1 : 0;
}

/* Whether the answer goes on inside a thought. */
static bool is_opened(const sl_call *call, const sl_chat_text *t) {
    int given = sl_call_given_thought(call);
    const sl_text_part *last = t->n_parts ? &t->parts[t->n_parts - 1] : NULL;
    if (given != 0) return given > 0;
    return last && last->parse_special && sl_answer_is_opened(&call->server->style, last->text);
}

sl_status sl_call_go_on(sl_call *call, sl_chat_options options, const char **param, sl_err *err) {
    const sl_server *s = call->server;
    sl_api_params *p = &call->params;
    sl_chat_message *last = &p->messages[p->n_messages - 1];
    sl_span content = last->content;
    sl_chat_text text = {0};
    uint8_t nonce[NONCE_BYTES];
    char mark[MARK_BYTES + 1];
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    randombytes_buf(nonce, sizeof nonce);
    sodium_bin2hex(mark, sizeof mark, nonce, sizeof nonce);
    snprintf(mark + MARK_BYTES - 1, 2, "\t");
    sl_jbuf marked = sl_jbuf_init();
    sl_jbuf_put(&marked, (const char *)content.data, content.len);
    sl_jbuf_put(&marked, mark, MARK_BYTES);
    if (!marked.ok) return sl_fail(err, SL_ERR_NOMEM, "a message of %zu bytes", content.len);
    last->content = (sl_span){(const uint8_t *)marked.data, marked.len};
    sl_status st = sl_chat_render(s->o.chat, p->messages, p->n_messages, options, &text, err);
    last->content = content;
    size_t at = st == SL_OK ? find_mark(&text, mark, MARK_BYTES - 1) : SIZE_MAX;
    if (st == SL_OK && at == SIZE_MAX) {
        *param = "continue_final_message";
        st = sl_fail(err, SL_ERR_ARG,
                     "continue_final_message: this model's chat template does not show the end of "
                     "the last message as it is");
    }
    if (st == SL_OK) {
        size_t behind = at + MARK_BYTES - 1;
        cut(&text, at, behind == text.n_bytes || text.bytes[behind] != mark[MARK_BYTES - 1]);
        call->opened = is_opened(call, &text);
        st = sl_tokenizer_encode_parts(s->o.tokenizer, text.parts, text.n_parts,
                                       options.add_special, &call->prompt[0], err);
    }
    sl_chat_text_free(&text);
    sl_jbuf_free(&marked);
    return st;
}
