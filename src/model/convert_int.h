/* Between convert.c and convert_tokenizer.c. */
#ifndef SL_MODEL_CONVERT_INT_H
#define SL_MODEL_CONVERT_INT_H

#include "format/gguf_write.h"
#include "model/model_int.h"

/* Writes tokenizer and chat template of a folder as keys. */
sl_status sl_convert_tokenizer(const char *folder, const sl_model_spec *spec, sl_gguf_out *w,
                               sl_err *err) SL_MUST_CHECK;

#endif
