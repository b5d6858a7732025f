/* config.json and generation_config.json of a Hugging Face folder -> sl_model_spec,
 * sl_generation_spec.
 *
 * Every key is either used, known to leave results alone, accepted only with the value that means
 * "off", or refused by name: an option nobody here computes must not be ignored. Thread: any. */
#ifndef SL_FORMAT_HF_CONFIG_H
#define SL_FORMAT_HF_CONFIG_H

#include "base/span.h"
#include "base/status.h"
#include "spec/model.h"

/* Fills everything of *spec but n_params, n_params_active and hash. `file` names the text in
 * errors. */
sl_status sl_hf_config_parse(const char *file, sl_span text, sl_model_spec *spec,
                             sl_err *err) SL_MUST_CHECK;

/* Defaults of an absent file: nothing known. */
sl_generation_spec sl_hf_generation_none(void);

/* Fills *gen and adds the file's eos ids to spec->eos (ids at or above vocab are refused). Options
 * that only steer how text is searched (beams, penalties at their neutral value) must be neutral.
 */
sl_status sl_hf_generation_parse(const char *file, sl_span text, sl_model_spec *spec,
                                 sl_generation_spec *gen, sl_err *err) SL_MUST_CHECK;

#endif
