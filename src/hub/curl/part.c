/* Files on their way: bytes, state beside them, and the lock over a blob. */
#include "hub/curl/part.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIN_PIECE   ((uint64_t)8 << 20)
#define MAX_PIECE   ((uint64_t)256 << 20)
#define PIECES_WANT 32u
#define SAVE_EVERY  ((uint64_t)1 << 20)

/* In the machine's byte order: the state goes nowhere else. */
typedef struct state_head {
    char magic[8];
    uint64_t bytes, piece, n;
} state_head;

static const char magic[8] = "SLHUB\0\0\1";

sl_status sl_hub_lock(const sl_hub_settings *s, const sl_hub_name *n, const char *id, int *out,
                      sl_err *err) {
    char path[SL_HUB_PATH];
    struct stat open_one, named;
    *out = -1;
    int len = snprintf(path, sizeof path, "%s/.locks/models--%s--%s/%s.lock", s->cache, n->org,
                       n->model, id);
    if (len >= (int)sizeof path) return sl_fail(err, SL_ERR_LIMIT, "%.200s...: path", path);
    sl_status st = sl_hub_make_folders(path, err);
    if (st != SL_OK) return st;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int why = errno;
        close(fd);
        return why == EWOULDBLOCK || why == EINTR
                   ? SL_OK
                   : sl_fail(err, SL_ERR_IO, "%s: cannot be locked: %s", path, strerror(why));
    }
    /* Whoever removed the file meanwhile left us a lock that nobody sees. */
    if (fstat(fd, &open_one) != 0 || stat(path, &named) != 0 || open_one.st_ino != named.st_ino)
        close(fd);
    else
        *out = fd;
    return SL_OK;
}

static uint64_t piece_bytes(uint64_t bytes) {
    uint64_t piece = MIN_PIECE;
    while (piece < MAX_PIECE && piece * PIECES_WANT < bytes) piece *= 2;
    while (piece * SL_HUB_MAX_PIECES < bytes) piece *= 2;
    return piece;
}

static sl_status fail_io(const char *path, const char *what, sl_err *err) {
    int why = errno;
    bool full = why == ENOSPC || why == EDQUOT || why == EFBIG;
    return sl_fail(err, full ? SL_ERR_LIMIT : SL_ERR_IO, "%s: %s: %s", path, what, strerror(why));
}

static bool read_state(sl_hub_part *p) {
    state_head h;
    struct stat at;
    bool fits = pread(p->state_fd, &h, sizeof h, 0) == (ssize_t)sizeof h &&
                memcmp(h.magic, magic, sizeof magic) == 0 && h.bytes == p->bytes &&
                h.piece == p->piece && h.n == p->n && fstat(p->fd, &at) == 0;
    size_t size = p->n * sizeof *p->done;
    fits = fits && pread(p->state_fd, p->done, size, sizeof h) == (ssize_t)size;
    for (uint32_t i = 0; fits && i < p->n; i++) {
        uint64_t end = sl_hub_part_begin(p, i) + p->done[i];
        fits = p->done[i] <= sl_hub_part_length(p, i) &&
               (p->done[i] == 0 || end <= (uint64_t)at.st_size);
        p->saved[i] = p->done[i];
    }
    return fits;
}

static sl_status divide(sl_hub_part *p, uint64_t piece, sl_err *err) {
    sl_free(p->done);
    p->piece = SL_MAX(piece, (uint64_t)1);
    p->n = (uint32_t)((p->bytes + p->piece - 1) / p->piece);
    p->done = sl_alloc(2 * (size_t)p->n, sizeof *p->done);
    p->saved = p->done ? p->done + p->n : NULL;
    return p->done ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: %u pieces", p->path, p->n);
}

