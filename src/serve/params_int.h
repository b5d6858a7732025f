/* Inside of the parameters: params_fields.c knows the names, params.c reads the values. */
#ifndef SL_SERVE_PARAMS_INT_H
#define SL_SERVE_PARAMS_INT_H

#include "serve/params.h"

bool sl_api_string_is(sl_json v, const char *text);
/* An empty string, array or object. */
bool sl_api_is_empty(sl_json v);

/* Refuses fields that nobody knows, and what is asked of known ones and not supported. */
sl_status sl_api_check_fields(sl_api_kind kind, sl_json root, sl_api_error *e) SL_MUST_CHECK;

#endif
