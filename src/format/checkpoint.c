/* The files of a checkpoint, safetensors in shards or GGUF, as one list of tensors by name. */
#include "format/checkpoint.h"

#include "base/mem.h"
#include "format/json.h"
#include "format/map.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

typedef struct sl_ckpt_file {
    char *name, *path;
    uint8_t *head;
    size_t head_bytes;
    sl_st_header h;
    sl_map map;
} sl_ckpt_file;

struct sl_checkpoint {
    sl_gguf *gguf; /* or files: */
    sl_ckpt_file *file;
    uint32_t n_files;
    sl_ckpt_tensor *tensor; /* sorted by name */
    size_t n_tensors;
};

static char *join(const char *folder, const char *name) {
    size_t a = strlen(folder), b = strlen(name);
    char *path = sl_alloc(a + b + 2, 1);
    if (!path) return NULL;
    memcpy(path, folder, a);
    path[a] = '/';
    memcpy(path + a + 1, name, b);
    return path;
}

/* A shard is a plain file of the folder, never a path. */
static bool plain_name(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > 255 || name[0] == '.' || strchr(name, '/') || strchr(name, '\\'))
        return false;
    if (strstr(name, "..")) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) return false;
    return true;
}

static sl_status read_exactly(const char *path, int fd, uint8_t *dst, size_t n, size_t at,
                              sl_err *err) {
    while (n > 0) {
        ssize_t got = pread(fd, dst, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return sl_fail(err, SL_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
        if (got == 0) return sl_fail(err, SL_ERR_FORMAT, "%s: truncated while it was read", path);
        dst += got;
        at += (size_t)got;
        n -= (size_t)got;
    }
    return SL_OK;
}

static sl_status load_header(sl_ckpt_file *f, sl_err *err) {
    int fd = -1;
    uint64_t bytes = 0;
    uint8_t first[8] = {0};
    sl_status st = sl_map_open_fd(f->path, &fd, &bytes, err);
    if (st != SL_OK) return st;
    size_t have = (size_t)SL_MIN(bytes, sizeof first);
    st = read_exactly(f->path, fd, first, have, 0, err);
    if (st != SL_OK) goto out;
    st = sl_st_header_bytes(f->path, (sl_span){first, have}, bytes, &f->head_bytes, err);
    if (st != SL_OK) goto out;
    f->head = sl_alloc(f->head_bytes, 1);
    if (!f->head) {
        st = sl_fail(err, SL_ERR_NOMEM, "%s: header of %zu bytes", f->path, f->head_bytes);
        goto out;
    }
    st = read_exactly(f->path, fd, f->head, f->head_bytes, 0, err);
    if (st != SL_OK) goto out;
    st = sl_st_header_parse(f->path, (sl_span){f->head, f->head_bytes}, bytes, &f->h, err);
out:
    close(fd);
    return st;
}

static sl_status add_file(sl_checkpoint *c, const char *folder, const char *name, sl_err *err) {
    sl_ckpt_file *f = &c->file[c->n_files];
    f->name = sl_strdup(name);
    f->path = join(folder, name);
    c->n_files++;
    return f->name && f->path ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: path", name);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the weight map, sorted. */
static sl_status list_shards(sl_checkpoint *c, const char *folder, sl_json weight_map,
                             sl_err *err) {
    size_t n = sl_json_count(weight_map);
    if (n == 0 || n > SL_CKPT_MAX_TENSORS)
        return sl_json_fail(weight_map, NULL, err, SL_ERR_LIMIT, "%zu tensors, limit 1 to %u", n,
                            SL_CKPT_MAX_TENSORS);
    const char **names = sl_alloc(n, sizeof *names);
    if (!names) return sl_fail(err, SL_ERR_NOMEM, "%s: %zu names", sl_json_file(weight_map), n);
    void *iter = NULL;
    const char *key = NULL;
    sl_json value = {0};
    sl_status st = SL_OK;
    size_t got = 0, distinct = 0;
    while (st == SL_OK && sl_json_next(weight_map, &iter, &key, &value)) {
        st = sl_json_string(weight_map, key, SL_JSON_REQUIRED, &names[got], err);
        if (st == SL_OK && !plain_name(names[got]))
            st = sl_json_fail(weight_map, key, err, SL_ERR_FORMAT,
                              "\"%.128s\" is not the name of a file in this folder", names[got]);
        got++;
    }
    if (st != SL_OK) goto out;
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[distinct - 1]) != 0) names[distinct++] = names[i];
    if (distinct > SL_CKPT_MAX_FILES) {
        st = sl_json_fail(weight_map, NULL, err, SL_ERR_LIMIT, "%zu files, limit %d", distinct,
                          SL_CKPT_MAX_FILES);
        goto out;
    }
    c->file = sl_alloc(distinct, sizeof *c->file);
    if (!c->file) st = sl_fail(err, SL_ERR_NOMEM, "%zu files", distinct);
    for (size_t i = 0; st == SL_OK && i < distinct; i++) st = add_file(c, folder, names[i], err);
out:
    sl_free(names);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const sl_ckpt_tensor *)a)->name, ((const sl_ckpt_tensor *)b)->name);
}

