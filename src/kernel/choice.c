/* The choice of kernels: from times that were kept, or measured now and kept for the next start. */
#include "kernel/choice.h"

#include "base/clock.h"
#include "base/options.h"
#include "kernel/cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Another form has to take less than this share of the base's time: on a busy machine two
 * measurements of the same code differ by a few percent. */
#define WINS_PERCENT 90u
/* Fifty times what a calm machine needs; what is not measured by then is the base's. */
#define LIMIT_NS 2000000000u

/* Asked last: a table that wins nothing need not prove itself. */
static bool can_run(size_t i) {
    bool can = false;
    return sl_kernels_at(i, &can) && can;
}

void sl_kernels_pick(const sl_kernel_times *t, uint8_t from[SL_SLOTS]) {
    size_t base = sl_table_find(sl_kernels_base()->name, strlen(sl_kernels_base()->name));
    for (size_t s = 0; s < SL_SLOTS; s++) {
        uint64_t limit = (uint64_t)t->ns[s][base] * WINS_PERCENT;
        from[s] = (uint8_t)base;
        for (size_t i = 0; i < SL_TABLES_MAX; i++) {
            uint64_t took = (uint64_t)t->ns[s][i] * 100;
            if (i == base || took == 0 || took >= limit || !can_run(i) || !sl_table_has(i, s))
                continue;
            from[s] = (uint8_t)i;
            limit = took;
        }
    }
}

/* ---- times as text ---- */

#define FIRST_LINE "sluice kernel times 1"

size_t sl_kernel_times_write(const sl_kernel_times *t, const char *key,
                             char out[SL_KERNEL_TIMES_BYTES]) {
    const size_t cap = SL_KERNEL_TIMES_BYTES;
    size_t n = (size_t)snprintf(out, cap, FIRST_LINE "\n%s\n", key);
    const sl_kernels *k;
    for (size_t s = 0; s < SL_SLOTS; s++) {
        sl_slot slot;
        if (!sl_slot_at(s, &slot)) continue;
        n += (size_t)snprintf(out + n, cap - n, "%s", slot.name);
        for (size_t i = 0; (k = sl_kernels_at(i, NULL)) != NULL; i++)
            if (t->ns[s][i])
                n += (size_t)snprintf(out + n, cap - n, " %s %u", k->name, t->ns[s][i]);
        n += (size_t)snprintf(out + n, cap - n, "\n");
        SL_ASSERT(n < cap);
    }
    return n;
}

/* Takes `word` and one byte behind it, if that is what comes. */
static bool take(sl_cur *c, const char *word, char behind) {
    size_t n = strlen(word);
    if (c->len - c->pos < n + 1 || memcmp(c->data + c->pos, word, n) != 0 ||
        c->data[c->pos + n] != (uint8_t)behind)
        return false;
    c->pos += n + 1;
    return true;
}

/* "avx2 123", up to nine digits and no zero first. */
static bool take_time(sl_cur *c, uint32_t ns[SL_TABLES_MAX]) {
    size_t name = c->pos, i, digits = 0;
    uint32_t v = 0;
    while (c->pos < c->len && c->data[c->pos] > ' ') c->pos++;
    i = sl_table_find((const char *)c->data + name, c->pos - name);
    if (i == SIZE_MAX || ns[i] || c->pos == c->len || c->data[c->pos++] != ' ') return false;
    for (; c->pos < c->len && c->data[c->pos] >= '0' && c->data[c->pos] <= '9';
         c->pos++, digits++) {
        if (digits == 9) return false;
        v = v * 10 + (c->data[c->pos] - '0');
    }
    ns[i] = v;
    return v > 0;
}

static bool take_slot(sl_cur *c, const char *name, uint32_t ns[SL_TABLES_MAX]) {
    size_t n = strlen(name);
    if (c->len - c->pos < n || memcmp(c->data + c->pos, name, n) != 0) return false;
    for (c->pos += n; c->pos < c->len && c->data[c->pos] == ' ';) {
        c->pos++;
        if (!take_time(c, ns)) return false;
    }
    return c->pos < c->len && c->data[c->pos++] == '\n';
}

bool sl_kernel_times_read(sl_span text, const char *key, sl_kernel_times *out) {
    sl_cur c = sl_cur_of(text);
    sl_slot slot;
    *out = (sl_kernel_times){0};
    if (!take(&c, FIRST_LINE, '\n') || !take(&c, key, '\n')) return false;
    for (size_t s = 0; s < SL_SLOTS; s++)
        if (sl_slot_at(s, &slot) && !take_slot(&c, slot.name, out->ns[s])) return false;
    return c.pos == c.len;
}

