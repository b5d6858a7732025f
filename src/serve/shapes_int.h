/* Inside of shapes: shape_parts.c writes parts, shape_schema.c schemas, shape_calls.c calls of
 * tools, shapes.c puts them together. */
#ifndef SL_SERVE_SHAPES_INT_H
#define SL_SERVE_SHAPES_INT_H

#include "serve/server_int.h"

void sl_shape_put(sl_jbuf *b, const char *text);
/* A value as it came; documents are not deep (SL_JSON_MAX_DEPTH). */
void sl_shape_json(sl_jbuf *b, sl_json v);
/* {PART: literal}; special tokens in the text are met by their ids. */
void sl_shape_marked(sl_jbuf *b, const sl_tokenizer *tok, const char *part, const char *text);
/* Parts of a list that are exactly this text, each with a comma behind it: none of an empty one; #
 * in it stands for a number. */
void sl_shape_text(sl_jbuf *b, const sl_tokenizer *tok, const char *text);

/* How far calls that have to be made are held to the parameters of their functions. */
typedef struct sl_shape_how {
    bool held;    /* whether the functions are strict or not */
    bool changed; /* out: that made a difference */
} sl_shape_how;

/* JSON of a schema, which is `root` or a part of it: a part of a shape. Objects that list
 * properties have no others where it is silent about them. */
void sl_shape_schema(sl_jbuf *b, sl_json root, sl_json schema);

sl_json sl_tool_function(sl_json tools, size_t i);
bool sl_tool_is_strict(sl_json function);
/* One call of any of the tools, or of the one that is forced: from its name to its end. Refuses
 * what of a strict one cannot be enforced. */
sl_status sl_shape_calls(sl_jbuf *b, const sl_call *call, const sl_call_form *form,
                         sl_shape_how *how, sl_api_error *e) SL_MUST_CHECK;

#endif
