/* Asking a hub: where the program has libcurl. */
#include "hub/hub.h"

#ifdef SL_HAVE_CURL
#include "hub/curl/fetch.h"
#endif

sl_status sl_hub_fetch(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                       sl_progress *progress, sl_hub_report *out, sl_err *err) {
    if (s->offline) {
        sl_status st = sl_hub_find(s, name, want, out, err);
        return st == SL_OK ? st : sl_err_prefix(err, "offline");
    }
#ifdef SL_HAVE_CURL
    return sl_hub_fetch_all(s, name, want, progress, out, err);
#else
    (void)progress;
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s/%s: this program was built without libcurl, which brings models by name; "
                   "with it (Debian: libcurl4-openssl-dev) build again, or name a folder",
                   name->org, name->model);
#endif
}