void sl_kernels_key(char *out, size_t cap) {
    char cpu[128];
    sl_cpu_describe(cpu, sizeof cpu);
    snprintf(out, cap, "kernels %s cpu %s", SL_KERNEL_REVISION, cpu);
}

/* ---- the file ---- */

/* Other keys, other files: machines that share a home folder, and builds, do not fight. */
static bool name_file(const char *folder, const char *key, char *out, size_t cap) {
    uint64_t h = 14695981039346656037u;
    for (const char *p = key; *p; p++) h = (h ^ (uint8_t)*p) * 1099511628211u;
    int n = snprintf(out, cap, "%s/kernels-%016llx", folder, (unsigned long long)h);
    return n > 0 && (size_t)n < cap;
}

/* Only a file, and of a size that it may have: whatever else stands there is not waited for. */
static bool read_times(const char *path, const char *key, sl_kernel_times *out) {
    char text[SL_KERNEL_TIMES_BYTES];
    struct stat is;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = -1;
    if (fstat(fd, &is) == 0 && S_ISREG(is.st_mode)) n = read(fd, text, sizeof text);
    close(fd);
    return n > 0 && sl_kernel_times_read((sl_span){(const uint8_t *)text, (size_t)n}, key, out);
}

/* The folder and those above it. */
static bool make_folder(const char *folder) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s", folder);
    if (n <= 0 || (size_t)n >= sizeof path) return false;
    for (char *p = path + 1;; p++) {
        char was = *p;
        if (was != '/' && was != 0) continue;
        *p = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST) return false;
        if (was == 0) return true;
        *p = was;
    }
}

/* Beside the file, then under its name: who reads meanwhile gets the old times or the new ones. */
static bool write_times(const char *folder, const char *path, const char *text, size_t n) {
    char beside[4096 + 16];
    snprintf(beside, sizeof beside, "%s.XXXXXX", path);
    int fd = make_folder(folder) ? mkostemp(beside, O_CLOEXEC) : -1;
    if (fd < 0) return false;
    bool whole = write(fd, text, n) == (ssize_t)n;
    whole = close(fd) == 0 && whole;
    if (whole && rename(beside, path) == 0) return true;
    int why = errno;
    unlink(beside);
    errno = why;
    return false;
}

static void keep(const char *folder, const char *key, sl_kernel_choice *c) {
    char text[SL_KERNEL_TIMES_BYTES];
    size_t n = sl_kernel_times_write(&c->times, key, text);
    errno = 0;
    if (write_times(folder, c->file, text, n)) return;
    snprintf(c->trouble, sizeof c->trouble, "%s", errno ? strerror(errno) : "cannot be written");
}

/* Whether there is anything to measure. */
static bool rivals(void) {
    const sl_kernels *k;
    for (size_t i = 0; (k = sl_kernels_at(i, NULL)) != NULL; i++)
        if (k->by_merit && can_run(i)) return true;
    return false;
}

static void measure(const char *folder, const char *key, sl_kernel_choice *out) {
    uint64_t began = sl_now_ns();
    bool whole = sl_kernels_measure(LIMIT_NS, &out->times);
    out->took_ns = sl_now_ns() - began;
    if (whole && out->file[0]) keep(folder, key, out);
    if (!whole) snprintf(out->trouble, sizeof out->trouble, "other programs took the time");
}

void sl_kernels_choose(const char *folder, bool again, sl_kernel_choice *out) {
    char key[256];
    uint8_t from[SL_SLOTS];
    *out = (sl_kernel_choice){.from = SL_CHOICE_KEPT};
    sl_kernels_key(key, sizeof key);
    if (!folder || !folder[0] || !name_file(folder, key, out->file, sizeof out->file))
        out->file[0] = 0;
    if (again || !out->file[0] || !read_times(out->file, key, &out->times)) {
        out->from = rivals() ? SL_CHOICE_MEASURED : SL_CHOICE_ALONE;
        if (out->from == SL_CHOICE_MEASURED)
            measure(folder, key, out);
        else
            out->file[0] = 0;
    }
    sl_kernels_pick(&out->times, from);
    sl_kernels_spec(from, out->spec);
}

static sl_kernel_choice chosen;

static void choose_once(void) {
    char folder[4096];
    const bool there = sl_options_cache_folder(folder, sizeof folder);
    sl_kernels_choose(there ? folder : NULL, false, &chosen);
}

const char *sl_kernels_chosen(void) {
    static pthread_once_t done = PTHREAD_ONCE_INIT;
    pthread_once(&done, choose_once);
    return chosen.spec;
}
