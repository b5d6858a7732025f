/* The file of the journal: its head, frames around records, torn tails, its replacement by a
 * smaller one. What records say is journal_records.c's. */
#include "serve/journal.h"

#include "base/crc32c.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC       "SLUICEJ\n"
#define MAGIC_BYTES 8u
#define FRAME_BYTES 12u /* before the payload */
#define CRC_BYTES   4u
#define FIRST_ROOM  ((size_t)64 << 10)

struct sl_journal {
    char *path, *part;
    sl_journal_about about;
    uint8_t salt[SL_JOURNAL_SALT_BYTES];

    pthread_mutex_t lock;
    int fd, new_fd; /* new_fd: -1 unless it is renewed */
    uint32_t file, new_file;
    size_t size, new_size; /* where the next record goes */
    bool broken, new_broken;
    uint64_t written; /* bytes of all records so far, whatever the file */
    uint8_t *record;  /* frame and payload of the next one */
    size_t room;

    pthread_mutex_t sync_lock; /* before `lock`: who waits for the disk, or changes files */
    uint64_t synced;           /* under it */
};

/* ---- bytes ---- */

static bool write_all(int fd, const uint8_t *data, size_t n, size_t at) {
    while (n > 0) {
        ssize_t did = pwrite(fd, data, n, (off_t)at);
        if (did < 0 && errno == EINTR) continue;
        if (did <= 0) return false;
        data += did;
        at += (size_t)did;
        n -= (size_t)did;
    }
    return true;
}

static uint32_t check_of(const sl_journal *j, const uint8_t *frame) {
    return sl_crc32c(sl_crc32c(0, j->salt, sizeof j->salt), frame, 8);
}

static void write_head(const sl_journal *j, uint8_t out[SL_JOURNAL_HEAD_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_JOURNAL_HEAD_BYTES);
    sl_wr_bytes(&w, MAGIC, MAGIC_BYTES);
    sl_wr_u32(&w, SL_JOURNAL_VERSION);
    sl_wr_bytes(&w, j->salt, sizeof j->salt);
    sl_wr_bytes(&w, j->about.model, sizeof j->about.model);
    sl_wr_bytes(&w, j->about.service, sizeof j->about.service);
    sl_wr_u32(&w, sl_crc32c(0, out, w.len));
}

/* ---- opening ---- */

static sl_status open_file(sl_journal *j, sl_err *err) {
    struct stat is;
    j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    if (j->fd < 0 || fstat(j->fd, &is) != 0)
        return sl_fail(err, SL_ERR_IO, "journal %s: %s", j->path, strerror(errno));
    if (!S_ISREG(is.st_mode))
        return sl_fail(err, SL_ERR_ARG, "journal %s: it is no regular file", j->path);
    if (is.st_mode & 077)
        return sl_fail(err, SL_ERR_ARG,
                       "journal %s: others may read or write it, and it holds prompts (chmod 600)",
                       j->path);
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0)
        return sl_fail(err, errno == EWOULDBLOCK ? SL_ERR_AGAIN : SL_ERR_IO, "journal %s: %s",
                       j->path, errno == EWOULDBLOCK ? "another process has it" : strerror(errno));
    struct stat now;
    if (stat(j->path, &now) != 0 || now.st_ino != is.st_ino || now.st_dev != is.st_dev)
        return sl_fail(err, SL_ERR_AGAIN, "journal %s: another process replaced it just now",
                       j->path);
    j->size = (size_t)is.st_size;
    return SL_OK;
}

static sl_status create(sl_journal *j, sl_err *err) {
    uint8_t head[SL_JOURNAL_HEAD_BYTES];
    if (getrandom(j->salt, sizeof j->salt, 0) != sizeof j->salt)
        return sl_fail(err, SL_ERR_INTERNAL, "journal %s: no random numbers", j->path);
    write_head(j, head);
    if (ftruncate(j->fd, 0) != 0 || !write_all(j->fd, head, sizeof head, 0))
        return sl_fail(err, SL_ERR_IO, "journal %s: %s", j->path, strerror(errno));
    j->size = sizeof head;
    return SL_OK;
}

