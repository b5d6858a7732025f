/* Bringing what the cache lacks of a model. */
#ifndef SL_HUB_CURL_FETCH_H
#define SL_HUB_CURL_FETCH_H

#include "hub/hub.h"

/* sl_hub_fetch over libcurl; not offline. */
sl_status sl_hub_fetch_all(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                           sl_progress *progress, sl_hub_report *out, sl_err *err) SL_MUST_CHECK;

#endif
