/* ORG/MODEL[@REVISION][:PATTERN]: what has that form, and its parts. */
#include "hub/hub.h"

#include <ctype.h>
#include <string.h>

static size_t part_length(const char *text) {
    return strcspn(text, "@:");
}

/* As the hub has them: letters, digits, '-', '_' and '.', none of '-' and '.' at an end, no "--"
 * (which stands for the slash in names of folders) and no "..". */
static bool plain(const char *text, size_t n) {
    if (n == 0 || n > SL_HUB_PART) return false;
    for (size_t i = 0; i < n; i++) {
        bool mark = text[i] == '-' || text[i] == '.';
        if (!mark && text[i] != '_' && !isalnum((unsigned char)text[i])) return false;
        if (mark && (i == 0 || i == n - 1)) return false;
        if (mark && text[i - 1] == text[i]) return false;
    }
    return true;
}

bool sl_hub_is_name(const char *text) {
    size_t n = part_length(text);
    const char *slash = memchr(text, '/', n);
    if (!slash) return false;
    size_t org = (size_t)(slash - text);
    return plain(text, org) && plain(slash + 1, n - org - 1);
}

/* A branch, a tag or a commit: parts of letters, digits and "-_.+" between slashes. */
static bool plain_revision(const char *text) {
    for (const char *s = text; *s;) {
        size_t n = strcspn(s, "/");
        if (n == 0 || s[0] == '.' || s[0] == '-' || (s[n] == '/' && !s[n + 1])) return false;
        for (size_t i = 0; i < n; i++)
            if (!isalnum((unsigned char)s[i]) && !strchr("-_.+", s[i])) return false;
        s += s[n] ? n + 1 : n;
    }
    return !strstr(text, "..");
}

/* Anything that fits a file's name. */
static bool plain_pattern(const char *text) {
    for (const char *s = text; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f || *s == '\\') return false;
    return true;
}

static sl_status take(const char *what, const char *text, size_t n, char *out, sl_err *err) {
    if (n == 0 || n > SL_HUB_REVISION)
        return sl_fail(err, SL_ERR_ARG, "%s of %zu bytes, 1 to %u", what, n, SL_HUB_REVISION);
    memcpy(out, text, n);
    out[n] = 0;
    return SL_OK;
}

sl_status sl_hub_name_parse(const char *text, sl_hub_name *out, sl_err *err) {
    *out = (sl_hub_name){.revision = "main"};
    if (!sl_hub_is_name(text))
        return sl_fail(
            err, SL_ERR_ARG,
            "'%.200s' is not ORG/MODEL[@REVISION][:PATTERN]; ORG and MODEL have letters, "
            "digits, '-', '_' and '.', at most %u each",
            text, SL_HUB_PART);
    size_t org = strcspn(text, "/"), end = part_length(text);
    memcpy(out->org, text, org);
    memcpy(out->model, text + org + 1, end - org - 1);
    const char *rest = text + end;
    sl_status st = SL_OK;
    if (*rest == '@') {
        size_t n = strcspn(rest + 1, ":");
        st = take("a revision", rest + 1, n, out->revision, err);
        if (st == SL_OK && !plain_revision(out->revision))
            st = sl_fail(err, SL_ERR_ARG, "'%.100s': '%s' is no name of a branch, tag or commit",
                         text, out->revision);
        rest += n + 1;
    }
    if (st == SL_OK && *rest == ':') {
        st = take("a pattern", rest + 1, strlen(rest + 1), out->pattern, err);
        if (st == SL_OK && !plain_pattern(out->pattern))
            st = sl_fail(err, SL_ERR_ARG,
                         "'%.100s': a pattern has no control characters and no '\\'", text);
    }
    return st;
}
