/* The socket by which two processes meet, and the area that is passed through it. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/memfd.h"
#include "net/shm/shm_int.h"

#define NAME_BYTES  16u
#define NAME_DIGITS (2 * NAME_BYTES)
#define NAME_PREFIX "sluice-"

/* The first bytes of a socket; the memfd comes with them. */
typedef struct greeting {
    uint32_t magic, version;
    uint64_t area_bytes;
} greeting;

static const greeting own_greeting = {SL_WIRE_MAGIC, SL_WIRE_VERSION, SL_SHM_AREA_BYTES};

/* ---- names and users ---- */

static socklen_t name_of(const char *digits, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, NAME_PREFIX "%s", digits);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool is_own_user(int fd) {
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && len == sizeof who &&
           who.uid == geteuid();
}

static int new_socket(void) {
    return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

sl_status sl_shm_listen(int *out_fd, char *address, size_t cap, sl_err *err) {
    uint8_t random[NAME_BYTES];
    char digits[NAME_DIGITS + 1];
    struct sockaddr_un a;
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(digits, sizeof digits, random, sizeof random);
    socklen_t len = name_of(digits, &a);
    int fd = new_socket();
    if (fd < 0 || bind(fd, (const struct sockaddr *)&a, len) != 0 || listen(fd, SOMAXCONN) != 0) {
        sl_fail(err, SL_ERR_IO, "listening on shm:%s: %s", digits, strerror(errno));
        if (fd >= 0) close(fd);
        return SL_ERR_IO;
    }
    snprintf(address, cap, "shm:%s", digits);
    *out_fd = fd;
    return SL_OK;
}

sl_status sl_shm_dial(const char *address, int *out_fd, sl_err *err) {
    struct sockaddr_un a;
    const char *digits = address + 4;
    if (strncmp(address, "shm:", 4) != 0 || strlen(digits) != NAME_DIGITS ||
        strspn(digits, "0123456789abcdef") != NAME_DIGITS)
        return sl_fail(err, SL_ERR_ARG, "address '%s': shm: and %u hexadecimal digits expected",
                       address, NAME_DIGITS);
    socklen_t len = name_of(digits, &a);
    int fd = new_socket();
    if (fd < 0) return sl_fail(err, SL_ERR_IO, "%s: %s", address, strerror(errno));
    sl_status st = SL_OK;
    if (connect(fd, (const struct sockaddr *)&a, len) != 0)
        st = sl_fail(err, SL_ERR_PEER_DOWN, "%s: %s", address, strerror(errno));
    else if (!is_own_user(fd))
        st = sl_fail(err, SL_ERR_AUTH, "%s: another user listens there", address);
    if (st == SL_OK)
        *out_fd = fd;
    else
        close(fd);
    return st;
}

int sl_shm_accept(int listen_fd) {
    int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 || is_own_user(fd)) return fd;
    close(fd);
    return -1;
}

/* ---- the area ---- */

static shm_area *map(int memfd) {
    void *p = mmap(NULL, SL_SHM_AREA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    return p == MAP_FAILED ? NULL : p;
}

void sl_shm_area_free(shm_area *a) {
    if (a) munmap(a, SL_SHM_AREA_BYTES);
}

static bool send_with_fd(int fd, int passed) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {(void *)(uintptr_t)&own_greeting, sizeof own_greeting};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &passed, sizeof passed);
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof own_greeting;
}

sl_status sl_shm_greet(int fd, shm_area **out, sl_err *err) {
    int memfd;
    sl_status st = sl_memfd_create(SL_SHM_AREA_BYTES, &memfd, err);
    if (st != SL_OK) return st;
    shm_area *a = map(memfd);
    if (!a)
        st = sl_fail(err, SL_ERR_IO, "shared memory: %s", strerror(errno));
    else if (!send_with_fd(fd, memfd))
        st = sl_fail(err, SL_ERR_PEER_DOWN, "passing shared memory: %s", strerror(errno));
    close(memfd);
    if (st == SL_OK)
        *out = a;
    else
        sl_shm_area_free(a);
    return st;
}

static int passed_fd(struct msghdr *m) {
    int fd = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
            c->cmsg_len == CMSG_LEN(sizeof fd))
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

sl_status sl_shm_greeted(int fd, shm_area **out, sl_err *err) {
    greeting g = {0};
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {&g, sizeof g};
    /* CMSG_LEN is room for one descriptor and no more: the kernel closes what does not fit. */
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control,
                       .msg_controllen = CMSG_LEN(sizeof(int))};
    ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return SL_ERR_AGAIN;
    if (n < 0) return sl_fail(err, SL_ERR_PEER_DOWN, "greeting: %s", strerror(errno));
    int memfd = passed_fd(&m);
    shm_area *a = NULL;
    sl_status st = SL_OK;
    if (n != (ssize_t)sizeof g || memfd < 0 || memcmp(&g, &own_greeting, sizeof g) != 0)
        st = sl_fail(err, SL_ERR_PROTOCOL, "greeting: %zd bytes of another program or version", n);
    if (st == SL_OK && sl_memfd_check(memfd, SL_SHM_AREA_BYTES, err) != SL_OK)
        st = sl_err_prefix(err, "greeting");
    if (st == SL_OK && !(a = map(memfd)))
        st = sl_fail(err, SL_ERR_NOMEM, "shared memory: %s", strerror(errno));
    if (memfd >= 0) close(memfd);
    if (st == SL_OK) *out = a;
    return st;
}
