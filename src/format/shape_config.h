/* Models by description: the config.json of a Hugging Face checkpoint (no weights needed) or a
 * preset -> sl_shape.
 *
 * Of the families of format/family.h. Only keys that change counts are read, as the engine reads
 * them: unlike sl_hf_config_parse this says nothing about whether the engine computes such a model.
 * Thread: any. */
#ifndef SL_FORMAT_SHAPE_CONFIG_H
#define SL_FORMAT_SHAPE_CONFIG_H

#include "base/span.h"
#include "base/status.h"
#include "spec/shape.h"

/* `file` names the text in errors; `name` becomes the shape's. SL_ERR_UNSUPPORTED names a class
 * that is none of the families. */
sl_status sl_shape_config_parse(const char *file, const char *name, sl_span text, sl_shape *out,
                                sl_err *err) SL_MUST_CHECK;

/* A GGUF file, by its first bytes; what its metadata say (all but the name), with the bytes that
 * its weights have on average. */
bool sl_shape_in_gguf(const char *path);
sl_status sl_shape_of_gguf(const char *path, sl_shape *out, sl_err *err) SL_MUST_CHECK;

/* `model`: a folder with a config.json, such a file, a GGUF file, or, when there is no such path,
 * the name of a preset. SL_ERR_NOTFOUND lists the presets. */
sl_status sl_shape_open(const char *model, sl_shape *out, sl_err *err) SL_MUST_CHECK;

#endif
