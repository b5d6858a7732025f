/* Which files of a model Sluice needs: its configuration, tokenizer and template beside weights in
 * safetensors, or one GGUF file with all its parts. The same choice is made of what a hub lists and
 * of what the cache has. */
#include "hub/hub_int.h"

#include "base/mem.h"
#include "format/json.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define CONFIG     "config.json"
#define SINGLE     "model.safetensors"
#define INDEX      "model.safetensors.index.json"
#define MAX_INDEX  ((size_t)256 << 20)
#define PARTS_TAIL 20u /* of "-00001-of-00003.gguf" */
#define NAMED_MOST 12u /* models that an error lists */

/* Beside weights in safetensors; whoever lacks one of them has no such file. */
static const char *const beside[] = {
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tiktoken.model",
    "chat_template.jinja",
    "chat_template.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
};
static const char *const tokenizers[] = {"tokenizer.json", "tiktoken.model"};

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

static const char *base_of(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* "-00001-of-00003.gguf" at the end; false: a file that is whole. */
static bool part_of(const char *name, unsigned *no, unsigned *count) {
    size_t n = strlen(name);
    if (n <= PARTS_TAIL || !ends_with(name, ".gguf")) return false;
    const char *tail = name + n - PARTS_TAIL;
    static const char form[] = "-ddddd-of-ddddd";
    for (size_t i = 0; i + 1 < sizeof form; i++)
        if (form[i] == 'd' ? tail[i] < '0' || tail[i] > '9' : tail[i] != form[i]) return false;
    *no = (unsigned)strtoul(tail + 1, NULL, 10);
    *count = (unsigned)strtoul(tail + 10, NULL, 10);
    return *no >= 1 && *no <= *count;
}

/* Bytes of the name before what tells parts apart, and before ".gguf". */
static size_t stem(const char *name) {
    unsigned no, count;
    return strlen(name) - (part_of(name, &no, &count) ? PARTS_TAIL : 5);
}

/* The stem, or a folder above it, is the pattern or ends with it behind '-', '.' or '_'. */
static bool has_ending(const char *name, const char *pattern) {
    size_t end = stem(name), m = strlen(pattern);
    for (;;) {
        const char *last = name + end - SL_MIN(m, end);
        bool bounded = end == m || (end > m && strchr("-._/", last[-1]));
        if (end >= m && strncasecmp(last, pattern, m) == 0 && bounded) return true;
        while (end > 0 && name[end - 1] != '/') end--;
        if (end == 0) return false;
        end--;
    }
}

static bool is_weights_gguf(const char *name) {
    const char *base = base_of(name);
    return ends_with(name, ".gguf") && strncasecmp(base, "mmproj", 6) != 0 &&
           strncasecmp(base, "imatrix", 7) != 0;
}

typedef enum fit_kind { FIT_NAME, FIT_ENDING, FIT_GLOB, FIT_N } fit_kind;

/* How a file may fit: its name comes before an ending as Q4_K_M, that before a pattern of shells.
 */
static bool fits(const char *name, const char *pattern, fit_kind how) {
    switch (how) {
    case FIT_NAME:
        return strcasecmp(name, pattern) == 0 || strcasecmp(base_of(name), pattern) == 0;
    case FIT_ENDING:
        return is_weights_gguf(name) && (!pattern[0] || has_ending(name, pattern));
    default:
        return fnmatch(pattern, name, FNM_CASEFOLD) == 0 ||
               fnmatch(pattern, base_of(name), FNM_CASEFOLD) == 0;
    }
}

static bool same_model(const char *a, const char *b) {
    return stem(a) == stem(b) && strncmp(a, b, stem(a)) == 0;
}

/* Models among the files that fit, in at most `cap` bytes. */
static void list_models(const sl_hub_listing *l, const bool *fit, char *out, size_t cap) {
    size_t used = 0, named = 0;
    out[0] = 0;
    for (size_t i = 0; i < l->n; i++) {
        unsigned no = 1, count;
        if (!fit[i] || (part_of(l->file[i].name, &no, &count) && no != 1)) continue;
        bool more = named++ == NAMED_MOST;
        if (used < cap)
            used += (size_t)snprintf(out + used, cap - used, "%s%s", used ? ", " : "",
                                     more ? "..." : l->file[i].name);
        if (more) return;
    }
}

/* All parts of the model that file `first` is of; the first of them is what is opened. */
static sl_status take_parts(sl_hub_listing *l, const char *what, const char *first,
                            sl_hub_choice *out, sl_err *err) {
    unsigned no = 1, count = 1, found = 0;
    part_of(first, &no, &count);
    for (size_t i = 0; i < l->n; i++) {
        sl_hub_file *f = &l->file[i];
        unsigned its = 1, of = 1;
        if (!ends_with(f->name, ".gguf") || !same_model(f->name, first)) continue;
        part_of(f->name, &its, &of);
        if (of != count) continue;
        f->wanted = true;
        found++;
        if (its == 1) out->open = f->name;
    }
    if (found != count || !out->open)
        return sl_fail(err, SL_ERR_NOTFOUND, "%s: %u of the %u parts of %s are there", what, found,
                       count, first);
    return SL_OK;
}

static sl_status select_gguf(sl_hub_listing *l, const char *what, const char *pattern,
                             const bool *fit, sl_hub_choice *out, sl_err *err) {
    const char *first = NULL;
    for (size_t i = 0; i < l->n; i++) {
        if (!fit[i]) continue;
        if (!first) first = l->file[i].name;
        if (same_model(first, l->file[i].name)) continue;
        char names[320];
        list_models(l, fit, names, sizeof names);
        return sl_fail(err, SL_ERR_ARG, "%s: %s%s%s; say which, as ORG/MODEL:FILE: %s", what,
                       pattern[0] ? "several GGUF files fit '" : "has several GGUF files", pattern,
                       pattern[0] ? "'" : "", names);
    }
    return take_parts(l, what, first, out, err);
}

/* A pattern is of GGUF files, if any fit, or of files that are taken as they are. */
static sl_status select_pattern(sl_hub_listing *l, const char *what, const char *pattern, bool *fit,
                                sl_hub_choice *out, sl_err *err) {
    for (int how = 0; how < FIT_N; how++) {
        size_t n = 0, gguf = 0;
        for (size_t i = 0; i < l->n; i++) {
            fit[i] = fits(l->file[i].name, pattern, (fit_kind)how);
            n += fit[i];
            gguf += fit[i] && ends_with(l->file[i].name, ".gguf");
        }
        if (n && n == gguf) return select_gguf(l, what, pattern, fit, out, err);
        for (size_t i = 0; n && i < l->n; i++) l->file[i].wanted = fit[i];
        if (n) return SL_OK;
    }
    char names[320];
    for (size_t i = 0; i < l->n; i++) fit[i] = is_weights_gguf(l->file[i].name);
    list_models(l, fit, names, sizeof names);
    return sl_fail(err, SL_ERR_ARG, "%s: no file fits '%s'%s%s", what, pattern,
                   names[0] ? "; there are " : "", names);
}

static sl_status select_folder(sl_hub_listing *l, const char *what, sl_hub_want want,
                               sl_hub_choice *out, sl_err *err) {
    for (size_t i = 0; i < SL_LEN(beside); i++) {
        sl_hub_file *f = sl_hub_listing_find(l, beside[i]);
        if (f) f->wanted = true;
        if (want == SL_HUB_CONFIG) return SL_OK;
    }
    bool tokenizer = false;
    for (size_t i = 0; i < SL_LEN(tokenizers); i++)
        tokenizer = tokenizer || sl_hub_listing_find(l, tokenizers[i]);
    if (!tokenizer)
        return sl_fail(err, SL_ERR_NOTFOUND, "%s: has neither %s nor %s", what, tokenizers[0],
                       tokenizers[1]);
    sl_hub_file *single = sl_hub_listing_find(l, SINGLE), *index = sl_hub_listing_find(l, INDEX);
    sl_hub_file *weights = single ? single : index;
    if (!weights) return sl_fail(err, SL_ERR_NOTFOUND, "%s: has no %s", what, SINGLE);
    weights->wanted = true;
    out->index = single ? NULL : index->name;
    return SL_OK;
}

sl_status sl_hub_select(sl_hub_listing *l, const char *what, const char *pattern, sl_hub_want want,
                        sl_hub_choice *out, sl_err *err) {
    *out = (sl_hub_choice){0};
    bool tensors = sl_hub_listing_find(l, SINGLE) || sl_hub_listing_find(l, INDEX);
    bool config = sl_hub_listing_find(l, CONFIG) != NULL;
    for (size_t i = 0; i < l->n; i++) l->file[i].wanted = false;
    if (!pattern[0] && config && (tensors || want == SL_HUB_CONFIG))
        return select_folder(l, what, want, out, err);
    bool *fit = sl_alloc(l->n, sizeof *fit);
    if (!fit) return sl_fail(err, SL_ERR_NOMEM, "%s: %zu files", what, l->n);
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) n += fit[i] = is_weights_gguf(l->file[i].name);
    sl_status st;
    if (pattern[0])
        st = select_pattern(l, what, pattern, fit, out, err);
    else if (n)
        st = select_gguf(l, what, "", fit, out, err);
    else
        st = sl_fail(err, SL_ERR_NOTFOUND,
                     "%s: has no %s with %s, no %s and no GGUF file, which is what is read", what,
                     SINGLE, CONFIG, INDEX);
    sl_free(fit);
    return st;
}

bool sl_hub_is_weights(const char *name) {
    return ends_with(name, ".gguf") || strcmp(name, SINGLE) == 0 || strcmp(name, INDEX) == 0;
}

sl_status sl_hub_select_shards(sl_hub_listing *l, const char *path, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_json map = {0}, value = {0};
    void *iter = NULL;
    const char *key = NULL, *shard = NULL, *last = "";
    sl_status st = sl_json_load(path, MAX_INDEX, &doc, err);
    if (st == SL_OK)
        st = sl_json_object(sl_json_root(doc), "weight_map", SL_JSON_REQUIRED, &map, err);
    while (st == SL_OK && sl_json_next(map, &iter, &key, &value)) {
        st = sl_json_string(map, key, SL_JSON_REQUIRED, &shard, err);
        if (st != SL_OK || strcmp(shard, last) == 0) continue;
        sl_hub_file *f = sl_hub_listing_find(l, shard);
        if (f)
            f->wanted = true;
        else
            st = sl_fail(err, SL_ERR_NOTFOUND, "%s: names \"%.128s\", which is not there", path,
                         shard);
        last = shard;
    }
    sl_json_doc_free(doc);
    return st;
}
