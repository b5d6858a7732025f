/* Files mapped read-only; one that shrinks under its mapping ends the process by name. */
#include "format/map.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One slot a mapping. The handler reads it on whatever thread faulted: begin is published last
 * (release) and cleared first; 0 is free, 1 is taken but not yet published. */
typedef struct sl_map_slot {
    _Atomic uintptr_t begin;
    _Atomic size_t len;
    const char *_Atomic path;
} sl_map_slot;

#define SLOT_TAKEN 1u

static sl_map_slot slots[SL_MAP_MAX];
static struct sigaction old_action;
static pthread_mutex_t guard_lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *text) {
    size_t n = strlen(text);
    while (n > 0) {
        ssize_t got = write(STDERR_FILENO, text, n);
        if (got <= 0) return;
        text += got;
        n -= (size_t)got;
    }
}

/* Only async-signal-safe calls below. */
static void on_sigbus(int sig, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (size_t i = 0; i < SL_MAP_MAX; i++) {
        /* acquire pairs with the release in claim_slot: len and path belong to this begin */
        uintptr_t begin = atomic_load_explicit(&slots[i].begin, memory_order_acquire);
        size_t len = atomic_load_explicit(&slots[i].len, memory_order_relaxed);
        if (begin <= SLOT_TAKEN || at < begin || at - begin >= len) continue;
        say("sluice: ");
        say(atomic_load_explicit(&slots[i].path, memory_order_relaxed));
        say(": the file was truncated, or its disk failed, while it was in use\n");
        _exit(1);
    }
    /* Not one of ours: put the former action back and let the access fault again. */
    sigaction(sig, &old_action, NULL);
}

/* At every mapping, not once: a library or test frame may have put its own handler in between. */
static void install_guard(void) {
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO}, now;
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&guard_lock);
    bool ours = sigaction(SIGBUS, NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
                now.sa_sigaction == on_sigbus;
    if (!ours) sigaction(SIGBUS, &action, &old_action);
    pthread_mutex_unlock(&guard_lock);
}

static sl_status claim_slot(const char *path, void *base, size_t len, uint32_t *out, sl_err *err) {
    for (uint32_t i = 0; i < SL_MAP_MAX; i++) {
        uintptr_t free_slot = 0;
        if (!atomic_compare_exchange_strong_explicit(&slots[i].begin, &free_slot, SLOT_TAKEN,
                                                     memory_order_acquire, memory_order_relaxed))
            continue;
        atomic_store_explicit(&slots[i].len, len, memory_order_relaxed);
        atomic_store_explicit(&slots[i].path, path, memory_order_relaxed);
        atomic_store_explicit(&slots[i].begin, (uintptr_t)base, memory_order_release);
        *out = i;
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_LIMIT, "%s: more than %d files mapped at once", path, SL_MAP_MAX);
}

static sl_status open_regular(const char *path, int *out_fd, struct stat *out, sl_err *err) {
    /* O_NONBLOCK: a FIFO put in place of the file must not hang the open */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0) {
        int why = errno;
        return sl_fail(err, why == ENOENT || why == ENOTDIR ? SL_ERR_NOTFOUND : SL_ERR_IO,
                       "%s: cannot open: %s", path, strerror(why));
    }
    if (fstat(fd, out) != 0) {
        int why = errno;
        close(fd);
        return sl_fail(err, SL_ERR_IO, "%s: cannot stat: %s", path, strerror(why));
    }
    if (!S_ISREG(out->st_mode)) {
        close(fd);
        return sl_fail(err, SL_ERR_FORMAT, "%s: not a regular file", path);
    }
    *out_fd = fd;
    return SL_OK;
}

sl_status sl_map_open_fd(const char *path, int *out_fd, uint64_t *out_bytes, sl_err *err) {
    struct stat info;
    sl_status st = open_regular(path, out_fd, &info, err);
    if (st == SL_OK) *out_bytes = (uint64_t)info.st_size;
    return st;
}

