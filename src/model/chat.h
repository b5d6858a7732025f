/* Chat templates: a conversation as the text a model was trained on.
 *
 * Published templates are Jinja programs. They are recognised by the SHA-256 of their exact text,
 * each a row of one table in chat.c; a template without a row is refused by name, never guessed.
 * What the template writes is literal (its special tokens count); what users wrote is not, so a
 * message that spells out <|im_end|> stays text. Templates that raise an error for a conversation
 * (roles that do not take turns) refuse it here too.
 * Thread: owner for open and free; any for the rest. */
#ifndef SL_MODEL_CHAT_H
#define SL_MODEL_CHAT_H

#include "model/tokenizer.h"

typedef struct sl_chat sl_chat;

/* One message; borrowed. role: system, user, assistant or tool, as far as the template has it. */
typedef struct sl_chat_message {
    sl_span role;
    sl_span content;
} sl_chat_message;

typedef struct sl_chat_options {
    bool add_generation_prompt; /* end with the opening of an assistant message */
    bool no_thinking;           /* for templates with a switch for it; others ignore it */
} sl_chat_options;

/* A rendered conversation: parts in order, their bytes owned by `bytes`. */
typedef struct sl_chat_text {
    sl_text_part *parts;
    size_t n_parts;
    char *bytes;
    size_t n_bytes;
} sl_chat_text;

/* Finds the template of a model: tokenizer.chat_template of a GGUF file; of a folder,
 * chat_template.jinja, else "chat_template" in tokenizer_config.json. SL_ERR_NOTFOUND: the folder
 * has none; SL_ERR_UNSUPPORTED: not in the table (err names the SHA-256), or one that writes
 * bos_token and eos_token, with others than <s> and
 * </s> in the model. */
sl_status sl_chat_open(const char *folder, sl_chat **out, sl_err *err) SL_MUST_CHECK;

/* The same for a template's text; `name` stands for the file in errors. */
sl_status sl_chat_recognise(const char *name, sl_span template_text, sl_chat **out,
                            sl_err *err) SL_MUST_CHECK;

/* The row for a template known by its SHA-256 in lower-case hex, or NULL. Static, not to be freed.
 */
const sl_chat *sl_chat_find(const char *sha256_hex);

void sl_chat_free(sl_chat *chat); /* NULL-safe */

/* Name of the table's row, static. */
const char *sl_chat_name(const sl_chat *chat);

/* Renders n messages. SL_ERR_ARG: no message, a role the template does not take, or bytes that are
 * not UTF-8; SL_ERR_LIMIT: longer than SL_TOKENIZER_MAX_TEXT. Free with sl_chat_text_free. */
sl_status sl_chat_render(const sl_chat *chat, const sl_chat_message *messages, size_t n,
                         sl_chat_options options, sl_chat_text *out, sl_err *err) SL_MUST_CHECK;
void sl_chat_text_free(sl_chat_text *text);

/* Render and encode: the ids of a prompt, appended to out. */
sl_status sl_chat_encode(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, sl_err *err) SL_MUST_CHECK;

#endif
