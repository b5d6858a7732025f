/* Files that are written whole or not at all: a part beside the target, renamed at the end. */
#include "base/output.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PART_TRIES 100u /* names that others may have left */

static sl_status refuse(const char *path, const char *why, sl_err *err) {
    return sl_fail(err, SL_ERR_ARG, "%s: is %s, and no file is written in its place", path, why);
}

/* What the path stands for: *target is the regular file to replace or create, or NULL where bytes
 * go to what is there. */
static sl_status find_target(const char *path, char **target, sl_err *err) {
    struct stat at, link;
    *target = NULL;
    bool there = stat(path, &at) == 0;
    if (!there && lstat(path, &link) == 0) return refuse(path, "a link to nothing", err);
    if (!there && errno != ENOENT) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (there && S_ISDIR(at.st_mode)) return refuse(path, "a folder", err);
    if (there && S_ISSOCK(at.st_mode)) return refuse(path, "a socket", err);
    if (there && access(path, W_OK) != 0)
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (there && !S_ISREG(at.st_mode)) return SL_OK;
    char *real = there ? realpath(path, NULL) : NULL; /* a link stays, its file is replaced */
    *target = sl_strdup(real ? real : path);
    free(real);
    return *target ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: its name", path);
}

static sl_status find_private_target(const char *path, char **target, sl_err *err) {
    struct stat at;
    bool there = lstat(path, &at) == 0;
    if (!there && errno != ENOENT) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (there && !S_ISREG(at.st_mode)) return refuse(path, "no regular file", err);
    if (there && at.st_uid != geteuid()) return refuse(path, "another user's", err);
    *target = sl_strdup(path);
    return *target ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: its name", path);
}

/* A new file beside the target, with the rights that the target has or would get; private: its
 * owner's alone. */
static sl_status open_part(sl_output *o, bool private, sl_err *err) {
    static atomic_uint serial;
    size_t n = strlen(o->target) + 48;
    struct stat was;
    int fd = -1;
    o->part = sl_alloc(n, 1);
    if (!o->part) return sl_fail(err, SL_ERR_NOMEM, "%s: its name", o->path);
    for (unsigned i = 0; fd < 0 && i < PART_TRIES; i++) {
        snprintf(o->part, n, "%s.%ld-%u.part", o->target, (long)getpid(),
                 atomic_fetch_add_explicit(&serial, 1, memory_order_relaxed));
        fd = open(o->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, private ? 0600 : 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0)
        return sl_fail(err, SL_ERR_IO, "%s: %s cannot be created: %s", o->path, o->part,
                       strerror(errno));
    if (!private && stat(o->target, &was) == 0 && fchmod(fd, was.st_mode & 07777) != 0) {
        /* a file system without rights keeps its own */
    }
    o->f = fdopen(fd, "wb");
    if (o->f) return SL_OK;
    close(fd);
    unlink(o->part);
    return sl_fail(err, SL_ERR_NOMEM, "%s: its stream", o->path);
}

static void forget(sl_output *o) {
    sl_free(o->path);
    sl_free(o->target);
    sl_free(o->part);
    *o = (sl_output){0};
}

sl_status sl_output_open(const char *path, sl_output *out, sl_err *err) {
    sl_output o = {.path = sl_strdup(path)};
    sl_status st = o.path ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: its name", path);
    bool is_stdout = strcmp(path, "-") == 0;
    if (st == SL_OK && !is_stdout) st = find_target(path, &o.target, err);
    if (st == SL_OK && o.target)
        st = open_part(&o, false, err);
    else if (st == SL_OK && (o.f = is_stdout ? stdout : fopen(path, "we")) == NULL)
        st = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (st != SL_OK) forget(&o);
    *out = o;
    return st;
}

sl_status sl_output_open_private(const char *path, sl_output *out, sl_err *err) {
    sl_output o = {.path = sl_strdup(path)};
    sl_status st = o.path ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: its name", path);
    if (st == SL_OK) st = find_private_target(path, &o.target, err);
    if (st == SL_OK) st = open_part(&o, true, err);
    if (st != SL_OK) forget(&o);
    *out = o;
    return st;
}

sl_status sl_output_close(sl_output *o, sl_err *err) {
    /* An earlier write's errno is gone; a disk that was full then mostly is so now. */
    errno = 0;
    bool ok = fflush(o->f) == 0 && !ferror(o->f);
    if (ok && o->part) ok = fsync(fileno(o->f)) == 0;
    int why = errno;
    if (o->f != stdout && fclose(o->f) != 0 && ok) {
        ok = false;
        why = errno;
    }
    if (ok && o->part && rename(o->part, o->target) != 0) {
        ok = false;
        why = errno;
    }
    sl_status st = SL_OK;
    if (!ok)
        st = sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", o->path,
                     why ? strerror(why) : "a write failed");
    if (!ok && o->part) unlink(o->part);
    forget(o);
    return st;
}

void sl_output_abandon(sl_output *o) {
    if (!o->f) return;
    if (o->f != stdout) fclose(o->f);
    if (o->part) unlink(o->part);
    forget(o);
}

sl_status sl_output_end(sl_output *o, sl_status st, sl_err *err) {
    if (st == SL_OK) return sl_output_close(o, err);
    sl_output_abandon(o);
    return st;
}
