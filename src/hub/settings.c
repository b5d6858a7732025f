/* Where the hub and its cache are: the variables of the hub's tools. */
#include "hub/hub.h"

#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define DEFAULT_ENDPOINT "https://huggingface.co"
#define TOKEN_PATH_MOST  (SL_HUB_PATH + 16)

/* As the hub's tools read a switch. */
static bool is_on(const char *value) {
    static const char *const on[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; value && i < SL_LEN(on); i++)
        if (strcasecmp(value, on[i]) == 0) return true;
    return false;
}

static bool put_folder(char *out, size_t cap, const char *value, const char *below) {
    int n = value ? snprintf(out, cap, "%s%s", value, below) : -1;
    while (n > 1 && (size_t)n < cap && out[n - 1] == '/') out[--n] = 0;
    return n > 0 && (size_t)n < cap;
}

/* A path as a variable says it: a leading "~" is HOME, as in the hub's tools. What else they expand
 * is refused, so that both never mean different folders. */
static sl_status put_path(const char *name, const char *value, char out[SL_HUB_PATH], sl_err *err) {
    const char *home = value[0] == '~' ? sl_options_home() : "", *rest = value + (value[0] == '~');
    const char *dollar = strchr(value, '$');
    while (dollar && !isalpha((unsigned char)dollar[1]) && !strchr("_{", dollar[1]))
        dollar = strchr(dollar + 1, '$');
    if (dollar)
        return sl_fail(err, SL_ERR_ARG, "%s: '%.200s' names a variable; write its value", name,
                       value);
    if (value[0] == '~' && rest[0] && rest[0] != '/')
        return sl_fail(err, SL_ERR_ARG, "%s: '%.200s' is another user's folder; write its path",
                       name, value);
    if (!home)
        return sl_fail(err, SL_ERR_ARG,
                       "%s: '%.200s' begins with '~', and HOME is no absolute path", name, value);
    if (!put_folder(out, SL_HUB_PATH, home, rest))
        return sl_fail(err, SL_ERR_ARG, "%s: '%.200s' has over %u bytes", name, value,
                       SL_HUB_PATH - 1);
    return SL_OK;
}

static sl_status read_cache(sl_hub_settings *s, char home[SL_HUB_PATH], sl_err *err) {
    const char *named = sl_options_hub(SL_HF_HOME), *cache = sl_options_hub(SL_HF_HUB_CACHE);
    sl_status st = SL_OK;
    home[0] = 0;
    if (named) st = put_path("HF_HOME", named, home, err);
    if (!named && !sl_options_hub_home(home, SL_HUB_PATH)) home[0] = 0;
    if (st == SL_OK && cache) st = put_path("HF_HUB_CACHE", cache, s->cache, err);
    if (st != SL_OK) return st;
    if (!cache && (!home[0] || !put_folder(s->cache, sizeof s->cache, home, "/hub")))
        return sl_fail(err, SL_ERR_ARG,
                       "no folder for models by name: HOME is no absolute path, and none of "
                       "HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME is set");
    return SL_OK;
}

static sl_status read_endpoint(sl_hub_settings *s, sl_err *err) {
    const char *e = sl_options_hub(SL_HF_ENDPOINT);
    if (!e) e = DEFAULT_ENDPOINT;
    bool http = strncmp(e, "http://", 7) == 0 || strncmp(e, "https://", 8) == 0;
    bool plain = strspn(e, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                           "-._~:/[]%") == strlen(e);
    if (!http || !plain || !put_folder(s->endpoint, sizeof s->endpoint, e, ""))
        return sl_fail(err, SL_ERR_ARG,
                       "HF_ENDPOINT: '%.200s' is not http://HOST or https://HOST, without user, "
                       "query or fragment",
                       e);
    return SL_OK;
}

/* Leading and trailing white space goes, as in the hub's tools; inside there is none. */
static sl_status take_token(sl_hub_settings *s, const char *where, char *text, sl_err *err) {
    char *begin = text + strspn(text, " \t\r\n");
    size_t n = strlen(begin);
    while (n && strchr(" \t\r\n", begin[n - 1])) n--;
    bool plain = n < sizeof s->token;
    for (size_t i = 0; i < n; i++) plain = plain && begin[i] > 0x20 && begin[i] < 0x7f;
    if (!plain)
        return sl_fail(err, SL_ERR_ARG, "%s: is no token: over %zu bytes, or not plain ASCII",
                       where, sizeof s->token - 1);
    memcpy(s->token, begin, n);
    s->token[n] = 0;
    return SL_OK;
}

static sl_status read_token_file(sl_hub_settings *s, const char *path, sl_err *err) {
    char text[2048];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) return SL_OK;
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    int why = errno;
    if (fd >= 0) close(fd);
    if (n < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(why));
    text[n] = 0;
    return take_token(s, path, text, err);
}

static sl_status read_token(sl_hub_settings *s, const char *home, sl_err *err) {
    char text[2048], path[TOKEN_PATH_MOST];
    const char *token = sl_options_hub(SL_HF_TOKEN), *file = sl_options_hub(SL_HF_TOKEN_PATH);
    if (token) {
        snprintf(text, sizeof text, "%s", token);
        return take_token(s, "HF_TOKEN", text, err);
    }
    if (!file && !home[0]) return SL_OK;
    if (file) {
        char named[SL_HUB_PATH];
        sl_status st = put_path("HF_TOKEN_PATH", file, named, err);
        if (st != SL_OK) return st;
        snprintf(path, sizeof path, "%s", named);
    } else {
        snprintf(path, sizeof path, "%s/token", home);
    }
    return read_token_file(s, path, err);
}

sl_status sl_hub_settings_read(sl_hub_settings *out, sl_err *err) {
    char home[SL_HUB_PATH];
    *out = (sl_hub_settings){
        .offline = is_on(sl_options_hub(SL_HF_HUB_OFFLINE)), .connections = 8, .retry_s = 60};
    sl_status st = read_cache(out, home, err);
    if (st == SL_OK) st = read_endpoint(out, err);
    if (st == SL_OK) st = read_token(out, home, err);
    return st;
}
