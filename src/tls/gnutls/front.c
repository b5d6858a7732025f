/* The front's thread: clients that come, what epoll says of them, whose time is over. */
#include "tls/gnutls/front_int.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SWEEP_MS   1000
#define STOP_NS    2000000000  /* for what is on its way when the server stops */
#define TELL_NS    60000000000 /* between two lines of the log about plain HTTP */
#define PAIR_BYTES (64 << 10)  /* what lies between front and server, in each direction */
#define ON_PLAIN   1u          /* in what epoll keeps: a link's address, and which socket it is */

typedef struct list {
    sl_tls_link *first, *last;
    uint32_t n;
} list;

struct sl_tls_front {
    pthread_t thread;
    int epoll_fd, event_fd;
    list open, leaving; /* by when they came there */
    sl_tls_link *busy;  /* with more to do */
    sl_tls_link *over;  /* freed when no event of this round can name them */
    uint64_t told_ns;   /* when the log last said that plain HTTP came */
    uint8_t record[SL_TLS_RECORD];

    pthread_mutex_t lock; /* of what follows */
    sl_tls_pair *pair;
    sl_tls_link *arrived;
    bool stopping;
    uint64_t n_shaken, n_failed;
};

static void add(list *to, sl_tls_link *l) {
    l->prev = to->last;
    l->next = NULL;
    *(to->last ? &to->last->next : &to->first) = l;
    to->last = l;
    to->n++;
}

static void take_out(list *of, sl_tls_link *l) {
    *(l->prev ? &l->prev->next : &of->first) = l->next;
    *(l->next ? &l->next->prev : &of->last) = l->prev;
    of->n--;
}

static void tell_in_clear(sl_tls_front *f, const sl_tls_link *l) {
    char from[INET6_ADDRSTRLEN];
    const uint64_t now = sl_now_ns();
    if (f->told_ns && now - f->told_ns < TELL_NS) return;
    f->told_ns = now;
    sl_log(SL_LOG_WARN, "tls", "plain HTTP from %s is answered 400: URLs begin with https:// here",
           sl_tls_link_from(l, from));
}

/* How its handshake ended. */
static void count(sl_tls_front *f, sl_tls_link *l) {
    l->counted = true;
    pthread_mutex_lock(&f->lock);
    f->n_shaken += l->greeting == SL_TLS_SHAKEN;
    f->n_failed += l->greeting != SL_TLS_SHAKEN;
    pthread_mutex_unlock(&f->lock);
    if (l->greeting == SL_TLS_IN_CLEAR) tell_in_clear(f, l);
}

static void end(sl_tls_front *f, sl_tls_link *l) {
    take_out(l->sorted ? &f->leaving : &f->open, l);
    /* a process that is being started has these files, too, and would keep them in epoll */
    epoll_ctl(f->epoll_fd, EPOLL_CTL_DEL, l->net, NULL);
    epoll_ctl(f->epoll_fd, EPOLL_CTL_DEL, l->plain, NULL);
    shutdown(l->net, SHUT_RDWR);
    shutdown(l->plain, SHUT_RDWR);
    l->stage = SL_TLS_OVER;
    l->next = f->over;
    f->over = l;
}

/* A turn of a link, and what comes of it. */
static void turn(sl_tls_front *f, sl_tls_link *l) {
    if (sl_tls_link_turn(l, f->record) && !l->busy) {
        l->busy = true;
        l->next_busy = f->busy;
        f->busy = l;
    }
    if (l->greeting != SL_TLS_SILENT && !l->counted) count(f, l);
    if (l->stage == SL_TLS_OVER) {
        end(f, l);
    } else if (l->leaving && !l->sorted) {
        take_out(&f->open, l);
        add(&f->leaving, l);
        l->sorted = true;
    }
}

/* One more turn for whom had more to do. */
static void turn_busy(sl_tls_front *f) {
    sl_tls_link *busy = f->busy;
    f->busy = NULL;
    for (sl_tls_link *next; busy; busy = next) {
        next = busy->next_busy;
        busy->busy = false;
        if (busy->stage != SL_TLS_OVER) turn(f, busy);
    }
}

static void expire(sl_tls_front *f, sl_tls_link *l) {
    sl_tls_link_expire(l);
    if (l->greeting != SL_TLS_SILENT && !l->counted) count(f, l);
    end(f, l);
}

static void sweep(sl_tls_front *f, list *of, uint64_t now) {
    for (sl_tls_link *l = of->first, *next; l; l = next) {
        next = l->next;
        if (l->until_ns && now >= l->until_ns) expire(f, l);
    }
}

/* But for those that have to leave the list of busy ones first. */
static void free_over(sl_tls_front *f) {
    sl_tls_link *l = f->over;
    f->over = NULL;
    for (sl_tls_link *next; l; l = next) {
        next = l->next;
        if (!l->busy) {
            sl_tls_link_free(l);
            continue;
        }
        l->next = f->over;
        f->over = l;
    }
}

static bool watch(sl_tls_front *f, int fd, uint64_t what) {
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = what};
    return epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0;
}

/* Whether somebody has not got all that the server said. */
static bool is_owing(const sl_tls_front *f) {
    for (const sl_tls_link *l = f->open.first; l; l = l->next)
        if (l->stage < SL_TLS_SHUT) return true;
    for (const sl_tls_link *l = f->leaving.first; l; l = l->next)
        if (l->stage < SL_TLS_SHUT) return true;
    return false;
}

