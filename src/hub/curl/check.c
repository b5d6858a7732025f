/* The thread that hashes files while they arrive. */
#include "hub/curl/check.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <unistd.h>

#define PIECE ((size_t)1 << 20)

typedef struct item {
    bool taken, busy, ended; /* busy: the thread is outside the lock with it */
    int fd;
    uint64_t bytes, front, hashed;
    sl_hub_digest *digest;
    char id[SL_HUB_ID + 1];
    sl_status st;
    sl_err err;
} item;

struct sl_hub_checker {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    uint32_t n, next;
    item *item;
    uint8_t *buffer;
};

static bool has_work(const item *i) {
    return i->taken && !i->ended && (i->hashed < i->front || i->hashed == i->bytes);
}

/* Next in turn, so that no large file keeps small ones waiting. */
static item *pick(sl_hub_checker *c) {
    for (uint32_t k = 0; k < c->n; k++) {
        item *i = &c->item[(c->next + k) % c->n];
        if (!has_work(i)) continue;
        c->next = (c->next + k + 1) % c->n;
        return i;
    }
    return NULL;
}

static void end(item *i) {
    int synced = i->st == SL_OK ? fdatasync(i->fd) : 0;
    if (synced != 0 && errno != EINVAL && errno != EROFS)
        i->st = sl_fail(&i->err, SL_ERR_IO, "cannot be put on the disk: %s", strerror(errno));
    sl_hub_digest_end(i->digest, i->id);
    i->digest = NULL;
}

/* One piece of a file, without the lock. */
static uint64_t hash(sl_hub_checker *c, item *i, uint64_t front) {
    size_t want = (size_t)SL_MIN(front - i->hashed, (uint64_t)PIECE);
    ssize_t got = want ? pread(i->fd, c->buffer, want, (off_t)i->hashed) : 0;
    if (want && got <= 0) {
        i->st = sl_fail(&i->err, SL_ERR_IO, "cannot be read again: %s",
                        got < 0 ? strerror(errno) : "it is shorter than what was written");
        return i->bytes;
    }
    sl_hub_digest_add(i->digest, c->buffer, (size_t)got);
    return i->hashed + (uint64_t)got;
}

static void *run(void *arg) {
    sl_hub_checker *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        item *i = pick(c);
        if (!i) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        uint64_t front = i->front;
        i->busy = true;
        pthread_mutex_unlock(&c->lock);
        uint64_t hashed = hash(c, i, front);
        if (hashed == i->bytes) end(i);
        pthread_mutex_lock(&c->lock);
        i->busy = false;
        i->hashed = hashed;
        i->ended = hashed == i->bytes;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

sl_status sl_hub_checker_create(uint32_t most, sl_hub_checker **out, sl_err *err) {
    sl_hub_checker *c = sl_alloc(1, sizeof *c);
    if (c) c->item = sl_alloc(most, sizeof *c->item);
    if (c) c->buffer = sl_alloc(PIECE, 1);
    if (!c || !c->item || !c->buffer) goto nomem;
    c->n = most;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    if (pthread_create(&c->thread, NULL, run, c) == 0) {
        *out = c;
        return SL_OK;
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
nomem:
    if (c) sl_free(c->item);
    if (c) sl_free(c->buffer);
    sl_free(c);
    return sl_fail(err, SL_ERR_NOMEM, "a thread for digests");
}

void sl_hub_checker_free(sl_hub_checker *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    for (uint32_t i = 0; i < c->n; i++) sl_hub_digest_free(c->item[i].digest);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    sl_free(c->item);
    sl_free(c->buffer);
    sl_free(c);
}

sl_status sl_hub_checker_join(sl_hub_checker *c, int fd, uint64_t bytes, const char *id,
                              uint32_t *place, sl_err *err) {
    sl_hub_digest *d = sl_hub_digest_start(bytes, id);
    if (!d) return sl_fail(err, SL_ERR_NOMEM, "a digest");
    pthread_mutex_lock(&c->lock);
    uint32_t i = 0;
    while (i < c->n && c->item[i].taken) i++;
    SL_ASSERT(i < c->n);
    c->item[i] = (item){.taken = true, .fd = fd, .bytes = bytes, .digest = d};
    pthread_cond_broadcast(&c->changed); /* an empty file has nothing to wait for */
    pthread_mutex_unlock(&c->lock);
    *place = i;
    return SL_OK;
}

void sl_hub_checker_leave(sl_hub_checker *c, uint32_t place) {
    item *i = &c->item[place];
    pthread_mutex_lock(&c->lock);
    while (i->busy) pthread_cond_wait(&c->changed, &c->lock);
    sl_hub_digest_free(i->digest);
    *i = (item){0};
    pthread_mutex_unlock(&c->lock);
}

void sl_hub_checker_front(sl_hub_checker *c, uint32_t place, uint64_t bytes) {
    pthread_mutex_lock(&c->lock);
    if (bytes > c->item[place].front) {
        c->item[place].front = bytes;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
}

uint64_t sl_hub_checker_hashed(sl_hub_checker *c, uint32_t place) {
    pthread_mutex_lock(&c->lock);
    uint64_t hashed = c->item[place].hashed;
    pthread_mutex_unlock(&c->lock);
    return hashed;
}

bool sl_hub_checker_ended(sl_hub_checker *c, uint32_t place, char id[SL_HUB_ID + 1], sl_status *st,
                          sl_err *err) {
    const item *i = &c->item[place];
    pthread_mutex_lock(&c->lock);
    bool ended = i->ended;
    if (ended) {
        memcpy(id, i->id, sizeof i->id);
        *st = i->st;
        if (i->st != SL_OK) *err = i->err;
    }
    pthread_mutex_unlock(&c->lock);
    return ended;
}
