/* Jobs in shared memory, and how processes get at it. */
#include "stage/gang/shared.h"

#include "base/mem.h"
#include "base/memfd.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE       64u
#define RECEIVE_MS 10000

/* ---- blocks ---- */

sl_status gang_memory_map(gang_memory *m, uint32_t id, int fd, size_t bytes, sl_err *err) {
    sl_status st = SL_OK;
    if (id >= GANG_MAX_BLOCKS || m->block[id].at)
        st = sl_fail(err, SL_ERR_PROTOCOL, "block %u of shared memory: taken, or over %u", id,
                     GANG_MAX_BLOCKS - 1);
    uint8_t *at = st == SL_OK ? sl_memfd_map(fd, bytes) : NULL;
    if (st == SL_OK && !at)
        st = sl_fail(err, SL_ERR_NOMEM, "mapping %zu bytes that ranks share", bytes);
    close(fd);
    if (st == SL_OK) m->block[id] = (gang_block){at, bytes};
    return st;
}

void gang_memory_unmap(gang_memory *m, uint32_t id) {
    SL_ASSERT(id < GANG_MAX_BLOCKS);
    sl_memfd_unmap(m->block[id].at, m->block[id].bytes);
    m->block[id] = (gang_block){0};
}

void gang_memory_free(gang_memory *m) {
    for (uint32_t i = 0; i < GANG_MAX_BLOCKS; i++) gang_memory_unmap(m, i);
}

bool gang_memory_find(const gang_memory *m, const uint8_t *what, uint32_t *block, uint64_t *at) {
    for (uint32_t i = 0; i < GANG_MAX_BLOCKS; i++) {
        const gang_block *b = &m->block[i];
        if (!b->at || what < b->at || what >= b->at + b->bytes) continue;
        *block = i;
        *at = (uint64_t)(what - b->at);
        return true;
    }
    return false;
}

/* ---- packing ---- */

/* Writes arrays one behind the other; base NULL: only counts. Place 0 is nobody's. */
typedef struct packer {
    const gang_memory *m;
    uint8_t *base;
    size_t at, filled; /* the end of what is read there: room for results comes last */
} packer;

static packer packer_at(const gang_memory *m, uint8_t *base) {
    return (packer){m, base, LINE, LINE};
}

/* A place for that many bytes, as a pointer that unpacking makes one again. */
static void *room(packer *p, const void *from, size_t bytes) {
    if (!from) return NULL;
    const size_t at = p->at;
    p->at += (bytes + LINE - 1) / LINE * LINE;
    return (void *)(uintptr_t)at;
}

static void *put(packer *p, const void *from, size_t bytes) {
    void *place = room(p, from, bytes);
    if (place && p->base) memcpy(p->base + (uintptr_t)place, from, bytes);
    if (place) p->filled = p->at;
    return place;
}

/* Rows have a block of their own, or a part of one: its number, counted from 1, and the place in
 * it. */
static sl_mem mem_in_block(const packer *p, sl_mem at) {
    if (at.bytes == 0 || !p->base) return (sl_mem){0};
    uint32_t block = 0;
    uint64_t place = 0;
    const bool found = gang_memory_find(p->m, sl_mem_ptr(at), &block, &place);
    SL_ASSERT(found); /* rows of a gang of processes lie in memory of the device's */
    SL_ASSERT(at.bytes <= p->m->block[block].bytes - place);
    return (sl_mem){.space = block + 1, .at = place, .bytes = at.bytes};
}

/* Lists of rows that share one are stored once, as long as the last of these needs it. */
static const uint32_t *const *put_pages(packer *p, const sl_rowset *r) {
    uint64_t *list = room(p, r->pages, r->n * sizeof *list);
    uint64_t *places = p->base ? (uint64_t *)(void *)(p->base + (uintptr_t)list) : NULL;
    for (uint32_t i = 0, end; list && i < r->n; i = end) {
        uint32_t last = 0;
        for (end = i; end < r->n && r->pages[end] == r->pages[i]; end++)
            last = SL_MAX(last, r->pos[end]);
        const uint64_t place =
            (uintptr_t)put(p, r->pages[i], (last / SL_KV_PAGE_TOKENS + 1) * sizeof *r->pages[i]);
        for (uint32_t k = i; places && k < end; k++) places[k] = place;
    }
    return (const uint32_t *const *)(void *)list;
}

