/* A run's memory: all of a template's values, given back at once, bounded in bytes and steps. */
#include "jinja/jinja_int.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>

#define FIRST_CHUNK 8192u
#define LARGE_CHUNK (1u << 20)
#define ALIGNMENT   16u

struct sl_jchunk {
    struct sl_jchunk *next;
    size_t used, cap;
    _Alignas(ALIGNMENT) uint8_t bytes[];
};

void *sl_jmem_take(sl_jmem *m, size_t n, size_t size) {
    size_t bytes;
    struct sl_jchunk *c = m->chunk;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > m->limit) return NULL;
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (!c || bytes > c->cap - c->used) {
        size_t cap = SL_MAX(bytes, c ? SL_MIN(2 * c->cap, (size_t)LARGE_CHUNK) : FIRST_CHUNK);
        cap = SL_MAX(SL_MIN(cap, m->limit - m->taken), bytes);
        if (cap > m->limit - m->taken) return NULL;
        struct sl_jchunk *fresh = sl_alloc(1, sizeof *fresh + cap);
        if (!fresh) return NULL;
        fresh->cap = cap;
        fresh->next = c;
        m->chunk = c = fresh;
        m->taken += cap;
    }
    void *p = c->bytes + c->used;
    c->used += bytes;
    return p;
}

bool sl_jmem_room(sl_jmem *m, void **p, size_t n, size_t *cap, size_t size) {
    if (n < *cap) return true;
    size_t wider = *cap ? 2 * *cap : 4;
    void *fresh = sl_jmem_take(m, wider, size);
    if (!fresh) return false;
    if (n) memcpy(fresh, *p, n * size);
    *p = fresh;
    *cap = wider;
    return true;
}

char *sl_jmem_name(sl_jmem *m, const char *s, size_t n) {
    char *p = sl_jmem_take(m, n + 1, 1);
    if (p && n) memcpy(p, s, n);
    return p;
}

void sl_jmem_free(sl_jmem *m) {
    while (m->chunk) {
        struct sl_jchunk *c = m->chunk;
        m->chunk = c->next;
        sl_free(c);
    }
    m->taken = 0;
}

sl_status sl_jrun_create(const sl_jinja_limits *limits, sl_jrun **out, sl_err *err) {
    sl_jrun *r = sl_alloc(1, sizeof *r);
    if (!r) return sl_fail(err, SL_ERR_NOMEM, "rendering of a template");
    r->limits = *limits;
    r->mem.limit = limits->memory_bytes;
    r->steps = limits->steps;
    *out = r;
    return SL_OK;
}

void sl_jrun_free(sl_jrun *r) {
    if (r) sl_jmem_free(&r->mem);
    sl_free(r);
}

sl_jv sl_jrun_fail(sl_jrun *r, sl_status code, const char *fmt, ...) {
    if (r->st == SL_OK) {
        char text[400];
        va_list list;
        va_start(list, fmt);
        vsnprintf(text, sizeof text, fmt, list);
        va_end(list);
        r->st = code;
        if (r->t)
            sl_fail(r->err, code, "%s: line %u: %s", r->t->name, r->line, text);
        else
            sl_fail(r->err, code, "%s", text);
    }
    return sl_jv_undefined(NULL);
}

void *sl_jrun_take(sl_jrun *r, size_t n, size_t size) {
    if (r->st != SL_OK) return NULL;
    void *p = sl_jmem_take(&r->mem, n, size);
    if (!p)
        sl_jrun_fail(r, SL_ERR_LIMIT, "the template needs more than %zu bytes of memory",
                     r->limits.memory_bytes);
    return p;
}

bool sl_jrun_charge(sl_jrun *r, size_t bytes) {
    uint64_t steps = 1 + bytes / 64;
    if (r->st != SL_OK) return false;
    if (r->steps < steps) {
        sl_jrun_fail(r, SL_ERR_LIMIT, "the template takes more than %llu steps",
                     (unsigned long long)r->limits.steps);
        return false;
    }
    r->steps -= steps;
    return true;
}
