/* KV pages that go to the worker's file and come from it. Whatever is wrong with file or folder is
 * said and costs what was cached, never a request. */
#include "engine/attn/disk.h"

#include "base/log.h"
#include "engine/attn/attn_int.h"
#include "engine/attn/stamp.h"
#include "format/kv_folder.h"

#include <string.h>
#include <sys/stat.h>

struct sl_kv_disk {
    char *folder;
    uint64_t bytes;
    uint32_t id; /* whose place it is */
    sl_kv_place place;
    sl_kv_stamp of;      /* what rows depend on by the plan that is served */
    bool saves;          /* pages can go there */
    sl_wire_kept *found; /* [n] pages that came from there, told to nobody yet */
    uint32_t n;
};

sl_status sl_kv_disk_create(const char *folder, uint64_t bytes, sl_kv_disk **out, sl_err *err) {
    sl_status st = sl_kv_folder_check(folder, err);
    if (st != SL_OK) return st;
    sl_kv_disk *d = sl_alloc(1, sizeof *d);
    if (d) d->folder = sl_strdup(folder);
    if (!d || !d->folder) {
        sl_free(d);
        return sl_fail(err, SL_ERR_NOMEM, "--kv-disk");
    }
    d->bytes = bytes;
    *out = d;
    return SL_OK;
}

static void forget_found(sl_kv_disk *d) {
    sl_free(d->found);
    d->found = NULL;
    d->n = 0;
}

void sl_kv_disk_free(sl_kv_disk *d) {
    if (!d) return;
    forget_found(d);
    sl_kv_place_close(&d->place);
    sl_free(d->folder);
    sl_free(d);
}

/* ---- from the disk ---- */

/* Nobody has written to its pages: those of a process that is gone may still be some request's. */
static bool pool_is_new(const sl_worker *w) {
    struct stat s;
    return w->kv_fd == 0 || (fstat(w->kv_fd, &s) == 0 && s.st_blocks == 0);
}

/* The pages that r has, to the first ones of the pool; those that are damaged are left out. */
static sl_status take_pages(sl_attn *a, sl_kv_reader *r, uint8_t *bytes, sl_err *err) {
    sl_kv_disk *d = a->w->disk;
    sl_status st = SL_OK;
    while (r->next < r->n && st == SL_OK && !a->w->stop) {
        sl_wire_kept *is = &d->found[d->n];
        *is = (sl_wire_kept){.page = d->n};
        st = sl_kv_reader_next(r, &is->key, bytes, err);
        if (st == SL_OK) {
            a->w->device->ops->write_page(a->w->device, is->page, 0, a->m->n_layers, bytes);
            d->n++;
        }
        a->w->n.kv_damaged += st == SL_ERR_FORMAT;
        if (st == SL_ERR_FORMAT) st = SL_OK;
        sl_worker_tick(a->w); /* others wait, and are not to think it dead */
    }
    return st;
}

static sl_status load(sl_attn *a, sl_kv_reader *r, sl_err *err) {
    sl_kv_disk *d = a->w->disk;
    const uint32_t most = SL_MIN(a->w->plan.n_pages, (uint32_t)SL_WIRE_MAX_ROWS);
    const uint32_t n = (uint32_t)SL_MIN(r->n, (uint64_t)most);
    uint8_t *bytes = sl_alloc(r->page, 1);
    d->found = sl_alloc(SL_MAX(n, 1u), sizeof *d->found);
    sl_status st = bytes && d->found ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%u KV pages", n);
    if (st == SL_OK) st = sl_kv_reader_skip(r, r->n - n, err); /* the last are of most use */
    if (st == SL_OK) st = take_pages(a, r, bytes, err);
    sl_free(bytes);
    a->w->n.kv_loaded += d->n;
    return st;
}

static void load_file(sl_attn *a) {
    sl_kv_disk *d = a->w->disk;
    const uint64_t damaged = a->w->n.kv_damaged;
    sl_kv_reader r;
    sl_err err;
    sl_status st = sl_kv_reader_open(d->place.file, &d->of, sl_kv_page_bytes(a->m), &r, &err);
    if (st == SL_ERR_NOTFOUND) return;
    if (st == SL_OK) {
        st = load(a, &r, &err);
        sl_kv_reader_close(&r);
        if (st != SL_OK) sl_err_prefix(&err, "%s", d->place.file);
    }
    if (st == SL_ERR_UNSUPPORTED)
        sl_log(SL_LOG_INFO, "worker", "%s; it is not used, and replaced when this worker ends",
               err.msg);
    else if (st != SL_OK)
        sl_log(SL_LOG_WARN, "worker", "%s; nothing more of it is used", err.msg);
    if (a->w->n.kv_damaged > damaged)
        sl_log(SL_LOG_WARN, "worker", "%s: %llu KV pages are damaged and not used", d->place.file,
               (unsigned long long)(a->w->n.kv_damaged - damaged));
    if (d->n) sl_log(SL_LOG_INFO, "worker", "%u KV pages are read from %s", d->n, d->place.file);
}