static void pack_rows(packer *p, const sl_stage_call *c, const sl_model_spec *spec,
                      sl_rowset *out) {
    const sl_rowset *r = &c->rows;
    const size_t n = r->n * sizeof(uint32_t), chosen = n * spec->top_k;
    out->id = put(p, r->id, n);
    out->pos = put(p, r->pos, n);
    out->state = put(p, r->state, n);
    out->done = put(p, r->done, n);
    out->pages = c->op == SL_OP_ATTEND || c->op == SL_OP_MTP ? put_pages(p, r) : NULL;
    out->expert = c->op == SL_OP_ROUTE ? room(p, r->expert, chosen) : NULL;
    out->gate = c->op == SL_OP_ROUTE ? room(p, r->gate, chosen) : NULL;
    out->x = mem_in_block(p, r->x);
    out->h = mem_in_block(p, r->h);
}

static void pack_experts(packer *p, const sl_stage_experts *e, sl_stage_experts *out) {
    const size_t pairs = e->first[e->n_groups];
    out->expert = put(p, e->expert, e->n_groups * sizeof *e->expert);
    out->first = put(p, e->first, (e->n_groups + 1) * sizeof *e->first);
    out->row = put(p, e->row, pairs * sizeof *e->row);
    out->gate = put(p, e->gate, pairs * sizeof *e->gate);
    out->to = put(p, e->to, pairs * sizeof *e->to);
    out->adds = put(p, e->adds, pairs * sizeof *e->adds);
    out->x = mem_in_block(p, e->x);
    sl_stage_part *parts = put(p, e->part, e->n_parts * sizeof *e->part);
    out->part = parts;
    for (uint32_t i = 0; p->base && i < e->n_parts; i++) {
        sl_stage_part *part = (sl_stage_part *)(void *)(p->base + (uintptr_t)parts) + i;
        part->rows = mem_in_block(p, e->part[i].rows);
    }
}

static void pack_call(packer *p, const sl_stage_call *c, const sl_model_spec *spec,
                      sl_stage_call *out) {
    if (c->op == SL_OP_EXPERTS) {
        pack_experts(p, &c->experts, &out->experts);
        return;
    }
    pack_rows(p, c, spec, &out->rows);
    if (c->op == SL_OP_MTP) {
        out->mtp.row = put(p, c->mtp.row, c->rows.n * sizeof *c->mtp.row);
        out->mtp.out = mem_in_block(p, c->mtp.out);
        out->mtp.last = put(p, c->mtp.last, c->mtp.n_last * sizeof *c->mtp.last);
        out->mtp.h = mem_in_block(p, c->mtp.h);
    }
    if (c->op != SL_OP_HEAD) return;
    out->head.row = put(p, c->head.row, c->head.n * sizeof *c->head.row);
    out->head.h = mem_in_block(p, c->head.h);
    out->head.logits =
        room(p, c->head.logits, (size_t)c->head.n * spec->vocab * sizeof *c->head.logits);
}

/* Room for what routers choose comes after all that is read. */
static void pack_run(packer *p, const gang_job *j, const sl_model_spec *spec, gang_job *out) {
    const sl_rowset *r = &j->run.call.rows;
    sl_rowset *o = &out->run.call.rows;
    const size_t n = r->n * sizeof(uint32_t), chosen = n * spec->top_k;
    o->id = put(p, r->id, n);
    o->pos = put(p, r->pos, n);
    o->state = put(p, r->state, n);
    o->done = put(p, r->done, n);
    o->pages = r->pages ? put_pages(p, r) : NULL;
    o->x = mem_in_block(p, r->x);
    o->h = mem_in_block(p, r->h);
    out->run.step = put(p, j->run.step, j->run.n_steps * sizeof *j->run.step);
    o->expert = room(p, r->expert, chosen);
    o->gate = room(p, r->gate, chosen);
    out->run.chosen = room(p, j->run.chosen, gang_run_inside(j) * chosen);
}

