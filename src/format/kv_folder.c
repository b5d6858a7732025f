/* The folder of --kv-disk. */
#include "format/kv_folder.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_MOST 4096u
#define TRIES     3u /* for a salt that another process makes just now */

sl_status sl_kv_folder_check(const char *folder, sl_err *err) {
    struct stat s;
    if (mkdir(folder, 0700) != 0 && errno != EEXIST)
        return sl_fail(err, SL_ERR_IO, "--kv-disk %s: it cannot be made: %s", folder,
                       strerror(errno));
    if (stat(folder, &s) != 0)
        return sl_fail(err, SL_ERR_IO, "--kv-disk %s: %s", folder, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return sl_fail(err, SL_ERR_ARG, "--kv-disk %s: it is no folder", folder);
    if (s.st_uid != geteuid())
        return sl_fail(err, SL_ERR_ARG, "--kv-disk %s: it is another user's", folder);
    if (s.st_mode & 022)
        return sl_fail(err, SL_ERR_ARG, "--kv-disk %s: others may write in it (chmod 700)", folder);
    if (access(folder, R_OK | W_OK | X_OK) != 0)
        return sl_fail(err, SL_ERR_IO, "--kv-disk %s: %s", folder, strerror(errno));
    return SL_OK;
}

static sl_status path_in(const char *folder, const char *name, char out[PATH_MOST], sl_err *err) {
    int n = snprintf(out, PATH_MOST, "%s/%s", folder, name);
    if (n > 0 && (unsigned)n < PATH_MOST) return SL_OK;
    return sl_fail(err, SL_ERR_LIMIT, "--kv-disk %.80s...: longer than %u bytes", folder,
                   PATH_MOST);
}

/* A file of the folder that holds n bytes, or with n 0 any; *out: open. */
static sl_status open_own(const char *path, int flags, size_t n, int *out, sl_err *err) {
    struct stat s;
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOTFOUND : SL_ERR_IO, "%s: %s", path,
                       errno == ELOOP ? "it is a link" : strerror(errno));
    sl_status st = SL_OK;
    if (fstat(fd, &s) != 0)
        st = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(s.st_mode) || s.st_uid != geteuid() || (s.st_mode & 077))
        st = sl_fail(err, SL_ERR_ARG,
                     "%s: it is no file of this user alone (a regular one, chmod 600)", path);
    else if (n && (uint64_t)s.st_size != n)
        st = sl_fail(err, SL_ERR_FORMAT, "%s: %lld bytes, not %zu", path, (long long)s.st_size, n);
    if (st == SL_OK)
        *out = fd;
    else
        close(fd);
    return st;
}

/* ---- the salt ---- */

static sl_status read_salt(const char *path, uint8_t out[SL_KV_SALT_BYTES], sl_err *err) {
    int fd = -1;
    sl_status st = open_own(path, O_RDONLY, SL_KV_SALT_BYTES, &fd, err);
    if (st != SL_OK) return st;
    if (read(fd, out, SL_KV_SALT_BYTES) != SL_KV_SALT_BYTES)
        st = sl_fail(err, SL_ERR_IO, "%s: it cannot be read", path);
    close(fd);
    return st;
}

/* Whole before it has its name, and never in the place of another. */
static sl_status make_salt(const char *path, sl_err *err) {
    char part[PATH_MOST + 32];
    uint8_t salt[SL_KV_SALT_BYTES];
    snprintf(part, sizeof part, "%s.%08x.part", path, randombytes_random());
    randombytes_buf(salt, sizeof salt);
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && write(fd, salt, sizeof salt) == (ssize_t)sizeof salt && fsync(fd) == 0 &&
              (link(part, path) == 0 || errno == EEXIST);
    sl_status st =
        ok ? SL_OK : sl_fail(err, SL_ERR_IO, "%s: it cannot be written: %s", path, strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(part);
    }
    return st;
}

sl_status sl_kv_folder_salt(const char *folder, uint8_t out[SL_KV_SALT_BYTES], sl_err *err) {
    char path[PATH_MOST];
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "no source of random numbers");
    sl_status st = path_in(folder, "salt", path, err);
    if (st != SL_OK) return st;
    st = read_salt(path, out, err);
    for (unsigned i = 0; st == SL_ERR_NOTFOUND && i < TRIES; i++) {
        st = make_salt(path, err);
        if (st == SL_OK) st = read_salt(path, out, err);
    }
    return st;
}

/* ---- a worker's file ---- */

/* Of a process that was killed as it wrote. Who has the lock is the only one who makes any. */
static void remove_parts(const char *folder, const char *name) {
    DIR *d = opendir(folder);
    const size_t n = strlen(name), end = sizeof ".part" - 1;
    if (!d) return;
    for (const struct dirent *e; (e = readdir(d));) {
        const size_t len = strlen(e->d_name);
        if (len > n + end && memcmp(e->d_name, name, n) == 0 && e->d_name[n] == '.' &&
            strcmp(e->d_name + len - end, ".part") == 0)
            (void)unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}

sl_status sl_kv_place_open(const char *folder, uint32_t id, sl_kv_place *out, sl_err *err) {
    char name[32], path[PATH_MOST];
    int fd = -1;
    *out = (sl_kv_place){0};
    snprintf(name, sizeof name, "worker-%u.lock", id);
    sl_status st = path_in(folder, name, path, err);
    if (st == SL_OK) st = open_own(path, O_RDWR | O_CREAT, 0, &fd, err);
    if (st != SL_OK) return st;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        st = sl_fail(err, errno == EWOULDBLOCK ? SL_ERR_AGAIN : SL_ERR_IO, "%s: %s", path,
                     errno == EWOULDBLOCK ? "another process has it" : strerror(errno));
        close(fd);
        return st;
    }
    snprintf(name, sizeof name, "worker-%u.kv", id);
    st = path_in(folder, name, path, err);
    char *file = st == SL_OK ? sl_strdup(path) : NULL;
    if (st == SL_OK && !file) st = sl_fail(err, SL_ERR_NOMEM, "%s: its name", path);
    if (st != SL_OK) {
        close(fd);
        return st;
    }
    remove_parts(folder, name);
    *out = (sl_kv_place){.file = file, .lock = fd};
    return SL_OK;
}

void sl_kv_place_close(sl_kv_place *p) {
    if (!p->file) return;
    close(p->lock);
    sl_free(p->file);
    *p = (sl_kv_place){0};
}