static sl_status map_fd(const char *path, int fd, uint64_t bytes, uint64_t max_bytes, void **out,
                        sl_err *err) {
    if (bytes == 0) return sl_fail(err, SL_ERR_FORMAT, "%s: the file is empty", path);
    if (bytes > max_bytes || bytes > SIZE_MAX)
        return sl_fail(err, SL_ERR_LIMIT, "%s: %llu bytes, limit %llu", path,
                       (unsigned long long)bytes, (unsigned long long)max_bytes);
    void *base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return sl_fail(err, SL_ERR_IO, "%s: cannot map %llu bytes: %s", path,
                       (unsigned long long)bytes, strerror(errno));
    /* Pages of 2 MB where the file system keeps such: what is read from now on comes in them. */
    if (bytes >= SL_MAP_HUGE_MIN) (void)madvise(base, (size_t)bytes, MADV_HUGEPAGE);
    *out = base;
    return SL_OK;
}

sl_status sl_map_open(const char *path, uint64_t max_bytes, sl_map *out, sl_err *err) {
    int fd = -1;
    uint64_t bytes = 0;
    void *base = NULL;
    uint32_t slot = 0;
    struct stat info;
    char *copy = sl_strdup(path);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "%s: path", path);
    install_guard();
    sl_status st = open_regular(path, &fd, &info, err);
    if (st != SL_OK) goto out;
    bytes = (uint64_t)info.st_size;
    st = map_fd(path, fd, bytes, max_bytes, &base, err);
    if (st != SL_OK) goto out;
    st = claim_slot(copy, base, (size_t)bytes, &slot, err);
    if (st != SL_OK) goto out;
    *out = (sl_map){.bytes = {.data = base, .len = (size_t)bytes},
                    .path = copy,
                    .device = (uint64_t)info.st_dev,
                    .inode = (uint64_t)info.st_ino,
                    .slot = slot};
    base = NULL;
    copy = NULL;
out:
    if (base) munmap(base, (size_t)bytes);
    if (fd >= 0) close(fd);
    sl_free(copy);
    return st;
}

sl_status sl_map_reopen(const sl_map *m, int *out_fd, sl_err *err) {
    int fd = -1;
    struct stat info;
    sl_status st = open_regular(m->path, &fd, &info, err);
    if (st != SL_OK) return st;
    if ((uint64_t)info.st_size != m->bytes.len || (uint64_t)info.st_dev != m->device ||
        (uint64_t)info.st_ino != m->inode) {
        close(fd);
        return sl_fail(err, SL_ERR_IO, "%s: is another file than the mapped one", m->path);
    }
    *out_fd = fd;
    return SL_OK;
}

void sl_map_close(sl_map *m) {
    if (!m->path) return;
    munmap((void *)(uintptr_t)m->bytes.data, m->bytes.len);
    atomic_store_explicit(&slots[m->slot].begin, 0, memory_order_release);
    sl_free(m->path);
    *m = (sl_map){0};
}

void sl_map_drop(sl_span part) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)part.data;
    uintptr_t end = (begin + part.len) / page * page;
    begin = (begin + page - 1) / page * page;
    if (end > begin) (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* only a hint */
}

sl_span sl_map_around(const void *at) {
    for (size_t i = 0; i < SL_MAP_MAX; i++) {
        uintptr_t begin = atomic_load_explicit(&slots[i].begin, memory_order_acquire);
        size_t len = atomic_load_explicit(&slots[i].len, memory_order_relaxed);
        if (begin > SLOT_TAKEN && (uintptr_t)at >= begin && (uintptr_t)at - begin < len)
            return (sl_span){(const uint8_t *)begin, len};
    }
    return (sl_span){0};
}

uint64_t sl_map_huge_bytes(void) {
    unsigned long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/smaps_rollup", "re");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "FilePmdMapped: %llu kB", &kib) == 1) break;
    fclose(f);
    return (uint64_t)kib << 10;
}