static sl_status read_head(sl_journal *j, sl_err *err) {
    uint8_t head[SL_JOURNAL_HEAD_BYTES];
    ssize_t got = pread(j->fd, head, sizeof head, 0);
    if (got < 0) return sl_fail(err, SL_ERR_IO, "journal %s: %s", j->path, strerror(errno));
    size_t n = (size_t)got;
    if (memcmp(head, MAGIC, SL_MIN(n, (size_t)MAGIC_BYTES)) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "journal %s: the file is something else", j->path);
    if (n < sizeof head) { /* it ended while it was created: nothing was accepted */
        sl_log(SL_LOG_WARN, "journal", "%s: its head is not whole, it is begun anew", j->path);
        return create(j, err);
    }
    sl_cur c = sl_cur_of((sl_span){head + MAGIC_BYTES, sizeof head - MAGIC_BYTES});
    uint32_t version = sl_cur_u32(&c);
    if (version != SL_JOURNAL_VERSION)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "journal %s: version %u, this program reads %u",
                       j->path, version, SL_JOURNAL_VERSION);
    memcpy(j->salt, sl_cur_take(&c, sizeof j->salt), sizeof j->salt);
    const uint8_t *model = sl_cur_take(&c, 32), *service = sl_cur_take(&c, 32);
    if (sl_cur_u32(&c) != sl_crc32c(0, head, sizeof head - CRC_BYTES))
        return sl_fail(err, SL_ERR_FORMAT, "journal %s: damaged at byte 0, its head", j->path);
    if (memcmp(model, j->about.model, 32) != 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "journal %s: it is of another model; serve that one, or give another file",
                       j->path);
    if (memcmp(service, j->about.service, 32) != 0)
        return sl_fail(err, SL_ERR_INFEASIBLE,
                       "journal %s: tokenizer or standards of sampling have changed since "
                       "(tokenizer.json, generation_config.json); give another file",
                       j->path);
    return SL_OK;
}

sl_status sl_journal_open(const char *path, const sl_journal_about *about, sl_journal **out,
                          sl_err *err) {
    size_t n = strlen(path) + sizeof ".new";
    sl_journal *j = sl_alloc(1, sizeof *j);
    if (!j) return sl_fail(err, SL_ERR_NOMEM, "journal %s: out of memory", path);
    j->fd = j->new_fd = -1;
    j->about = *about;
    pthread_mutex_init(&j->lock, NULL);
    pthread_mutex_init(&j->sync_lock, NULL);
    j->path = sl_strdup(path);
    j->part = sl_alloc(n, 1);
    j->record = sl_alloc(1, FIRST_ROOM);
    j->room = FIRST_ROOM;
    sl_status st = j->path && j->part && j->record
                       ? SL_OK
                       : sl_fail(err, SL_ERR_NOMEM, "journal %s: out of memory", path);
    if (st == SL_OK) snprintf(j->part, n, "%s.new", path);
    if (st == SL_OK) st = open_file(j, err);
    if (st == SL_OK) unlink(j->part); /* of one that ended while it renewed: the old one counts */
    if (st == SL_OK) st = j->size == 0 ? create(j, err) : read_head(j, err);
    if (st == SL_OK)
        *out = j;
    else
        sl_journal_close(j);
    return st;
}

void sl_journal_close(sl_journal *j) {
    if (!j) return;
    if (j->fd >= 0) close(j->fd);
    if (j->new_fd >= 0) {
        close(j->new_fd);
        unlink(j->part);
    }
    pthread_mutex_destroy(&j->lock);
    pthread_mutex_destroy(&j->sync_lock);
    sl_free(j->path);
    sl_free(j->part);
    sl_free(j->record);
    sl_free(j);
}

const uint8_t *sl_journal_salt(const sl_journal *j) {
    return j->salt;
}

/* ---- reading ---- */

/* The record at `at`, if a whole one is there: its bytes with the frame. 0: none. */
static size_t record_at(const sl_journal *j, const uint8_t *data, size_t len, size_t at,
                        uint32_t *type, sl_span *payload) {
    if (len - at < FRAME_BYTES + CRC_BYTES) return 0;
    sl_cur c = sl_cur_of((sl_span){data + at, len - at});
    *type = sl_cur_u32(&c);
    size_t n = sl_cur_u32(&c);
    if (sl_cur_u32(&c) != check_of(j, data + at)) return 0;
    if (n > SL_JOURNAL_RECORD_BYTES || n > len - at - FRAME_BYTES - CRC_BYTES) return 0;
    payload->data = sl_cur_take(&c, n);
    payload->len = n;
    uint32_t crc = sl_crc32c(sl_crc32c(0, data + at, 8), payload->data, n);
    return sl_cur_u32(&c) == crc ? FRAME_BYTES + n + CRC_BYTES : 0;
}

