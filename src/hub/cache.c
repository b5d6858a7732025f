/* The cache on disk: paths, references, links, and what of a model is there without any network. */
#include "hub/hub_int.h"

#include "base/mem.h"
#include "base/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_DEPTH 4u /* of folders in a snapshot that are looked into */

sl_status sl_hub_path(const sl_hub_settings *s, const sl_hub_name *n, char out[SL_HUB_PATH],
                      sl_err *err, const char *fmt, ...) {
    int head = snprintf(out, SL_HUB_PATH, "%s/models--%s--%s/", s->cache, n->org, n->model),
        tail = 0;
    if (head > 0 && head < (int)SL_HUB_PATH) {
        va_list args;
        va_start(args, fmt);
        tail = vsnprintf(out + head, SL_HUB_PATH - (size_t)head, fmt, args);
        va_end(args);
    }
    if (head < 0 || tail < 0 || head + tail >= (int)SL_HUB_PATH)
        return sl_fail(err, SL_ERR_LIMIT, "%.200s...: a path of over %u bytes", s->cache,
                       SL_HUB_PATH - 1);
    return SL_OK;
}

sl_status sl_hub_make_folders(const char *path, sl_err *err) {
    char at[SL_HUB_PATH];
    size_t n = strlen(path);
    if (n >= sizeof at) return sl_fail(err, SL_ERR_LIMIT, "%.200s...: path", path);
    memcpy(at, path, n + 1);
    for (size_t i = 1; i < n; i++) {
        if (at[i] != '/') continue;
        at[i] = 0;
        if (mkdir(at, 0777) != 0 && errno != EEXIST)
            return sl_fail(err, SL_ERR_IO, "%s: cannot be created: %s", at, strerror(errno));
        at[i] = '/';
    }
    return SL_OK;
}

sl_status sl_hub_ref_write(const sl_hub_settings *s, const sl_hub_name *n, const char *commit,
                           sl_err *err) {
    char path[SL_HUB_PATH];
    sl_output f;
    if (strcmp(n->revision, commit) == 0) return SL_OK;
    sl_status st = sl_hub_path(s, n, path, err, "refs/%s", n->revision);
    if (st == SL_OK) st = sl_hub_make_folders(path, err);
    if (st == SL_OK) st = sl_output_open(path, &f, err);
    if (st != SL_OK) return st;
    fputs(commit, f.f);
    return sl_output_close(&f, err);
}

/* The commit that the revision was at when it was last asked for. */
static sl_status read_ref(const sl_hub_settings *s, const sl_hub_name *n,
                          char commit[SL_HUB_COMMIT + 1], sl_err *err) {
    char path[SL_HUB_PATH], text[SL_HUB_COMMIT + 2] = {0};
    if (sl_hub_is_hex(n->revision, SL_HUB_COMMIT)) {
        memcpy(commit, n->revision, SL_HUB_COMMIT + 1);
        return SL_OK;
    }
    sl_status st = sl_hub_path(s, n, path, err, "refs/%s", n->revision);
    if (st != SL_OK) return st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    if (got < 0)
        return sl_fail(err, SL_ERR_NOTFOUND, "%s/%s@%s is not in %s", n->org, n->model, n->revision,
                       s->cache);
    text[strcspn(text, "\r\n")] = 0;
    if (!sl_hub_is_hex(text, SL_HUB_COMMIT))
        return sl_fail(err, SL_ERR_FORMAT, "%s: \"%.41s\" is no commit", path, text);
    memcpy(commit, text, SL_HUB_COMMIT + 1);
    return SL_OK;
}

static bool links_to(const char *path, const char *to) {
    char was[SL_HUB_PATH];
    ssize_t n = readlink(path, was, sizeof was - 1);
    if (n <= 0) return false;
    was[n] = 0;
    return strcmp(was, to) == 0;
}

