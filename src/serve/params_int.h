/* Inside of the parameters: params_fields.c knows the names, params.c reads the values,
 * params_sampling.c how tokens are drawn, params_messages.c conversations, params_shape.c what an
 * answer is to be like, params_fill.c what is around a gap. */
#ifndef SL_SERVE_PARAMS_INT_H
#define SL_SERVE_PARAMS_INT_H

#include "serve/form.h"
#include "serve/params.h"

bool sl_api_string_is(sl_json v, const char *text);
/* An empty string, array or object. */
bool sl_api_is_empty(sl_json v);

/* Passes on what a getter of format/json.h found. */
static inline sl_status sl_api_field_error(sl_api_error *e, const char *key, const sl_err *err) {
    return sl_api_error_of(e, err->code == SL_ERR_NOMEM ? SL_ERR_NOMEM : SL_ERR_ARG, key, err->msg);
}

/* p->sampling but for what bad_words.c makes, p->bad_words, and whether there is a seed. */
sl_status sl_api_read_sampling(sl_json root, const sl_api_limits *limits, sl_api_params *p,
                               sl_api_error *e) SL_MUST_CHECK;

/* p->messages; tools and chat_template_kwargs; what tool_choice makes of the tools, and how the
 * model is to think. */
sl_status sl_api_read_messages(sl_json root, sl_api_params *p, sl_api_error *e) SL_MUST_CHECK;
sl_status sl_api_read_template(sl_json root, sl_api_params *p, sl_api_error *e) SL_MUST_CHECK;
sl_status sl_api_choose_tools(sl_json root, sl_api_params *p, sl_api_error *e) SL_MUST_CHECK;

/* p->shape with what belongs to it (params_shape.c). */
sl_status sl_api_read_shape(sl_json root, sl_api_params *p, sl_api_error *e) SL_MUST_CHECK;

/* Element i of an array that `field` is: a token id (params_sampling.c). */
sl_status sl_api_id_at(sl_json array, size_t i, const char *field, uint32_t vocab, uint32_t *out,
                       sl_api_error *e) SL_MUST_CHECK;

/* p->suffix and p->file, and what is not with them (params_fill.c). */
sl_status sl_api_read_fill(sl_json root, sl_api_params *p, sl_api_error *e) SL_MUST_CHECK;

/* JSON Schemas, each beside what reads the same: of a row of spec/sampling.def by its name, and of
 * fields that are more than a type and a range. */
void sl_api_write_sampling(sl_jbuf *b, const char *name);
void sl_api_write_seed(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_bias(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_allowed(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_bad_words(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_prompt(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_stop(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_stop_ids(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_stream_options(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_scored(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_truncation(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_suffix(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_files(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_side(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_messages(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_tools(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_tool_choice(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_effort(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_format(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_structured(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_any_schema(sl_jbuf *b, const sl_api_limits *limits);
void sl_api_write_choices(sl_jbuf *b, const sl_api_limits *limits);

/* Refuses fields that nobody knows, and what is asked of known ones and not supported. */
sl_status sl_api_check_fields(sl_api_kind kind, sl_json root, sl_api_error *e) SL_MUST_CHECK;

#endif