/* What rank 0 has of messages is no other rank's. */
static void pack_spread(packer *p, const gang_job *j, const sl_model_spec *spec, gang_job *out) {
    const uint32_t n = j->spread.n, merges = j->spread.op == SL_OP_MERGE;
    const size_t n_ref = (size_t)n * (merges ? spec->top_k : 1);
    sl_stage_spread *message =
        put(p, j->spread.message, j->spread.n_messages * sizeof *j->spread.message);
    out->spread.message = message;
    for (uint32_t i = 0; p->base && i < j->spread.n_messages; i++)
        ((sl_stage_spread *)(void *)(p->base + (uintptr_t)message))[i].data = NULL;
    out->spread.row = put(p, j->spread.row, n * sizeof *j->spread.row);
    out->spread.ref = put(p, j->spread.ref, n_ref * sizeof *j->spread.ref);
    out->spread.plain = put(p, j->spread.plain,
                            j->spread.n_plain * sl_wire_row_bytes(j->spread.wire, spec->d_model));
    out->spread.rows = mem_in_block(p, j->spread.rows);
    out->spread.shared = mem_in_block(p, j->spread.shared);
}

static void pack(packer *p, const gang_job *j, const sl_model_spec *spec, gang_job *out) {
    *out = *j;
    if (j->kind == GANG_OPEN) {
        out->open.o.folder = put(p, j->open.o.folder, j->open.folder_bytes);
        out->open.o.isa = put(p, j->open.o.isa, j->open.isa_bytes);
        out->open.o.hosts.hosted = put(p, j->open.o.hosts.hosted, j->open.hosted_bytes);
        out->open.o.tick = NULL; /* of this process alone */
        out->open.o.wait = NULL;
        out->open.o.progress = NULL;
        out->open.o.routed = NULL;
        out->open.o.rail_word = NULL;
        out->open.o.device = NULL;
        out->open.o.ranks_at = NULL;
        out->open.o.secret = (sl_span){0};
        out->open.o.ctx = out->open.o.progress_ctx = NULL;
    }
    if (j->kind == GANG_CALL) pack_call(p, &j->call, spec, &out->call);
    if (j->kind == GANG_RUN) pack_run(p, j, spec, out);
    if (j->kind == GANG_SPREAD) pack_spread(p, j, spec, out);
    if (j->kind == GANG_HOST) out->host.hosted = put(p, j->host.hosted, j->host.hosted_bytes);
    if (j->kind == GANG_READ) out->page.blocks = room(p, j->page.blocks, j->page.bytes);
    if (j->kind == GANG_WRITE) out->page.blocks = put(p, j->page.blocks, j->page.bytes);
}

size_t gang_job_bytes(const gang_job *j, const sl_model_spec *spec) {
    packer p = packer_at(NULL, NULL);
    gang_job out;
    pack(&p, j, spec, &out);
    return p.at;
}

size_t gang_job_filled(const gang_job *j, const sl_model_spec *spec) {
    packer p = packer_at(NULL, NULL);
    gang_job out;
    pack(&p, j, spec, &out);
    return p.filled;
}

void gang_job_pack(const gang_memory *m, uint32_t area, const gang_job *j,
                   const sl_model_spec *spec, gang_job *out) {
    packer p = packer_at(m, m->block[area].at);
    pack(&p, j, spec, out);
    SL_ASSERT(p.at <= m->block[area].bytes);
}

/* ---- unpacking ---- */

static void *at_place(const gang_block *area, const void *place) {
    if (!place) return NULL;
    SL_ASSERT((uintptr_t)place <= area->bytes);
    return area->at + (uintptr_t)place;
}

static sl_mem mem_here(const gang_memory *m, sl_mem at) {
    if (at.bytes == 0) return (sl_mem){0};
    SL_ASSERT(at.space > 0 && at.space <= GANG_MAX_BLOCKS);
    const gang_block *b = &m->block[at.space - 1];
    SL_ASSERT(b->at && at.at <= b->bytes && at.bytes <= b->bytes - at.at);
    return sl_mem_host(b->at + at.at, at.bytes);
}

static bool at_least(void **array, size_t *have, size_t n, size_t size) {
    if (n <= *have) return true;
    void *more = sl_grow(*array, *have, n, size);
    if (!more) return false;
    *array = more;
    *have = n;
    return true;
}

static bool unpack_pages(const gang_block *area, gang_pointers *p, sl_rowset *r) {
    const uint64_t *list = at_place(area, r->pages);
    void *own = p->pages;
    const bool room_for = at_least(&own, &p->n_pages, r->n, sizeof *p->pages);
    p->pages = own;
    for (uint32_t i = 0; room_for && i < r->n; i++)
        p->pages[i] = at_place(area, (const void *)(uintptr_t)list[i]);
    r->pages = p->pages;
    return room_for;
}

