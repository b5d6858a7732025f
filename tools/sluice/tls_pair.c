/* The certificate of --tls-cert and the key of --tls-key: read, found to belong together, seen to
 * be others than they were, and what is to be said of the days for which they are good. */
#include "cmd.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DAY_S  86400
#define SOON_S (14 * DAY_S) /* a certificate that ends so soon is said */

static void say_days(const char *name, const sl_tls_pair *pair) {
    char when[32];
    struct tm tm;
    const int64_t now = (int64_t)sl_wall_s(), ends = sl_tls_pair_ends_s(pair);
    const bool early = now < sl_tls_pair_begins_s(pair);
    const time_t shown = (time_t)(early ? sl_tls_pair_begins_s(pair) : ends);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", gmtime_r(&shown, &tm));
    if (early)
        sl_log(SL_LOG_WARN, "serve", "%s: clients refuse it until %s, when it begins", name, when);
    else if (now >= ends)
        sl_log(SL_LOG_WARN, "serve", "%s: clients refuse it since %s, when it ended", name, when);
    else if (ends - now < SOON_S)
        sl_log(SL_LOG_WARN, "serve", "%s: it ends at %s, in %d days", name, when,
               (int)((ends - now) / DAY_S));
}

static sl_tls_text text_of(const char *name, const char *pem) {
    return (sl_tls_text){name, {(const uint8_t *)pem, strlen(pem)}};
}

/* Through links, as Kubernetes renews what it mounts by another link. A file that is not there
 * looks like none. */
static sl_file_look look_at(const char *path) {
    struct stat s;
    if (stat(path, &s) != 0) return (sl_file_look){0};
    return (sl_file_look){.device = s.st_dev,
                          .inode = s.st_ino,
                          .bytes = s.st_size,
                          .written = s.st_mtim,
                          .changed = s.st_ctim};
}

static bool is_same(const sl_file_look *a, const sl_file_look *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->written.tv_sec == b->written.tv_sec && a->written.tv_nsec == b->written.tv_nsec &&
           a->changed.tv_sec == b->changed.tv_sec && a->changed.tv_nsec == b->changed.tv_nsec;
}

static sl_tls_look look_at_both(const sl_options *o) {
    return (sl_tls_look){look_at(o->tls_cert), look_at(o->tls_key)};
}

bool sl_deploy_tls_changed(const sl_options *o, const sl_tls_look *then) {
    const sl_tls_look now = look_at_both(o);
    return !is_same(&now.cert, &then->cert) || !is_same(&now.key, &then->key);
}

sl_status sl_deploy_tls(const sl_options *o, sl_tls_look *look, sl_tls_pair **out, sl_err *err) {
    char cert_name[300], key_name[300];
    char *cert = NULL, *key = NULL;
    *out = NULL;
    /* First: what changes while it is read is read again. */
    *look = look_at_both(o);
    if (!o->tls_cert[0] && !o->tls_key[0]) return SL_OK;
    if (!o->tls_key[0])
        return sl_fail(err, SL_ERR_ARG, "--tls-cert: --tls-key FILE has to name its key");
    if (!o->tls_cert[0])
        return sl_fail(err, SL_ERR_ARG, "--tls-key: --tls-cert FILE has to name its certificate");
    snprintf(cert_name, sizeof cert_name, "--tls-cert: %s", o->tls_cert);
    snprintf(key_name, sizeof key_name, "--tls-key: %s", o->tls_key);
    sl_status st = sl_deploy_read_text(o->tls_cert, &cert, err);
    if (st != SL_OK) return sl_err_prefix(err, "--tls-cert");
    st = sl_deploy_read_tls_key(o->tls_key, &key, err);
    if (st != SL_OK) {
        sl_free(cert);
        return sl_err_prefix(err, "--tls-key");
    }
    const sl_tls_text of_cert = text_of(cert_name, cert), of_key = text_of(key_name, key);
    st = sl_tls_pair_open(&of_cert, &of_key, out, err);
    if (st == SL_OK) say_days(cert_name, *out);
    explicit_bzero(key, strlen(key));
    sl_free(key);
    sl_free(cert);
    return st;
}