sl_status sl_hub_link(const sl_hub_settings *s, const sl_hub_name *n, const char *commit,
                      const sl_hub_file *f, sl_err *err) {
    char path[SL_HUB_PATH], part[SL_HUB_PATH + 32], to[SL_HUB_PATH];
    size_t used = 0;
    sl_status st = sl_hub_path(s, n, path, err, "snapshots/%s/%s", commit, f->name);
    if (st == SL_OK) st = sl_hub_make_folders(path, err);
    if (st != SL_OK) return st;
    for (const char *c = f->name; c; c = strchr(c, '/') ? strchr(c, '/') + 1 : NULL)
        used += (size_t)snprintf(to + used, sizeof to - used, "../");
    snprintf(to + used, sizeof to - used, "../blobs/%s", f->id);
    if (links_to(path, to)) return SL_OK;
    snprintf(part, sizeof part, "%s.%ld.part", path, (long)getpid());
    unlink(part);
    if (symlink(to, part) != 0 || rename(part, path) != 0) {
        int why = errno;
        unlink(part);
        if (links_to(path, to)) return SL_OK; /* by a process of our number in another container */
        return sl_fail(err, SL_ERR_IO, "%s: cannot become a link to %s: %s", path, to,
                       strerror(why));
    }
    return SL_OK;
}

/* Files below `folder` whose bytes are there; `name` is that of the folder in the snapshot. */
static sl_status list_folder(const char *folder, const char *name, unsigned depth,
                             sl_hub_listing *l, sl_err *err) {
    DIR *dir = opendir(folder);
    struct dirent *e;
    struct stat at;
    sl_status st = SL_OK;
    while (st == SL_OK && dir && (e = readdir(dir))) {
        char path[SL_HUB_PATH], inside[SL_HUB_MAX_NAME + 1];
        if (e->d_name[0] == '.') continue;
        int a = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        int b = snprintf(inside, sizeof inside, "%s%s", name, e->d_name);
        if (a >= (int)sizeof path || b >= (int)sizeof inside - 1 || stat(path, &at) != 0) continue;
        if (S_ISDIR(at.st_mode) && depth < MAX_DEPTH) {
            inside[b] = '/';
            inside[b + 1] = 0;
            st = list_folder(path, inside, depth + 1, l, err);
        } else if (S_ISREG(at.st_mode) && sl_hub_name_is_safe(inside)) {
            st = sl_hub_listing_add(l, inside, (uint64_t)at.st_size, "", err);
        }
    }
    if (dir) closedir(dir);
    return st;
}

sl_status sl_hub_find(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                      sl_hub_report *out, sl_err *err) {
    sl_hub_listing l = {0};
    sl_hub_choice choice = {0};
    char what[2 * SL_HUB_PART + 32], index[SL_HUB_PATH];
    *out = (sl_hub_report){0};
    snprintf(what, sizeof what, "%s/%s in the cache", name->org, name->model);
    sl_status st = read_ref(s, name, out->commit, err);
    if (st == SL_OK) st = sl_hub_path(s, name, out->path, err, "snapshots/%s", out->commit);
    if (st == SL_OK) st = list_folder(out->path, "", 0, &l, err);
    if (st == SL_OK && l.n == 0)
        st = sl_fail(err, SL_ERR_NOTFOUND, "%s/%s@%s is not in %s", name->org, name->model,
                     name->revision, s->cache);
    if (st == SL_OK) st = sl_hub_select(&l, what, name->pattern, want, &choice, err);
    if (st == SL_OK && choice.index) {
        st = sl_hub_path(s, name, index, err, "snapshots/%s/%s", out->commit, choice.index);
        if (st == SL_OK) st = sl_hub_select_shards(&l, index, err);
    }
    if (st == SL_OK && choice.open)
        st = sl_hub_path(s, name, out->path, err, "snapshots/%s/%s", out->commit, choice.open);
    for (size_t i = 0; st == SL_OK && i < l.n; i++) {
        out->files += l.file[i].wanted;
        out->bytes += l.file[i].wanted ? l.file[i].bytes : 0;
    }
    sl_hub_listing_free(&l);
    return st;
}