static bool unpack_experts(const gang_memory *m, const gang_block *area, gang_pointers *p,
                           sl_stage_experts *e) {
    const sl_stage_part *parts = at_place(area, e->part);
    void *own = p->part;
    const bool room_for = at_least(&own, &p->n_parts, e->n_parts, sizeof *p->part);
    p->part = own;
    for (uint32_t i = 0; room_for && i < e->n_parts; i++)
        p->part[i] = (sl_stage_part){mem_here(m, parts[i].rows), parts[i].n};
    e->expert = at_place(area, e->expert);
    e->first = at_place(area, e->first);
    e->row = at_place(area, e->row);
    e->gate = at_place(area, e->gate);
    e->to = at_place(area, e->to);
    e->adds = at_place(area, e->adds);
    e->x = mem_here(m, e->x);
    e->part = p->part;
    return room_for;
}

static bool unpack_rows(const gang_memory *m, const gang_block *area, gang_pointers *p,
                        sl_rowset *r) {
    r->id = at_place(area, r->id);
    r->pos = at_place(area, r->pos);
    r->state = at_place(area, r->state);
    r->done = at_place(area, r->done);
    r->expert = at_place(area, r->expert);
    r->gate = at_place(area, r->gate);
    r->x = mem_here(m, r->x);
    r->h = mem_here(m, r->h);
    return !r->pages || unpack_pages(area, p, r);
}

static bool unpack_call(const gang_memory *m, const gang_block *area, gang_pointers *p,
                        sl_stage_call *c) {
    if (c->op == SL_OP_EXPERTS) return unpack_experts(m, area, p, &c->experts);
    if (c->op == SL_OP_HEAD) {
        c->head.row = at_place(area, c->head.row);
        c->head.h = mem_here(m, c->head.h);
        c->head.logits = at_place(area, c->head.logits);
    }
    if (c->op == SL_OP_MTP) {
        c->mtp.row = at_place(area, c->mtp.row);
        c->mtp.out = mem_here(m, c->mtp.out);
        c->mtp.last = at_place(area, c->mtp.last);
        c->mtp.h = mem_here(m, c->mtp.h);
    }
    return unpack_rows(m, area, p, &c->rows);
}

sl_status gang_job_unpack(const gang_memory *m, uint32_t area, const gang_job *in, gang_pointers *p,
                          gang_job *out, sl_err *err) {
    const gang_block *b = &m->block[area];
    *out = *in;
    if (in->kind == GANG_OPEN) {
        out->open.o.folder = at_place(b, in->open.o.folder);
        out->open.o.isa = at_place(b, in->open.o.isa);
        out->open.o.hosts.hosted = at_place(b, in->open.o.hosts.hosted);
    }
    if (in->kind == GANG_SPREAD) {
        out->spread.message = at_place(b, in->spread.message);
        out->spread.row = at_place(b, in->spread.row);
        out->spread.ref = at_place(b, in->spread.ref);
        out->spread.plain = at_place(b, in->spread.plain);
        out->spread.rows = mem_here(m, in->spread.rows);
        out->spread.shared = mem_here(m, in->spread.shared);
    }
    if (in->kind == GANG_HOST) out->host.hosted = at_place(b, in->host.hosted);
    if (in->kind == GANG_READ || in->kind == GANG_WRITE)
        out->page.blocks = at_place(b, in->page.blocks);
    bool room_for = true;
    if (in->kind == GANG_CALL) room_for = unpack_call(m, b, p, &out->call);
    if (in->kind == GANG_RUN) {
        room_for = unpack_rows(m, b, p, &out->run.call.rows);
        out->run.step = at_place(b, in->run.step);
        out->run.chosen = at_place(b, in->run.chosen);
    }
    if (!room_for) return sl_fail(err, SL_ERR_NOMEM, "pointers of a call");
    return SL_OK;
}

void gang_pointers_free(gang_pointers *p) {
    sl_free(p->pages);
    sl_free(p->part);
    *p = (gang_pointers){0};
}

/* ---- results ---- */