/* Where the next whole record begins behind `at`; SIZE_MAX: nowhere. */
static size_t next_whole(const sl_journal *j, const uint8_t *data, size_t len, size_t at) {
    uint32_t type;
    sl_span payload;
    for (at++; at < len; at++)
        if (record_at(j, data, len, at, &type, &payload)) return at;
    return SIZE_MAX;
}

static sl_status cut_tail(sl_journal *j, size_t at, sl_err *err) {
    sl_log(SL_LOG_WARN, "journal", "%s: its last %zu bytes, from %zu on, are no whole record: cut",
           j->path, j->size - at, at);
    if (ftruncate(j->fd, (off_t)at) != 0)
        return sl_fail(err, SL_ERR_IO, "journal %s: %s", j->path, strerror(errno));
    j->size = at;
    return SL_OK;
}

static sl_status read_records(sl_journal *j, const uint8_t *data, sl_journal_take take, void *ctx,
                              sl_err *err) {
    for (size_t at = SL_JOURNAL_HEAD_BYTES, n; at < j->size; at += n) {
        uint32_t type;
        sl_span payload;
        n = record_at(j, data, j->size, at, &type, &payload);
        if (n == 0) {
            size_t next = next_whole(j, data, j->size, at);
            if (next == SIZE_MAX) return cut_tail(j, at, err);
            return sl_fail(err, SL_ERR_FORMAT,
                           "journal %s: damaged at byte %zu, whole again from %zu on; move it "
                           "away, or cut it there (truncate -s %zu) to give up what follows",
                           j->path, at, next, at);
        }
        sl_status st = take(ctx, type, payload, err);
        if (st != SL_OK) return sl_err_prefix(err, "journal %s: at byte %zu", j->path, at);
    }
    return SL_OK;
}

