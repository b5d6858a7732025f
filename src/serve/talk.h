/* Writes the messages of a chat (params_messages.c) from turns that another dialect has in other
 * pieces: what one party says, thinks, calls and gets back is collected until another speaks. Pure.
 * Thread: owner. */
#ifndef SL_SERVE_TALK_H
#define SL_SERVE_TALK_H

#include "serve/jbuf.h"

typedef struct sl_talk {
    sl_jbuf *out;
    size_t n;          /* messages that are written */
    const char *role;  /* static: of the one that is collected; NULL: none */
    sl_jbuf id;        /* of the call that it answers, as JSON */
    sl_jbuf parts;     /* its texts, as parts */
    sl_jbuf reasoning; /* its thoughts */
    sl_jbuf calls;     /* its calls */
} sl_talk;

/* "messages":[; ends with sl_talk_close, whatever happens. */
void sl_talk_open(sl_talk *t, sl_jbuf *out);
/* ]; false: no memory. */
bool sl_talk_close(sl_talk *t);

/* A new message begins, in any case. `call_id` is that of the call it answers, or absent. */
void sl_talk_begin(sl_talk *t, const char *role, sl_json call_id);
/* What follows belongs to the message of that role, or begins one. */
void sl_talk_text(sl_talk *t, const char *role, sl_span text);
void sl_talk_reasoning(sl_talk *t, sl_span text);
void sl_talk_call(sl_talk *t, sl_json id, sl_json name, sl_span arguments);

#endif
