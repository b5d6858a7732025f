/* A file read into the page cache, on request in large pages. */
#include "format/warm.h"

#include "format/map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((size_t)64 << 20)

#define LARGE ((uint64_t)2 << 20)

/* Bytes that are in the file cache already; all of them where the system does not say. */
static uint64_t cached_bytes(const uint8_t *at, size_t len, size_t page) {
    unsigned char in_cache[PIECE / 4096];
    uint64_t pages = 0;
    if (page < 4096 || mincore((void *)(uintptr_t)at, len, in_cache) != 0) return len;
    for (size_t i = 0; i < (len + page - 1) / page; i++) pages += in_cache[i] & 1;
    return SL_MIN(pages * page, (uint64_t)len);
}

/* Maps the whole file and reads it; *cached: bytes that were in the cache before, *huge: bytes in
 * large pages after. */
static sl_status read_mapped(const char *path, sl_progress_fn progress, void *ctx, uint64_t *bytes,
                             uint64_t *cached, uint64_t *huge, sl_err *err) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    sl_map map = {0};
    sl_status st = sl_map_open(path, UINT64_MAX, &map, err);
    if (st != SL_OK) return st;
    uint64_t before = sl_map_huge_bytes();
    *cached = 0;
    for (size_t at = 0; at < map.bytes.len; at += PIECE) {
        size_t len = SL_MIN(PIECE, map.bytes.len - at);
        const uint8_t *from = map.bytes.data + at;
        *cached += cached_bytes(from, len, page);
        for (size_t i = 0; i < len; i += page) (void)*(const volatile uint8_t *)(from + i);
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

sl_status sl_warm_file(const char *path, double want, sl_progress_fn progress, void *ctx,
                       sl_warm_report *out, sl_err *err) {
    sl_warm_report r = {0};
    uint64_t cached;
    sl_status st = read_mapped(path, progress, ctx, &r.bytes, &cached, &r.huge_before, err);
    r.huge = r.huge_before;
    r.possible = r.bytes < SL_MAP_HUGE_MIN ? 0 : r.bytes / LARGE * LARGE;
    /* What has just come from the disk would come no other way a second time. */
    bool stale = (double)cached > (1 - want) * (double)r.bytes;
    if (st == SL_OK && stale && (double)r.huge < want * (double)r.possible) {
        r.again = true;
        st = drop_cached(path, err);
        if (st == SL_OK) st = read_mapped(path, progress, ctx, &r.bytes, &cached, &r.huge, err);
    }
    if (st == SL_OK) *out = r;
    return st;
}
