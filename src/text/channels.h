/* Channels of an answer in the harmony format (gpt-oss): a message is
 * <|start|>role<|channel|>name<|message|>text<|end|>, and an answer begins after the role. What is
 * in the channel "final" is the answer; other channels hold what led to it. Roles, names and
 * recipients are shown to nobody. Ids come from a model, so any order of them is fine. A tokenizer
 * without these four special tokens has one channel, the answer. Thread: owner. */
#ifndef SL_TEXT_CHANNELS_H
#define SL_TEXT_CHANNELS_H

#include "text/tokenizer.h"

typedef enum sl_channel_kind {
    SL_CHANNEL_ANSWER,
    SL_CHANNEL_REASONING,
    SL_CHANNEL_HEADER, /* markers and what is between them and a text */
} sl_channel_kind;

typedef struct sl_channels {
    bool on;
    int64_t start, channel, message, end; /* ids of the markers */
    sl_channel_kind kind;                 /* of what comes next */
    bool naming;                          /* what comes next is the name of a channel */
    uint32_t n_name;
    char name[16]; /* of the channel; a longer one is none that is known */
} sl_channels;

/* What follows an answer's generation prompt: text before any marker is answer. */
sl_channels sl_channels_begin(const sl_tokenizer *tok);

/* Where the text of the token belongs. `id` may be any number. */
sl_channel_kind sl_channels_push(sl_channels *c, const sl_tokenizer *tok, uint32_t id);

#endif