void sl_attn_load(sl_attn *a, const char *folder) {
    sl_worker *w = a->w;
    sl_kv_disk *d = w->disk;
    sl_err err;
    if (!d) return;
    forget_found(d);
    d->saves = false;
    if (!sl_device_copies(w->device)) {
        sl_log(SL_LOG_WARN, "worker",
               "--kv-disk: this device, or the model, has KV that cannot be saved");
        return;
    }
    if (!d->place.file || d->id != w->id) {
        sl_kv_place_close(&d->place);
        d->id = w->id;
        if (sl_kv_place_open(d->folder, w->id, &d->place, &err) != SL_OK) {
            sl_log(SL_LOG_WARN, "worker", "%s; KV is not saved", err.msg);
            return;
        }
    }
    sl_kv_stamp_of(w->id, &w->plan, a->m, folder, &d->of);
    d->saves = true;
    if (pool_is_new(w)) load_file(a);
}

uint32_t sl_disk_found(const sl_kv_disk *d, const sl_wire_kept **out) {
    *out = d ? d->found : NULL;
    return d ? d->n : 0;
}

void sl_disk_told(sl_kv_disk *d) {
    if (d) forget_found(d);
}

/* ---- to the disk ---- */

bool sl_attn_saves(const sl_attn *a) {
    return a->w->disk && a->w->disk->saves;
}

/* How many of n pages there is room for. */
static uint32_t room(const sl_kv_disk *d, size_t page, uint32_t n) {
    if (!d->bytes) return n;
    const uint64_t pages = d->bytes > SL_KV_FILE_HEAD_BYTES ? d->bytes - SL_KV_FILE_HEAD_BYTES : 0;
    return (uint32_t)SL_MIN((uint64_t)n, pages / (page + SL_KV_FILE_PAGE_EXTRA));
}

static sl_status save(sl_attn *a, const sl_wire_kept *k, uint32_t n, sl_err *err) {
    const size_t page = sl_kv_page_bytes(a->m);
    sl_kv_writer out;
    uint8_t *bytes = sl_alloc(page, 1);
    if (!bytes) return sl_fail(err, SL_ERR_NOMEM, "a KV page of %zu bytes", page);
    sl_status st = sl_kv_writer_open(a->w->disk->place.file, &a->w->disk->of, page, n, &out, err);
    const bool open = st == SL_OK;
    for (uint32_t i = 0; st == SL_OK && i < n; i++) {
        a->w->device->ops->read_page(a->w->device, k[i].page, 0, a->m->n_layers, bytes);
        /* What a device that has failed gives is in no page. */
        st = a->w->device->failed == SL_OK
                 ? sl_kv_writer_put(&out, k[i].key, bytes, err)
                 : sl_fail(err, a->w->device->failed, "%s", a->w->device->failure.msg);
        sl_worker_tick(a->w);
    }
    if (open) st = sl_kv_writer_end(&out, st, err);
    sl_free(bytes);
    return st;
}

sl_status sl_attn_on_save(sl_attn *a, const sl_wire_header *h, sl_span payload, sl_err *err) {
    sl_kv_disk *d = a->w->disk;
    const sl_wire_kept *k;
    sl_err why;
    if (!sl_attn_saves(a))
        return sl_fail(err, SL_ERR_PROTOCOL, "KV_SAVE to a worker that saves nothing");
    sl_status st = sl_wire_kept_decode(h, payload, &k, err);
    for (uint32_t i = 0; st == SL_OK && i < h->rows; i++)
        if (k[i].page >= a->w->plan.n_pages)
            st = sl_fail(err, SL_ERR_PROTOCOL, "page %u to save, there are %u", k[i].page,
                         a->w->plan.n_pages);
    if (st != SL_OK) return st;
    const uint32_t n = room(d, sl_kv_page_bytes(a->m), h->rows);
    if (n == 0) {
        sl_log(SL_LOG_WARN, "worker", "--kv-disk-size %llu: there is no room for a KV page",
               (unsigned long long)d->bytes);
        return SL_OK;
    }
    if (save(a, k + (h->rows - n), n, &why) != SL_OK) {
        sl_log(SL_LOG_WARN, "worker", "KV is not saved: %s", why.msg);
        return SL_OK;
    }
    a->w->n.kv_saved += n;
    sl_log(SL_LOG_INFO, "worker", "%u of %u KV pages are saved to %s", n, h->rows, d->place.file);
    return SL_OK;
}
