#include "format/warm.h"

#include "base/mem.h"
#include "format/map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((size_t)64 << 20)

#if !defined(MADV_POPULATE_READ)
#define MADV_POPULATE_READ 22
#endif

/* In large requests where the kernel takes such; a byte of each page settles the rest. */
static void read_piece(const uint8_t *at, size_t len, size_t page) {
    (void)madvise((void *)(uintptr_t)at, len, MADV_POPULATE_READ);
    for (size_t i = 0; i < len; i += page) (void)*(const volatile uint8_t *)(at + i);
}

/* Maps the whole file and reads it; *huge: bytes of it in large pages. */
static sl_status read_mapped(const char *path, sl_warm_fn progress, void *ctx, uint64_t *bytes,
                             uint64_t *huge, sl_err *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    sl_map map = {0};
    sl_status st = sl_map_open(path, UINT64_MAX, &map, err);
    if (st != SL_OK) return st;
    uint64_t before = sl_map_huge_bytes();
    for (size_t at = 0; at < map.bytes.len; at += PIECE) {
        size_t len = SL_MIN(PIECE, map.bytes.len - at);
        read_piece(map.bytes.data + at, len, page);
        if (progress) progress(ctx, at + len, map.bytes.len);
    }
    uint64_t after = sl_map_huge_bytes();
    *bytes = map.bytes.len;
    *huge = after > before ? SL_MIN(after - before, map.bytes.len) : 0;
    sl_map_close(&map);
    return SL_OK;
}

/* Only clean pages can be dropped. */
static sl_status drop_cached(const char *path, sl_err *err) {
    int fd = -1;
    uint64_t bytes;
    sl_status st = sl_map_open_fd(path, &fd, &bytes, err);
    if (st != SL_OK) return st;
    if (fdatasync(fd) != 0) {
        int why = errno;
        st = sl_fail(err, SL_ERR_IO, "%s: cannot be written out: %s", path, strerror(why));
    } else {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* advice: what stays is reported */
    }
    close(fd);
    return st;
}

sl_status sl_warm_file(const char *path, double want, sl_warm_fn progress, void *ctx,
                       sl_warm_report *out, sl_err *err) {
    sl_warm_report r = {0};
    sl_status st = read_mapped(path, progress, ctx, &r.bytes, &r.huge_before, err);
    r.huge = r.huge_before;
    if (st == SL_OK && (double)r.huge < want * (double)r.bytes) {
        r.again = true;
        st = drop_cached(path, err);
        if (st == SL_OK) st = read_mapped(path, progress, ctx, &r.bytes, &r.huge, err);
    }
    if (st == SL_OK) *out = r;
    return st;
}
