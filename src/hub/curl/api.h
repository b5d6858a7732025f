/* Questions to the hub's API: which commit a revision is at, and which files that has. */
#ifndef SL_HUB_CURL_API_H
#define SL_HUB_CURL_API_H

#include "hub/curl/http.h"

/* `text` with everything but letters, digits and "-._~" as %XX; keep_slash: '/' stays. False: it
 * does not fit. */
bool sl_hub_escape(const char *text, bool keep_slash, char *out, size_t cap);

/* /api/models/ORG/MODEL/revision/REVISION, then all pages of .../tree/COMMIT. */
sl_status sl_hub_api_list(sl_hub_http *h, const sl_hub_settings *s, const sl_hub_name *n,
                          char commit[SL_HUB_COMMIT + 1], sl_hub_listing *out,
                          sl_err *err) SL_MUST_CHECK;

/* True while what failed first at `since_ns` is worth another try. */
bool sl_hub_may_wait(const sl_hub_settings *s, uint64_t since_ns);
/* Waits before try `tries` (1: the second): longer each time, and as long as the hub says. */
uint64_t sl_hub_wait_ns(unsigned tries, unsigned retry_s);

#endif