static sl_ckpt_tensor tensor_of(const sl_st_tensor *t, uint32_t file) {
    sl_ckpt_tensor c = {.name = t->name,
                        .dtype_name = sl_st_dtype_name(t->dtype),
                        .n_dims = t->n_dims,
                        .dim = t->dim,
                        .begin = t->begin,
                        .end = t->end,
                        .file = file};
    c.usable = sl_st_dtype_usable(t->dtype, &c.dtype);
    return c;
}

static sl_status sort_tensors(sl_checkpoint *c, sl_err *err) {
    size_t n = 0;
    for (uint32_t f = 0; f < c->n_files; f++) n += c->file[f].h.n_tensors;
    if (n > SL_CKPT_MAX_TENSORS)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %zu tensors, limit %u", c->file[0].path, n,
                       SL_CKPT_MAX_TENSORS);
    c->tensor = sl_alloc(n, sizeof *c->tensor);
    if (!c->tensor) return sl_fail(err, SL_ERR_NOMEM, "%zu tensors", n);
    for (uint32_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < c->file[f].h.n_tensors; i++)
            c->tensor[c->n_tensors++] = tensor_of(&c->file[f].h.tensor[i], f);
    qsort(c->tensor, n, sizeof *c->tensor, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(c->tensor[i].name, c->tensor[i - 1].name) == 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is also in %s",
                           c->file[c->tensor[i].file].path, c->tensor[i].name,
                           c->file[c->tensor[i - 1].file].name);
    return SL_OK;
}

static sl_status check_index(const sl_checkpoint *c, sl_json weight_map, sl_err *err) {
    void *iter = NULL;
    const char *key = NULL;
    sl_json value = {0};
    while (sl_json_next(weight_map, &iter, &key, &value)) {
        size_t at = 0;
        const char *shard = NULL;
        sl_status st = sl_json_string(weight_map, key, SL_JSON_REQUIRED, &shard, err);
        if (st != SL_OK) return st;
        const char *found = sl_ckpt_find(c, key, &at) ? c->file[c->tensor[at].file].name : NULL;
        if (!found || strcmp(found, shard) != 0)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" should be in %s, but is in %s",
                           sl_json_file(weight_map), key, shard, found ? found : "no file");
    }
    for (size_t i = 0; i < c->n_tensors; i++)
        if (sl_json_kind_of(sl_json_get(weight_map, c->tensor[i].name)) == SL_JSON_ABSENT)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensor \"%s\" is not in %s",
                           c->file[c->tensor[i].file].path, c->tensor[i].name, index_name);
    return SL_OK;
}

static sl_status load_files(sl_checkpoint *c, sl_err *err) {
    for (uint32_t f = 0; f < c->n_files; f++) {
        sl_status st = load_header(&c->file[f], err);
        if (st != SL_OK) return st;
    }
    return sort_tensors(c, err);
}

