/* KV that waits for the next coordinator: kept when one is gone, told to the next one, forgotten as
 * that one gives its pages to somebody. */
#include "engine/attn/keep.h"

#include "base/log.h"
#include "base/memfd.h"
#include "base/rng.h"
#include "engine/attn/attn_int.h"
#include "sched/estate.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TOLD_BYTES ((size_t)16 << 20) /* of a message; what does not fit is computed again */

/* Everything that rows of KV depend on, as far as this worker knows it. Zeroed before it is filled:
 * compared byte by byte. */
typedef struct stamp {
    uint8_t model[32];
    uint64_t files;
    uint64_t page_bytes;
    sl_route_skew skew;
    uint32_t n_pages, exact, wire, activations, segments, ranks;
} stamp;

struct sl_keep {
    int fd; /* 0: none */
    stamp of;
    sl_estate estate;
    uint32_t *text_of; /* [of.n_pages] 1 + the text that has the page; 0: none */
};

/* ---- the file ---- */

sl_keep *sl_keep_create(void) {
    return sl_alloc(1, sizeof(sl_keep));
}

static void drop(sl_keep *k) {
    sl_estate_clear(&k->estate, NULL);
    sl_free(k->text_of);
    k->text_of = NULL;
    if (k->fd) close(k->fd);
    k->fd = 0;
}

void sl_keep_free(sl_keep *k) {
    if (k) drop(k);
    sl_free(k);
}

static uint64_t mark_of(const struct stat *s) {
    const uint64_t word[] = {(uint64_t)s->st_dev, (uint64_t)s->st_ino, (uint64_t)s->st_size,
                             (uint64_t)s->st_mtim.tv_sec, (uint64_t)s->st_mtim.tv_nsec};
    uint64_t mark = 0;
    for (size_t i = 0; i < SL_LEN(word); i++) {
        uint64_t state = mark ^ word[i];
        mark = sl_rng_next(&state);
    }
    return mark;
}

/* Of the files of a checkpoint, whose weights no hash covers: others, or changed ones, give another
 * number. A file's folder counts, as it may come in parts. */
static uint64_t mark_of_files(const char *folder) {
    struct stat s;
    char text[4096];
    size_t n = strlen(folder);
    uint64_t mark = 0;
    if (n >= sizeof text || stat(folder, &s) != 0) return 0;
    memcpy(text, folder, n + 1);
    char *slash = strrchr(text, '/');
    if (!S_ISDIR(s.st_mode)) {
        if (slash) *slash = 0;
        n = slash ? strlen(text) : 0;
    }
    DIR *d = opendir(n ? text : ".");
    if (!d) return mark_of(&s);
    for (const struct dirent *e; (e = readdir(d));)
        if (fstatat(dirfd(d), e->d_name, &s, 0) == 0 && S_ISREG(s.st_mode)) mark += mark_of(&s);
    closedir(d);
    return mark;
}

static void fill(stamp *out, uint32_t roles, const sl_plan *p, const sl_model_spec *m,
                 const char *folder) {
    memset(out, 0, sizeof *out);
    memcpy(out->model, m->hash, sizeof out->model);
    memcpy(&out->skew, &p->skew, sizeof out->skew);
    out->files = mark_of_files(folder);
    out->page_bytes = sl_kv_page_bytes(m);
    out->n_pages = p->n_pages;
    out->exact = p->exact;
    out->wire = p->wire;
    out->activations = (uint32_t)p->activations;
    out->segments = p->segments;
    out->ranks = sl_plan_ranks(p, roles);
}

int sl_keep_file(sl_keep *k, uint32_t roles, const sl_plan *p, const sl_model_spec *m,
                 const char *folder) {
    stamp of;
    size_t bytes = 0;
    sl_err err;
    fill(&of, roles, p, m, folder);
    bool needed = (roles & SL_ROLE_ATTENTION) && !sl_device_is_modelled(&p->device);
    if (needed && k->fd && memcmp(&of, &k->of, sizeof of) == 0) return k->fd;
    if (k->estate.n)
        sl_log(SL_LOG_WARN, "worker",
               "KV of %u requests is of no use by this plan: another model, other numerics or "
               "another pool",
               k->estate.n);
    drop(k);
    if (!needed || __builtin_mul_overflow(p->n_pages, of.page_bytes, &bytes)) return 0;
    k->text_of = sl_alloc(p->n_pages, sizeof *k->text_of);
    if (!k->text_of) return 0;
    if (sl_memfd_create(bytes, &k->fd, &err) != SL_OK)
        sl_log(SL_LOG_WARN, "worker", "KV ends with this coordinator: %s", err.msg);
    k->of = of;
    return k->fd;
}

/* ---- what is kept ---- */

/* The pages of this text are its, or with 0 nobody's. */
static void index_text(sl_keep *k, uint32_t text, uint32_t is) {
    const sl_estate_text *t = &k->estate.text[text];
    for (uint32_t i = 0; i < t->n_pages; i++) k->text_of[t->pages[i]] = is;
}

void sl_attn_keep(sl_attn *a) {
    uint32_t before = a->keep ? a->keep->estate.n : 0;
    for (uint32_t i = 0; a->keep && i < a->n_lanes * a->max_slots; i++) {
        const sl_slot *s = &a->slot[i];
        if (!s->life->used || s->life->ends) continue;
        uint32_t n = sl_slot_sure_pages(s);
        if (n == 0) continue;
        if (!sl_estate_add(&a->keep->estate, s->tokens, s->pages, n)) break;
        index_text(a->keep, a->keep->estate.n - 1, a->keep->estate.n);
    }
    if (a->keep && a->keep->estate.n > before)
        sl_log(SL_LOG_INFO, "worker", "KV of %u requests is kept for the next coordinator",
               a->keep->estate.n - before);
}

void sl_attn_tell_kept(sl_attn *a) {
    const sl_estate *e = a->keep ? &a->keep->estate : NULL;
    size_t bytes = 0, at = 0;
    uint32_t n = 0;
    for (; e && n < SL_MIN(e->n, SL_WIRE_MAX_ROWS); n++) {
        size_t more = sl_wire_kept_bytes(e->text[n].n_pages);
        if (more > TOLD_BYTES - bytes) break;
        bytes += more;
    }
    sl_buf *b = n ? sl_net_buf_take(a->w->net, bytes) : NULL;
    if (!b) return; /* all of it is computed again */
    for (uint32_t i = 0; i < n; i++) {
        const sl_estate_text *t = &e->text[i];
        const sl_wire_kept text = {.n_pages = t->n_pages, .pages = t->pages, .tokens = t->tokens};
        sl_wire_kept_encode(&text, b->data + at);
        at += sl_wire_kept_bytes(t->n_pages);
    }
    sl_worker_send(a->w, SL_NO_WORKER, (sl_wire_header){.kind = SL_MSG_KV_KEPT, .rows = n}, b);
}

void sl_keep_forget(sl_keep *k, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; k->estate.n && i < n; i++) {
        uint32_t text = k->text_of[pages[i]];
        if (text == 0) continue;
        index_text(k, text - 1, 0);
        sl_estate_drop(&k->estate, text - 1, NULL); /* the last one takes its place */
        if (text <= k->estate.n) index_text(k, text - 1, text);
    }
}
