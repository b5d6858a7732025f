/* Sealed files without a name. */
#include "base/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

sl_status sl_memfd_create(size_t bytes, int *out, sl_err *err) {
    int fd = memfd_create("sluice", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "memfd_create: %s", strerror(errno));
    if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0) {
        *out = fd;
        return SL_OK;
    }
    sl_status st =
        sl_fail(err, SL_ERR_IO, "%zu bytes of shared memory: %s", bytes, strerror(errno));
    close(fd);
    return st;
}

sl_status sl_memfd_check(int fd, size_t bytes, sl_err *err) {
    struct stat s;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &s) != 0 || fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
        return sl_fail(err, SL_ERR_PROTOCOL, "not a file of shared memory");
    if (s.st_size < 0 || (uint64_t)s.st_size != bytes)
        return sl_fail(err, SL_ERR_PROTOCOL, "%lld bytes of shared memory, %zu expected",
                       (long long)s.st_size, bytes);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return sl_fail(err, SL_ERR_PROTOCOL, "shared memory without seals (0x%x)", (unsigned)seals);
    return SL_OK;
}

/* ---- mappings ---- */

static size_t whole_pages(size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) & ~(page - 1);
}

/* Where the mapping can begin with a large page; the rest of the address space goes back. */
static void *place(size_t bytes) {
    size_t room = bytes + SL_LARGE_PAGE;
    uint8_t *p = room < bytes ? MAP_FAILED
                              : mmap(NULL, room, PROT_NONE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    const size_t skip = -(uintptr_t)p & (SL_LARGE_PAGE - 1);
    if (skip) (void)munmap(p, skip);
    if (skip < SL_LARGE_PAGE) (void)munmap(p + skip + bytes, SL_LARGE_PAGE - skip);
    return p + skip;
}

void *sl_memfd_map(int fd, size_t bytes) {
    return sl_memfd_map_from(fd, 0, bytes);
}

void *sl_memfd_map_from(int fd, size_t from, size_t bytes) {
    SL_ASSERT(from % SL_LARGE_PAGE == 0);
    size_t whole = whole_pages(bytes);
    void *at = bytes < SL_LARGE_PAGE ? NULL : place(whole);
    if (bytes >= SL_LARGE_PAGE && !at) return NULL;
    void *p =
        mmap(at, whole, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, (off_t)from);
    if (p == MAP_FAILED) {
        if (at) (void)munmap(at, whole);
        return NULL;
    }
    if (at) (void)madvise(p, whole, MADV_HUGEPAGE); /* where such files may have them by asking */
    return p;
}

void sl_memfd_unmap(void *p, size_t bytes) {
    if (p) (void)munmap(p, whole_pages(bytes));
}

bool sl_memfd_enlarge(void *p, size_t from, size_t to) {
    to &= ~(SL_LARGE_PAGE - 1);
    /* What is a hole altogether is left one: reading makes a page of it. */
    for (size_t at = from; at < to; at += SL_LARGE_PAGE) (void)*((volatile uint8_t *)p + at);
    if (from >= to || madvise((uint8_t *)p + from, to - from, MADV_COLLAPSE) == 0) return true;
    return errno == EAGAIN || errno == ENOMEM || errno == EBUSY; /* for now */
}