sl_status sl_journal_read(sl_journal *j, sl_journal_take take, void *ctx, sl_err *err) {
    uint8_t *data = sl_alloc(1, j->size);
    if (!data) return sl_fail(err, SL_ERR_NOMEM, "journal %s: %zu bytes", j->path, j->size);
    sl_status st = SL_OK;
    for (size_t at = 0; st == SL_OK && at < j->size;) {
        ssize_t got = pread(j->fd, data + at, j->size - at, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            st = sl_fail(err, SL_ERR_IO, "journal %s: byte %zu of %zu: %s", j->path, at, j->size,
                         got < 0 ? strerror(errno) : "it ends there");
        else
            at += (size_t)got;
    }
    if (st == SL_OK) st = read_records(j, data, take, ctx, err);
    sl_free(data);
    return st;
}

/* ---- writing ---- */

uint8_t *sl_journal_begin(sl_journal *j, size_t n) {
    pthread_mutex_lock(&j->lock);
    bool fits = n <= SL_JOURNAL_RECORD_BYTES && !(j->broken && j->new_fd < 0);
    size_t need = FRAME_BYTES + n + CRC_BYTES;
    if (fits && need > j->room) {
        uint8_t *bigger = sl_grow(j->record, 0, need, 1);
        fits = bigger != NULL;
        if (fits) j->record = bigger;
        if (fits) j->room = need;
    }
    if (fits) return j->record + FRAME_BYTES;
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

static bool put(const sl_journal *j, int fd, size_t *size, size_t n, bool *broken) {
    if (*broken) return false;
    if (write_all(fd, j->record, n, *size)) {
        *size += n;
        return true;
    }
    int why = errno;
    *broken = true;
    sl_log(SL_LOG_ERROR, "journal",
           "%s cannot be written: %s; requests that run go on, new ones are refused until it can",
           fd == j->fd ? j->path : j->part, strerror(why));
    if (ftruncate(fd, (off_t)*size) != 0)
        sl_log(SL_LOG_ERROR, "journal", "%s: nor cut: %s", j->path, strerror(errno));
    return false;
}

bool sl_journal_commit(sl_journal *j, sl_journal_where where, uint32_t type, size_t n,
                       uint64_t *upto) {
    size_t all = FRAME_BYTES + n + CRC_BYTES;
    if (where == SL_JOURNAL_NOWHERE) {
        pthread_mutex_unlock(&j->lock);
        return true;
    }
    sl_wr w = sl_wr_of(j->record, j->room);
    sl_wr_u32(&w, type);
    sl_wr_u32(&w, (uint32_t)n);
    sl_wr_u32(&w, check_of(j, j->record));
    sl_wr_take(&w, n);
    uint32_t crc = sl_crc32c(sl_crc32c(0, j->record, 8), j->record + FRAME_BYTES, n);
    sl_wr_u32(&w, crc);
    bool ok = where == SL_JOURNAL_NEW || put(j, j->fd, &j->size, all, &j->broken);
    if (where != SL_JOURNAL_HERE && j->new_fd >= 0) {
        bool also = put(j, j->new_fd, &j->new_size, all, &j->new_broken);
        ok = where == SL_JOURNAL_NEW ? also : ok;
    } else if (where == SL_JOURNAL_NEW) {
        ok = false;
    }
    j->written += all;
    if (upto) *upto = j->written;
    pthread_mutex_unlock(&j->lock);
    return ok;
}

uint32_t sl_journal_file(const sl_journal *j) {
    return j->file;
}

uint64_t sl_journal_end(sl_journal *j) {
    pthread_mutex_lock(&j->lock);
    uint64_t end = j->written;
    pthread_mutex_unlock(&j->lock);
    return end;
}

bool sl_journal_sync(sl_journal *j, uint64_t upto) {
    pthread_mutex_lock(&j->sync_lock);
    bool ok = j->synced >= upto;
    if (!ok) { /* whoever waits behind the lock is served by the same wait */
        uint64_t end = sl_journal_end(j);
        ok = fdatasync(j->fd) == 0;
        if (ok) j->synced = end;
    }
    pthread_mutex_unlock(&j->sync_lock);
    return ok;
}

bool sl_journal_is_broken(sl_journal *j) {
    pthread_mutex_lock(&j->lock);
    bool broken = j->broken;
    pthread_mutex_unlock(&j->lock);
    return broken;
}

size_t sl_journal_bytes(sl_journal *j) {
    pthread_mutex_lock(&j->lock);
    size_t n = j->size;
    pthread_mutex_unlock(&j->lock);
    return n;
}

/* ---- renewal ---- */

sl_status sl_journal_renew(sl_journal *j, uint32_t number, sl_err *err) {
    uint8_t head[SL_JOURNAL_HEAD_BYTES];
    unlink(j->part);
    int fd = open(j->part, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    write_head(j, head);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 || !write_all(fd, head, sizeof head, 0)) {
        sl_status st = sl_fail(err, SL_ERR_IO, "journal %s: %s", j->part, strerror(errno));
        if (fd >= 0) close(fd);
        if (fd >= 0) unlink(j->part);
        return st;
    }
    pthread_mutex_lock(&j->lock);
    j->new_fd = fd;
    j->new_file = number;
    j->new_size = sizeof head;
    j->new_broken = false;
    pthread_mutex_unlock(&j->lock);
    return SL_OK;
}

/* The name in its folder is durable. */
static bool sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder =
        slash ? sl_strndup(path, SL_MAX((size_t)(slash - path), (size_t)1)) : sl_strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    sl_free(folder);
    return ok;
}

/* Under both locks. `durable`: what was written when the new file was last synced. */
static sl_status replace(sl_journal *j, uint64_t durable, sl_err *err) {
    if (j->new_broken || rename(j->part, j->path) != 0)
        return sl_fail(err, SL_ERR_IO, "journal %s: %s", j->part,
                       j->new_broken ? "it could not be written" : strerror(errno));
    close(j->fd);
    j->fd = j->new_fd;
    j->file = j->new_file;
    j->size = j->new_size;
    j->broken = false;
    j->synced = durable;
    j->new_fd = -1;
    return SL_OK;
}

sl_status sl_journal_renewed(sl_journal *j, bool keep, sl_err *err) {
    sl_status st = SL_OK;
    bool synced = !keep || fdatasync(j->new_fd) == 0; /* most of it, while others go on */
    pthread_mutex_lock(&j->sync_lock);
    /* What came meanwhile may have been shown, as the old file was synced. */
    uint64_t durable = sl_journal_end(j);
    if (!synced || (keep && fdatasync(j->new_fd) != 0))
        st = sl_fail(err, SL_ERR_IO, "journal %s: %s", j->part, strerror(errno));
    pthread_mutex_lock(&j->lock);
    if (keep && st == SL_OK) st = replace(j, durable, err);
    if (j->new_fd >= 0) {
        close(j->new_fd);
        unlink(j->part);
        j->new_fd = -1;
    }
    pthread_mutex_unlock(&j->lock);
    if (keep && st == SL_OK && !sync_folder(j->path))
        sl_log(SL_LOG_WARN, "journal", "%s: its folder cannot be synced: %s", j->path,
               strerror(errno));
    pthread_mutex_unlock(&j->sync_lock);
    return st;
}