static sl_status open_index(sl_checkpoint *c, const char *folder, const char *path, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_json weight_map = {0};
    sl_status st = sl_json_load(path, SL_CKPT_MAX_INDEX, &doc, err);
    if (st != SL_OK) return st;
    st = sl_json_object(sl_json_root(doc), "weight_map", SL_JSON_REQUIRED, &weight_map, err);
    if (st == SL_OK) st = list_shards(c, folder, weight_map, err);
    if (st == SL_OK) st = load_files(c, err);
    if (st == SL_OK) st = check_index(c, weight_map, err);
    sl_json_doc_free(doc);
    return st;
}

static sl_status open_single(sl_checkpoint *c, const char *folder, sl_err *err) {
    c->file = sl_alloc(1, sizeof *c->file);
    if (!c->file) return sl_fail(err, SL_ERR_NOMEM, "%s: one file", folder);
    sl_status st = add_file(c, folder, single_name, err);
    return st == SL_OK ? load_files(c, err) : st;
}

static sl_status open_gguf(sl_checkpoint *c, const char *path, sl_err *err) {
    sl_status st = sl_gguf_open(path, &c->gguf, err);
    if (st != SL_OK) return st;
    size_t n = sl_gguf_tensors(c->gguf);
    c->tensor = sl_alloc(n, sizeof *c->tensor);
    if (!c->tensor) return sl_fail(err, SL_ERR_NOMEM, "%s: %zu tensors", path, n);
    for (; c->n_tensors < n; c->n_tensors++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(c->gguf, c->n_tensors);
        c->tensor[c->n_tensors] = (sl_ckpt_tensor){.name = t->name,
                                                   .dtype_name = t->type_name,
                                                   .usable = t->usable,
                                                   .dtype = t->dtype,
                                                   .repack = t->repack,
                                                   .strips = t->strips,
                                                   .n_dims = t->n_dims,
                                                   .dim = t->dim,
                                                   .begin = t->begin,
                                                   .end = t->end,
                                                   .file = t->part};
    }
    qsort(c->tensor, n, sizeof *c->tensor, by_name);
    return SL_OK;
}

/* Weights that a folder has instead of what is read, by the beginnings and ends of their names. */
static const struct {
    const char *begin, *end;
    sl_status code;
    const char *why;
} strays[] = {
    {"", ".safetensors", SL_ERR_NOTFOUND,
     "model.safetensors.index.json, which lists shards, is not"},
    {"pytorch_model", ".bin", SL_ERR_UNSUPPORTED, "pickles are not read: save it as safetensors"},
    {"consolidated", ".pth", SL_ERR_UNSUPPORTED, "pickles are not read: save it as safetensors"},
    {"", ".gguf", SL_ERR_NOTFOUND, "a GGUF file is named itself, not its folder"},
};

static bool is_stray(const char *name, size_t i) {
    size_t n = strlen(name), begin = strlen(strays[i].begin), end = strlen(strays[i].end);
    return n >= begin + end && memcmp(name, strays[i].begin, begin) == 0 &&
           strcmp(name + n - end, strays[i].end) == 0;
}

/* The first of them by kind, then by name; false: there is none, or no such folder. */
static bool find_stray(const char *folder, char name[256], size_t *kind) {
    DIR *dir = opendir(folder);
    struct dirent *e;
    *kind = SL_LEN(strays);
    while (dir && (e = readdir(dir)))
        for (size_t i = 0; i < SL_LEN(strays) && i <= *kind; i++) {
            if (!is_stray(e->d_name, i) || (i == *kind && strcmp(e->d_name, name) >= 0)) continue;
            *kind = i;
            snprintf(name, 256, "%s", e->d_name);
        }
    if (dir) closedir(dir);
    return *kind < SL_LEN(strays);
}

static sl_status refuse_stray(const char *folder, sl_err *err) {
    char name[256];
    size_t kind;
    if (!find_stray(folder, name, &kind))
        return sl_fail(err, SL_ERR_NOTFOUND, "%s: no %s and no %s", folder, single_name,
                       index_name);
    return sl_fail(err, strays[kind].code, "%s: no %s; %s is there, but %s", folder, single_name,
                   name, strays[kind].why);
}