sl_status sl_hub_part_reset(sl_hub_part *p, bool whole, sl_err *err) {
    sl_status st = divide(p, whole ? p->bytes : piece_bytes(p->bytes), err);
    if (st != SL_OK) return st;
    state_head h = {.bytes = p->bytes, .piece = p->piece, .n = p->n};
    memcpy(h.magic, magic, sizeof magic);
    size_t size = p->n * sizeof *p->done;
    if (ftruncate(p->fd, 0) != 0 || ftruncate(p->state_fd, 0) != 0 ||
        pwrite(p->state_fd, &h, sizeof h, 0) != (ssize_t)sizeof h ||
        pwrite(p->state_fd, p->done, size, sizeof h) != (ssize_t)size)
        return fail_io(p->state_path, "cannot be written", err);
    return SL_OK;
}

sl_status sl_hub_part_open(sl_hub_part *p, const char *path, uint64_t bytes, sl_err *err) {
    *p = (sl_hub_part){.fd = -1, .state_fd = -1, .bytes = bytes};
    snprintf(p->path, sizeof p->path, "%s.sluice.part", path);
    snprintf(p->state_path, sizeof p->state_path, "%s.sluice.state", path);
    sl_status st = sl_hub_make_folders(path, err);
    if (st == SL_OK) st = divide(p, piece_bytes(bytes), err);
    if (st != SL_OK) return st;
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
    p->fd = open(p->path, flags, 0666);
    if (p->fd < 0) return fail_io(p->path, "cannot be opened", err);
    p->state_fd = open(p->state_path, flags, 0666);
    if (p->state_fd < 0) return fail_io(p->state_path, "cannot be opened", err);
    return read_state(p) ? SL_OK : sl_hub_part_reset(p, false, err);
}

void sl_hub_part_close(sl_hub_part *p) {
    if (!p->done && p->bytes == 0 && p->path[0] == 0) return; /* never opened */
    if (p->fd >= 0) close(p->fd);
    if (p->state_fd >= 0) close(p->state_fd);
    sl_free(p->done);
    *p = (sl_hub_part){.fd = -1, .state_fd = -1};
}

uint64_t sl_hub_part_begin(const sl_hub_part *p, uint32_t piece) {
    return p->piece * piece;
}

uint64_t sl_hub_part_length(const sl_hub_part *p, uint32_t piece) {
    return SL_MIN(p->piece, p->bytes - p->piece * piece);
}

uint64_t sl_hub_part_have(const sl_hub_part *p) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < p->n; i++) sum += p->done[i];
    return sum;
}

uint64_t sl_hub_part_front(const sl_hub_part *p) {
    uint64_t front = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        front += p->done[i];
        if (p->done[i] < sl_hub_part_length(p, i)) break;
    }
    return front;
}

sl_status sl_hub_part_write(sl_hub_part *p, uint32_t piece, const void *bytes, size_t n,
                            sl_err *err) {
    const uint8_t *from = bytes;
    SL_ASSERT(n <= sl_hub_part_length(p, piece) - p->done[piece]);
    while (n > 0) {
        uint64_t at = sl_hub_part_begin(p, piece) + p->done[piece];
        ssize_t put = pwrite(p->fd, from, n, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            if (put == 0) errno = EIO;
            return fail_io(p->path, "cannot be written", err);
        }
        from += put;
        n -= (size_t)put;
        p->done[piece] += (uint64_t)put;
    }
    bool due = p->done[piece] - p->saved[piece] >= SAVE_EVERY;
    return due ? sl_hub_part_save(p, piece, err) : SL_OK;
}

sl_status sl_hub_part_save(sl_hub_part *p, uint32_t piece, sl_err *err) {
    off_t at = (off_t)(sizeof(state_head) + piece * sizeof *p->done);
    if (p->saved[piece] == p->done[piece]) return SL_OK;
    if (pwrite(p->state_fd, &p->done[piece], sizeof *p->done, at) != (ssize_t)sizeof *p->done)
        return fail_io(p->state_path, "cannot be written", err);
    p->saved[piece] = p->done[piece];
    return SL_OK;
}

void sl_hub_part_touch(const sl_hub_part *p) {
    (void)!futimens(p->state_fd, NULL); /* who waits is none the wiser, no more */
}

sl_status sl_hub_part_finish(sl_hub_part *p, const char *path, sl_err *err) {
    if (rename(p->path, path) != 0) return fail_io(path, "cannot be put in its place", err);
    unlink(p->state_path);
    return SL_OK;
}
