/* Channels of answers: reasoning apart from what is said. */
#include "text/channels.h"

#include <string.h>

static int64_t marker(const sl_tokenizer *tok, const char *text) {
    int64_t id = sl_tokenizer_find(tok, text);
    return id >= 0 && sl_tokenizer_is_special(tok, (uint32_t)id) ? id : -1;
}

sl_channels sl_channels_begin(const sl_tokenizer *tok) {
    sl_channels c = {.start = marker(tok, "<|start|>"),
                     .channel = marker(tok, "<|channel|>"),
                     .message = marker(tok, "<|message|>"),
                     .end = marker(tok, "<|end|>")};
    c.on = c.start >= 0 && c.channel >= 0 && c.message >= 0 && c.end >= 0;
    return c;
}

/* A name may be followed by a recipient: "commentary to=functions.f". */
static bool is_final(const sl_channels *c) {
    static const char name[] = "final";
    size_t n = sizeof name - 1;
    return c->n_name == 0 ||
           (c->n_name >= n && c->n_name <= sizeof c->name && memcmp(c->name, name, n) == 0 &&
            (c->n_name == n || c->name[n] == ' '));
}

static void add_name(sl_channels *c, sl_span piece) {
    for (size_t i = 0; i < piece.len; i++) {
        if (c->n_name < sizeof c->name) c->name[c->n_name] = (char)piece.data[i];
        if (c->n_name <= sizeof c->name) c->n_name++;
    }
}

sl_channel_kind sl_channels_push(sl_channels *c, const sl_tokenizer *tok, uint32_t id) {
    if (!c->on) return SL_CHANNEL_ANSWER;
    if (id == c->message) {
        c->kind = is_final(c) ? SL_CHANNEL_ANSWER : SL_CHANNEL_REASONING;
        return SL_CHANNEL_HEADER;
    }
    if (id == c->channel || id == c->start || id == c->end) {
        c->kind = SL_CHANNEL_HEADER;
        c->naming = id == c->channel;
        c->n_name = 0;
        return SL_CHANNEL_HEADER;
    }
    if (c->kind == SL_CHANNEL_HEADER && c->naming && id < sl_tokenizer_vocab_size(tok) &&
        !sl_tokenizer_is_special(tok, id))
        add_name(c, sl_tokenizer_piece(tok, id));
    return c->kind;
}