bool sl_ckpt_exists(const char *folder) {
    char *single = join(folder, single_name), *index = join(folder, index_name), name[256];
    size_t kind;
    /* Out of memory says the same in sl_ckpt_open. */
    bool exists = sl_gguf_is(folder) || !single || !index || access(single, F_OK) == 0 ||
                  access(index, F_OK) == 0 || find_stray(folder, name, &kind);
    sl_free(single);
    sl_free(index);
    return exists;
}

sl_status sl_ckpt_open(const char *folder, sl_checkpoint **out, sl_err *err) {
    sl_checkpoint *c = sl_alloc(1, sizeof *c);
    char *single = join(folder, single_name), *index = join(folder, index_name);
    sl_status st;
    if (!c || !single || !index)
        st = sl_fail(err, SL_ERR_NOMEM, "%s: checkpoint", folder);
    else if (sl_gguf_is(folder))
        st = open_gguf(c, folder, err);
    else if (access(single, F_OK) == 0)
        st = open_single(c, folder, err);
    else if (access(index, F_OK) == 0)
        st = open_index(c, folder, index, err);
    else
        st = refuse_stray(folder, err);
    if (st == SL_OK) {
        *out = c;
        c = NULL;
    }
    sl_free(single);
    sl_free(index);
    sl_ckpt_free(c);
    return st;
}

void sl_ckpt_free(sl_checkpoint *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n_files; i++) {
        sl_ckpt_file *f = &c->file[i];
        sl_map_close(&f->map);
        sl_st_header_free(&f->h);
        sl_free(f->head);
        sl_free(f->name);
        sl_free(f->path);
    }
    sl_gguf_close(c->gguf);
    sl_free(c->tensor);
    sl_free(c->file);
    sl_free(c);
}

uint32_t sl_ckpt_files(const sl_checkpoint *c) {
    return c->gguf ? sl_gguf_parts(c->gguf) : c->n_files;
}

const sl_gguf *sl_ckpt_gguf(const sl_checkpoint *c) {
    return c->gguf;
}

const char *sl_ckpt_path(const sl_checkpoint *c, uint32_t file) {
    return c->gguf ? sl_gguf_part_path(c->gguf, file) : c->file[file].path;
}

sl_span sl_ckpt_header(const sl_checkpoint *c, uint32_t file) {
    if (c->gguf) return sl_gguf_head(c->gguf, file);
    return (sl_span){c->file[file].head, c->file[file].head_bytes};
}

size_t sl_ckpt_tensors(const sl_checkpoint *c) {
    return c->n_tensors;
}

sl_ckpt_tensor sl_ckpt_at(const sl_checkpoint *c, size_t i) {
    return c->tensor[i];
}

bool sl_ckpt_find(const sl_checkpoint *c, const char *name, size_t *out) {
    size_t low = 0, high = c->n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(c->tensor[mid].name, name);
        if (order == 0) {
            *out = mid;
            return true;
        }
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return false;
}

sl_status sl_ckpt_data(sl_checkpoint *c, sl_ckpt_tensor t, sl_span *out, sl_err *err) {
    if (c->gguf) {
        sl_span bytes = sl_gguf_bytes(c->gguf, t.file);
        *out = (sl_span){bytes.data + t.begin, (size_t)(t.end - t.begin)};
        return SL_OK;
    }
    sl_ckpt_file *f = &c->file[t.file];
    if (!f->map.path) {
        sl_status st = sl_map_open(f->path, UINT64_MAX, &f->map, err);
        if (st != SL_OK) return st;
    }
    if (f->map.bytes.len != f->h.file_bytes)
        return sl_fail(err, SL_ERR_FORMAT, "%s: changed from %llu to %zu bytes while it was opened",
                       f->path, (unsigned long long)f->h.file_bytes, f->map.bytes.len);
    *out = (sl_span){f->map.bytes.data + t.begin, (size_t)(t.end - t.begin)};
    return SL_OK;
}

sl_status sl_ckpt_reopen(const sl_checkpoint *c, sl_ckpt_tensor t, int *out_fd, sl_err *err) {
    if (c->gguf) return sl_gguf_reopen(c->gguf, t.file, out_fd, err);
    SL_ASSERT(c->file[t.file].map.path != NULL);
    return sl_map_reopen(&c->file[t.file].map, out_fd, err);
}