/* Rows that rank 0 had nothing to do with are the last ones. */
static void take_routes(const gang_block *area, const sl_rowset *packed, const sl_rowset *r,
                        uint32_t top_k, uint32_t n_ranks) {
    const size_t own = (size_t)sl_rank_range((sl_rank){0, n_ranks}, r->n).n * top_k;
    const size_t rest = (size_t)r->n * top_k - own;
    const uint32_t *expert = at_place(area, packed->expert);
    const float *gate = at_place(area, packed->gate);
    memcpy(r->expert + own, expert + own, rest * sizeof *expert);
    memcpy(r->gate + own, gate + own, rest * sizeof *gate);
}

static void take_logits(const gang_block *area, const sl_stage_head *packed, const sl_stage_head *h,
                        uint32_t vocab, uint32_t n_ranks) {
    const float *logits = at_place(area, packed->logits);
    for (uint32_t i = 1; i < n_ranks; i++) {
        const sl_extent its = sl_rank_piece((sl_rank){i, n_ranks}, vocab, h->first, h->count);
        for (uint32_t r = 0; its.n && r < h->n; r++) {
            const size_t at = (size_t)r * vocab + its.first;
            memcpy(h->logits + at, logits + at, its.n * sizeof *logits);
        }
    }
}

void gang_job_take_back(const gang_memory *m, uint32_t area, const gang_job *packed,
                        const gang_job *j, const sl_model_spec *spec, uint32_t n_ranks) {
    const gang_block *b = &m->block[area];
    if (j->kind == GANG_READ)
        memcpy(j->page.blocks, at_place(b, packed->page.blocks), j->page.bytes);
    if (j->kind != GANG_CALL) return;
    if (j->call.op == SL_OP_ROUTE && j->call.rows.n)
        take_routes(b, &packed->call.rows, &j->call.rows, spec->top_k, n_ranks);
    if (j->call.op == SL_OP_HEAD && j->call.head.n)
        take_logits(b, &packed->call.head, &j->call.head, spec->vocab, n_ranks);
}

/* ---- descriptors between processes ---- */

sl_status gang_send(int socket, const void *what, size_t n, int fd, sl_err *err) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)what, n};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)n) return SL_OK;
    return sl_fail(err, SL_ERR_PEER_DOWN, "passing shared memory: %s", strerror(errno));
}

sl_status gang_receive(int socket, void *what, size_t n, int *fd, sl_err *err) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {what, n};
    /* CMSG_LEN is room for one descriptor and no more: the kernel closes what does not fit. */
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = CMSG_LEN(sizeof(int))};
    struct pollfd readable = {.fd = socket, .events = POLLIN};
    *fd = -1;
    if (poll(&readable, 1, RECEIVE_MS) == 0)
        return sl_fail(err, SL_ERR_TIMEOUT, "no word from the gang's worker within %d ms",
                       RECEIVE_MS);
    const ssize_t got = recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    const struct cmsghdr *c = got >= 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof *fd))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    if (got <= 0)
        return sl_fail(err, SL_ERR_PEER_DOWN, "no word from the gang's worker: %s",
                       got < 0 ? strerror(errno) : "it has ended");
    if (got == (ssize_t)n && *fd >= 0) return SL_OK;
    if (*fd >= 0) close(*fd);
    return sl_fail(err, SL_ERR_PROTOCOL, "%zd bytes for a rank, %zu and a descriptor expected", got,
                   n);
}

sl_status gang_receive_block(int socket, uint64_t number, size_t bytes, int *fd, sl_err *err) {
    gang_delivery d;
    sl_status st = gang_receive(socket, &d, sizeof d, fd, err);
    while (st == SL_OK && d.number < number) {
        close(*fd);
        st = gang_receive(socket, &d, sizeof d, fd, err);
    }
    if (st != SL_OK) return st;
    st = sl_memfd_check(*fd, bytes, err);
    if (st == SL_OK && d.number != number)
        st = sl_fail(err, SL_ERR_PROTOCOL, "block %llu of shared memory came, %llu is wanted",
                     (unsigned long long)d.number, (unsigned long long)number);
    if (st != SL_OK) close(*fd);
    return st;
}

bool gang_has_hung_up(int socket) {
    struct pollfd end = {.fd = socket};
    return poll(&end, 1, 0) == 1 && (end.revents & (POLLHUP | POLLERR));
}
