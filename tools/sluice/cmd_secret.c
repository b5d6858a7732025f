/* The fabric's secret: made by `sluice secret`, read from --secret-file or the environment. And
 * files of keys and certificates. */
#include "cmd.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MS        60000      /* how long standard input may say nothing */
#define MAX_TEXT_BYTES (1u << 20) /* of a file of keys, or of certificates */

/* Never replaces a file: whoever holds the old secret could not join any more. */
static sl_status write_secret(const char *path, const char *secret, sl_err *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    bool ok = dprintf(fd, "%s\n", secret) == (int)strlen(secret) + 1 && fsync(fd) == 0;
    int why = errno;
    if (close(fd) != 0 && ok) ok = false, why = errno;
    if (ok) return SL_OK;
    (void)unlink(path);
    return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(why));
}

int cmd_secret(const sl_options *o) {
    sl_err err = {0};
    char secret[SL_SECRET_MAX + 1];
    sl_status st = sl_secret_make(secret, &err);
    if (st == SL_OK && o->out[0]) st = write_secret(o->out, secret, &err);
    if (st != SL_OK) return sl_cmd_fail("secret", &err);
    if (o->json) {
        printf(o->out[0] ? "{\"file\": " : "{\"secret\": ");
        sl_print_json_string(stdout, o->out[0] ? o->out : secret,
                             strlen(o->out[0] ? o->out : secret));
        printf("}\n");
    } else if (o->out[0]) {
        printf("%s: a secret of 32 random bytes, for its owner alone; copy it to every machine\n",
               o->out);
    } else {
        printf("%s\n", secret);
    }
    return 0;
}

/* Who may read a file. */
typedef enum reader {
    ANYBODY,
    OWNER,
    OWNER_OR_ROOTS_GROUP, /* a group to which root has given a file of its own, to read it */
} reader;

/* A service manager hands over credentials as root's own, 0400 and an entry for the service's user,
 * which shows as a group's right to read: nobody else is in that group of root's. */
static bool is_open_to_others(const struct stat *s, reader who) {
    const bool of_root = s->st_uid == 0;
    const bool handed_over = of_root && s->st_gid == 0 && (s->st_mode & 0777) == 0440;
    const bool given = who == OWNER_OR_ROOTS_GROUP && of_root && (s->st_mode & 037) == 0;
    return who != ANYBODY && (s->st_mode & 077) != 0 && !handed_over && !given;
}

/* Until its end, or `most` bytes; false: it cannot be read, or says nothing for a minute. */
static bool read_all(int fd, char *out, size_t most, size_t *n) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    *n = 0;
    for (ssize_t got = 1; got > 0 && *n < most; *n += (size_t)got) {
        if (poll(&p, 1, READ_MS) != 1) return false;
        got = read(fd, out + *n, most - *n);
        if (got < 0) return false;
    }
    return true;
}

/* At most `most` bytes of a file, which nobody else may be able to read, or of standard input, "-",
 * which may be a pipe. */
static sl_status read_file(const char *path, reader who, char *out, size_t most, size_t *n,
                           sl_err *err) {
    struct stat s;
    const bool given = strcmp(path, "-") == 0;
    int fd = given ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    bool open_to_others = fstat(fd, &s) != 0 || (!S_ISFIFO(s.st_mode) && !S_ISSOCK(s.st_mode) &&
                                                 !S_ISCHR(s.st_mode) && is_open_to_others(&s, who));
    bool failed = !read_all(fd, out, most, n);
    if (!given) close(fd);
    if (open_to_others)
        return sl_fail(err, SL_ERR_ARG, "%s: mode %04o opens the secret to others: chmod 600 %s",
                       path, s.st_mode & 07777u, path);
    return failed ? sl_fail(err, SL_ERR_IO, "%s: cannot be read", path) : SL_OK;
}

sl_status sl_deploy_read_key(const char *path, char out[SL_SECRET_MAX + 1], sl_err *err) {
    size_t n;
    sl_status st = read_file(path, OWNER, out, SL_SECRET_MAX + 1, &n, err);
    if (st != SL_OK) return st;
    while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == '\r')) n--;
    if (memchr(out, 0, n))
        return sl_fail(err, SL_ERR_ARG, "%s: a secret is text, byte %zu is 0", path, strlen(out));
    st = sl_secret_check(n, path, err);
    if (st == SL_OK) out[n] = '\0';
    return st;
}

static sl_status read_text(const char *path, reader who, char **out, sl_err *err) {
    size_t n = 0;
    char *text = sl_alloc(MAX_TEXT_BYTES + 1, 1);
    if (!text) return sl_fail(err, SL_ERR_NOMEM, "%s: out of memory", path);
    sl_status st = read_file(path, who, text, MAX_TEXT_BYTES + 1, &n, err);
    if (st == SL_OK && n > MAX_TEXT_BYTES)
        st = sl_fail(err, SL_ERR_LIMIT, "%s: more than %u bytes", path, MAX_TEXT_BYTES);
    if (st == SL_OK && memchr(text, 0, n))
        st = sl_fail(err, SL_ERR_ARG, "%s: %s text, byte %zu is 0", path,
                     who == ANYBODY ? "it is no" : "keys are", strlen(text));
    if (st != SL_OK) {
        sl_free(text);
        return st;
    }
    text[n] = 0;
    *out = text;
    return SL_OK;
}

sl_status sl_deploy_read_keys(const char *path, char **out, sl_err *err) {
    return read_text(path, OWNER, out, err);
}

sl_status sl_deploy_read_tls_key(const char *path, char **out, sl_err *err) {
    return read_text(path, OWNER_OR_ROOTS_GROUP, out, err);
}

sl_status sl_deploy_read_text(const char *path, char **out, sl_err *err) {
    return read_text(path, ANYBODY, out, err);
}

sl_status sl_deploy_secret(const sl_options *o, char out[SL_SECRET_MAX + 1], sl_err *err) {
    out[0] = '\0';
    if (o->secret_file[0]) return sl_deploy_read_key(o->secret_file, out, err);
    const char *env = sl_options_secret();
    if (!env) return SL_OK;
    sl_status st = sl_secret_check(strlen(env), "SLUICE_SECRET", err);
    if (st == SL_OK) strcpy(out, env);
    return st;
}
