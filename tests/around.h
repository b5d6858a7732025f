/* What the tests' devices have in common: each stands around another one, whose memory and experts
 * are its own. A device's struct begins with `around`. Thread: as of any device. */
#ifndef SL_TESTS_AROUND_H
#define SL_TESTS_AROUND_H

#include "base/mem.h"
#include "stage/stage.h"

typedef struct around {
    sl_device base;
    sl_device *inner;
} around;

static inline sl_status around_take(sl_device *d, size_t bytes, sl_mem *out, sl_err *err) {
    sl_device *inner = ((around *)d)->inner;
    return inner->ops->take(inner, bytes, out, err);
}

static inline void around_give(sl_device *d, sl_mem m) {
    sl_device *inner = ((around *)d)->inner;
    inner->ops->give(inner, m);
}

static inline sl_status around_host(sl_device *d, const uint8_t *hosted, uint32_t max_pairs,
                                    bool patient, sl_hosting *left, sl_err *err) {
    return sl_device_host(((around *)d)->inner, hosted, max_pairs, patient, left, err);
}

static inline void around_read_page(sl_device *d, uint32_t page, uint32_t first, uint32_t n,
                                    void *to) {
    sl_device *inner = ((around *)d)->inner;
    inner->ops->read_page(inner, page, first, n, to);
}

static inline void around_write_page(sl_device *d, uint32_t page, uint32_t first, uint32_t n,
                                     const void *from) {
    sl_device *inner = ((around *)d)->inner;
    inner->ops->write_page(inner, page, first, n, from);
}

static inline void around_close(sl_device *d) {
    sl_device_close(((around *)d)->inner);
    sl_free(d);
}

/* The call is through. */
static inline void around_done(sl_device *d, uint32_t queue) {
    d->done[queue]++;
    d->in_flight--;
}

/* A zeroed struct of so many bytes around a device that `open` makes, with its ops, spec
 * and in_place. */
static inline sl_status around_open(size_t bytes, const sl_device_ops *ops,
                                    sl_status (*open)(const sl_device_opts *, sl_device **,
                                                      sl_err *),
                                    const sl_device_opts *o, around **out, sl_err *err) {
    around *a = *out = sl_alloc(1, bytes);
    if (!a) return sl_fail(err, SL_ERR_NOMEM, "device");
    sl_status st = open(o, &a->inner, err);
    if (st != SL_OK) {
        sl_free(a);
        return st;
    }
    a->base = (sl_device){.ops = ops,
                          .spec = a->inner->spec,
                          .in_place = a->inner->in_place,
                          .resumes = a->inner->resumes,
                          .placed = a->inner->placed,
                          .rewinds = a->inner->rewinds,
                          .mtp = a->inner->mtp,
                          .kept = a->inner->kept};
    return SL_OK;
}

#endif