/* Whether to go on: until the server stops, and then until all is sent. */
static bool look_around(sl_tls_front *f, uint64_t *stop_ns) {
    pthread_mutex_lock(&f->lock);
    sl_tls_link *l = f->arrived;
    f->arrived = NULL;
    if (f->stopping && !*stop_ns) *stop_ns = sl_now_ns() + STOP_NS;
    pthread_mutex_unlock(&f->lock);
    for (sl_tls_link *next; l; l = next) {
        next = l->next;
        add(&f->open, l);
        const uint64_t name = (uint64_t)(uintptr_t)l;
        if (!watch(f, l->net, name) || !watch(f, l->plain, name | ON_PLAIN)) end(f, l);
    }
    if (!*stop_ns) return true;
    return is_owing(f) && sl_now_ns() < *stop_ns;
}

static void on_event(sl_tls_front *f, const struct epoll_event *ev) {
    sl_tls_link *l = (sl_tls_link *)(uintptr_t)(ev->data.u64 & ~(uint64_t)ON_PLAIN);
    if (l->stage == SL_TLS_OVER) return;
    if (ev->data.u64 & ON_PLAIN)
        sl_tls_link_on_plain(l, ev->events);
    else
        sl_tls_link_on_net(l, ev->events);
    turn(f, l);
}

static void *run(void *arg) {
    sl_tls_front *f = arg;
    uint64_t swept_ns = sl_now_ns(), stop_ns = 0;
    while (look_around(f, &stop_ns)) {
        struct epoll_event ev[64];
        const int wait_ms = f->busy ? 0 : stop_ns ? 20 : SWEEP_MS;
        const int n = epoll_wait(f->epoll_fd, ev, SL_LEN(ev), wait_ms);
        if (n < 0 && errno != EINTR) break;
        turn_busy(f);
        for (int i = 0; i < n; i++) {
            uint64_t times;
            if (ev[i].data.u64 != 0)
                on_event(f, &ev[i]);
            else if (read(f->event_fd, &times, sizeof times) < 0 && errno != EAGAIN)
                break;
        }
        while (f->leaving.n > SL_TLS_FRONT_LEAVING) expire(f, f->leaving.first);
        const uint64_t now = sl_now_ns();
        if (now - swept_ns >= SWEEP_MS * 1000000ull) {
            swept_ns = now;
            sweep(f, &f->open, now);
            sweep(f, &f->leaving, now);
        }
        free_over(f);
    }
    while (f->open.first) end(f, f->open.first);
    while (f->leaving.first) end(f, f->leaving.first);
    turn_busy(f);
    free_over(f);
    return NULL;
}

/* ---- what others ask of it ---- */

static void kick(sl_tls_front *f) {
    const uint64_t one = 1;
    /* a full counter means that the thread is already due */
    if (write(f->event_fd, &one, sizeof one) < 0) return;
}

int sl_tls_front_take(sl_tls_front *f, int fd, const struct sockaddr *from) {
    int pair[2];
    const int most = PAIR_BYTES;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        const int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    for (int i = 0; i < 2; i++) /* failing leaves the system's own limit */
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
    pthread_mutex_lock(&f->lock);
    sl_tls_link *l = sl_tls_link_create(fd, pair[0], sl_tls_pair_ref(f->pair), from);
    if (l) {
        l->next = f->arrived;
        f->arrived = l;
    }
    pthread_mutex_unlock(&f->lock);
    if (l) {
        kick(f);
        return pair[1];
    }
    close(pair[1]);
    errno = ENOMEM;
    return -1;
}

void sl_tls_front_renew(sl_tls_front *f, sl_tls_pair *pair) {
    pthread_mutex_lock(&f->lock);
    sl_tls_pair *old = f->pair;
    f->pair = sl_tls_pair_ref(pair);
    pthread_mutex_unlock(&f->lock);
    sl_tls_pair_unref(old);
}

sl_tls_front_stats sl_tls_front_stats_get(sl_tls_front *f) {
    pthread_mutex_lock(&f->lock);
    const sl_tls_front_stats s = {
        .n_shaken = f->n_shaken, .n_failed = f->n_failed, .ends_s = sl_tls_pair_ends_s(f->pair)};
    pthread_mutex_unlock(&f->lock);
    return s;
}

static void free_front(sl_tls_front *f) {
    if (f->epoll_fd >= 0) close(f->epoll_fd);
    if (f->event_fd >= 0) close(f->event_fd);
    sl_tls_pair_unref(f->pair);
    pthread_mutex_destroy(&f->lock);
    sl_free(f);
}

sl_status sl_tls_front_start(sl_tls_pair *pair, sl_tls_front **out, sl_err *err) {
    sl_tls_front *f = sl_alloc(1, sizeof *f);
    if (!f) return sl_fail(err, SL_ERR_NOMEM, "TLS: out of memory");
    pthread_mutex_init(&f->lock, NULL);
    f->pair = sl_tls_pair_ref(pair);
    f->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    f->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0};
    int rc = 0;
    if (f->epoll_fd < 0 || f->event_fd < 0 ||
        epoll_ctl(f->epoll_fd, EPOLL_CTL_ADD, f->event_fd, &ev) != 0)
        rc = errno;
    if (rc == 0) rc = pthread_create(&f->thread, NULL, run, f);
    if (rc == 0) {
        *out = f;
        return SL_OK;
    }
    free_front(f);
    return sl_fail(err, SL_ERR_IO, "TLS: %s", strerror(rc));
}

void sl_tls_front_stop(sl_tls_front *f) {
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_mutex_unlock(&f->lock);
    kick(f);
    pthread_join(f->thread, NULL);
    free_front(f);
}
