/* How much of a checkpoint's files is in memory. */
#include "format/cached.h"

#include "base/mem.h"
#include "format/checkpoint.h"
#include "format/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORTH_IT   ((uint64_t)16 << 20)
#define LOOKS      8192u
#define STEP_LEAST ((uint64_t)128 << 10) /* readahead brings no less */

typedef struct file {
    void *at;
    uint64_t bytes;
} file;

struct sl_cached {
    file *file;
    uint32_t n;
    uint64_t total, step, page;
};

/* mincore calls every page of another user's file present. */
static bool is_told(int fd, const char *path) {
    struct stat info;
    return fstat(fd, &info) == 0 &&
           (info.st_uid == geteuid() || faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) == 0);
}

static sl_status map_file(sl_cached *c, const char *path, bool *told, sl_err *err) {
    int fd = -1;
    uint64_t bytes = 0;
    sl_status st = sl_map_open_fd(path, &fd, &bytes, err);
    if (st != SL_OK) return st;
    *told = *told && is_told(fd, path);
    void *at = bytes && *told ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
    if (at == MAP_FAILED)
        st = sl_fail(err, SL_ERR_IO, "%s: cannot map %llu bytes: %s", path,
                     (unsigned long long)bytes, strerror(errno));
    else if (at)
        c->file[c->n++] = (file){.at = at, .bytes = bytes};
    if (st == SL_OK) c->total += bytes;
    close(fd);
    return st;
}

sl_status sl_cached_open(const char *model, sl_cached **out, sl_err *err) {
    sl_checkpoint *k = NULL;
    sl_cached *c = NULL;
    bool told = true;
    *out = NULL;
    sl_status st = sl_ckpt_open(model, &k, err);
    if (st != SL_OK) return st;
    c = sl_alloc(1, sizeof *c);
    if (c) c->file = sl_alloc(sl_ckpt_files(k), sizeof *c->file);
    if (!c || !c->file) st = sl_fail(err, SL_ERR_NOMEM, "%u files", sl_ckpt_files(k));
    for (uint32_t i = 0; st == SL_OK && i < sl_ckpt_files(k); i++)
        st = map_file(c, sl_ckpt_path(k, i), &told, err);
    if (st == SL_OK && told && c->total >= WORTH_IT) {
        c->page = (uint64_t)sysconf(_SC_PAGESIZE);
        c->step = SL_MAX(c->total / LOOKS, STEP_LEAST);
        *out = c;
        c = NULL;
    }
    sl_cached_free(c);
    sl_ckpt_free(k);
    return st;
}

void sl_cached_free(sl_cached *c) {
    if (!c) return;
    for (uint32_t i = 0; i < c->n; i++) munmap(c->file[i].at, (size_t)c->file[i].bytes);
    sl_free(c->file);
    sl_free(c);
}

uint64_t sl_cached_total(const sl_cached *c) {
    return c->total;
}

uint64_t sl_cached_now(const sl_cached *c) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        const file *f = &c->file[i];
        for (uint64_t at = 0; at < f->bytes; at += c->step) {
            unsigned char there = 0;
            uint64_t len = SL_MIN(c->step, f->bytes - at), middle = (at + len / 2) / c->page;
            if (mincore((uint8_t *)f->at + middle * c->page, 1, &there) == 0 && (there & 1))
                sum += len;
        }
    }
    return sum;
}
