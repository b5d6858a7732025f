/* Which files a revision has: answers of the hub's API, read as bytes that nobody vouches for. */
#include "hub/hub_int.h"

#include "base/mem.h"
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

#define PARSE_MEMORY ((size_t)1 << 30)

void sl_hub_listing_free(sl_hub_listing *l) {
    for (size_t i = 0; i < l->n; i++) sl_free(l->file[i].name);
    sl_free(l->file);
    *l = (sl_hub_listing){0};
}

bool sl_hub_name_is_safe(const char *name) {
    size_t all = strlen(name);
    if (all == 0 || all > SL_HUB_MAX_NAME || name[all - 1] == '/') return false;
    for (const char *s = name; *s;) {
        size_t n = strcspn(s, "/");
        if (n == 0 || n > 255) return false;
        if (s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.'))) return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f || s[i] == '\\') return false;
        s += s[n] ? n + 1 : n;
    }
    return true;
}

bool sl_hub_is_hex(const char *text, size_t digits) {
    return strlen(text) == digits && strspn(text, "0123456789abcdef") == digits;
}

sl_status sl_hub_listing_add(sl_hub_listing *l, const char *name, uint64_t bytes, const char *id,
                             sl_err *err) {
    if (!sl_hub_name_is_safe(name))
        return sl_fail(err, SL_ERR_FORMAT, "\"%.128s\" is no name of a file below a folder", name);
    if (bytes > SL_HUB_MAX_BYTES)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %llu bytes, limit %llu", name,
                       (unsigned long long)bytes, (unsigned long long)SL_HUB_MAX_BYTES);
    if (l->n == SL_HUB_MAX_FILES)
        return sl_fail(err, SL_ERR_LIMIT, "more than %u files", SL_HUB_MAX_FILES);
    if ((l->n & (l->n - 1)) == 0) { /* at each power of two */
        sl_hub_file *grown = sl_grow(l->file, l->n, l->n ? 2 * l->n : 1, sizeof *grown);
        if (!grown) return sl_fail(err, SL_ERR_NOMEM, "%zu files", l->n);
        l->file = grown;
    }
    sl_hub_file *f = &l->file[l->n];
    *f = (sl_hub_file){.name = sl_strdup(name), .bytes = bytes};
    if (!f->name) return sl_fail(err, SL_ERR_NOMEM, "%s: its name", name);
    memcpy(f->id, id, strlen(id) + 1);
    l->n++;
    return SL_OK;
}

sl_hub_file *sl_hub_listing_find(const sl_hub_listing *l, const char *name) {
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->file[i].name, name) == 0) return &l->file[i];
    return NULL;
}

static sl_status read_id(sl_json v, size_t digits, const char **out, sl_err *err) {
    sl_status st = sl_json_string(v, "oid", SL_JSON_REQUIRED, out, err);
    if (st == SL_OK && !sl_hub_is_hex(*out, digits))
        st = sl_json_fail(v, "oid", err, SL_ERR_FORMAT, "\"%.80s\" is not %zu hexadecimal digits",
                          *out, digits);
    return st;
}

sl_status sl_hub_commit_parse(const char *url, sl_span text, char out[SL_HUB_COMMIT + 1],
                              sl_err *err) {
    sl_json_doc *doc = NULL;
    const char *sha = NULL;
    sl_status st = sl_json_parse_within(url, text, PARSE_MEMORY, &doc, err);
    if (st == SL_OK) st = sl_json_string(sl_json_root(doc), "sha", SL_JSON_REQUIRED, &sha, err);
    if (st == SL_OK && !sl_hub_is_hex(sha, SL_HUB_COMMIT))
        st = sl_json_fail(sl_json_root(doc), "sha", err, SL_ERR_FORMAT,
                          "\"%.80s\" is not %u hexadecimal digits", sha, SL_HUB_COMMIT);
    if (st == SL_OK) memcpy(out, sha, SL_HUB_COMMIT + 1);
    sl_json_doc_free(doc);
    return st;
}

/* A large file is known by the digest of its bytes, a small one by git's of the blob. */
static sl_status add_entry(sl_hub_listing *l, sl_json v, sl_err *err) {
    const char *name = NULL, *id = NULL;
    uint64_t bytes = 0;
    sl_json lfs = {0};
    if (sl_json_is_text(sl_json_get(v, "type"), "directory")) return SL_OK;
    sl_status st = sl_json_string(v, "path", SL_JSON_REQUIRED, &name, err);
    if (st == SL_OK) st = sl_json_object(v, "lfs", SL_JSON_OPTIONAL, &lfs, err);
    if (st != SL_OK) return st;
    bool large = sl_json_kind_of(lfs) == SL_JSON_OBJECT;
    st = read_id(large ? lfs : v, large ? 64 : 40, &id, err);
    if (st == SL_OK)
        st = sl_json_u64(large ? lfs : v, "size", SL_JSON_REQUIRED, 0, SL_HUB_MAX_BYTES, &bytes,
                         err);
    return st == SL_OK ? sl_hub_listing_add(l, name, bytes, id, err) : st;
}

sl_status sl_hub_tree_parse(const char *url, sl_span text, sl_hub_listing *l, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse_within(url, text, PARSE_MEMORY, &doc, err);
    sl_json root = st == SL_OK ? sl_json_root(doc) : (sl_json){0};
    if (st == SL_OK && sl_json_kind_of(root) != SL_JSON_ARRAY)
        st = sl_json_fail(root, NULL, err, SL_ERR_FORMAT, "is not a list of files");
    for (size_t i = 0; st == SL_OK && i < sl_json_count(root); i++)
        st = add_entry(l, sl_json_at(root, i), err);
    if (st != SL_OK && doc && !strstr(err->msg, url)) sl_err_prefix(err, "%s", url);
    sl_json_doc_free(doc);
    return st;
}
