/* Memory of GPUs that are not there: what the C library gives, so that AddressSanitizer watches it,
 * with a list of what was given. */
#include "fake_int.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GARBAGE_BYTES ((size_t)64 << 20) /* of memory that comes or goes, filled with no number */

#define STEP ((size_t)2 << 20) /* in which a driver gives memory */

typedef struct block {
    struct block *next;
    fake_block is;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks[2];
static uint64_t used[2], serials;

uint64_t fake_number(const char *variable, uint64_t otherwise) {
    const char *text = secure_getenv(variable);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

uint64_t fake_memory(void) {
    return fake_number("SLUICE_FAKE_CUDA_MEMORY", (uint64_t)8 << 30);
}

sl_cu_result fake_alloc(fake_place place, size_t bytes, void **out) {
    sl_cu_result r = SL_CU_OK;
    if (!bytes) return SL_CU_INVALID_VALUE;
    block *b = malloc(sizeof *b);
    pthread_mutex_lock(&lock);
    if (!b || (place == FAKE_DEVICE && bytes > fake_memory() - used[FAKE_DEVICE]) ||
        posix_memalign((void **)&b->is.p, bytes % STEP ? 256 : 4096, bytes) != 0) {
        free(b);
        r = SL_CU_OUT_OF_MEMORY;
    } else {
        b->is = (fake_block){.p = b->is.p,
                             .bytes = bytes,
                             .device = place == FAKE_DEVICE ? fake_device() : 0,
                             .serial = (uint64_t)getpid() << 32 | ++serials};
        b->next = blocks[place];
        blocks[place] = b;
        used[place] += bytes;
        *out = b->is.p;
    }
    pthread_mutex_unlock(&lock);
    if (r == SL_CU_OK) memset(*out, 0xff, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    return r;
}

sl_cu_result fake_register(void *p, size_t bytes) {
    const uintptr_t first = (uintptr_t)p;
    if (!p || !bytes || first % 4096 || bytes % 4096) return SL_CU_INVALID_VALUE;
    if (!fake_number("SLUICE_FAKE_CUDA_REGISTER", 1)) return FAKE_NOT_SUPPORTED;
    block *b = malloc(sizeof *b);
    if (!b) abort();
    pthread_mutex_lock(&lock);
    bool taken = false;
    for (const block *i = blocks[FAKE_HOST]; i; i = i->next)
        taken |= first < (uintptr_t)i->is.p + i->is.bytes && (uintptr_t)i->is.p < first + bytes;
    if (!taken) {
        *b = (block){.next = blocks[FAKE_HOST], .is = {.p = p, .bytes = bytes, .registered = true}};
        blocks[FAKE_HOST] = b;
        used[FAKE_HOST] += bytes;
    }
    pthread_mutex_unlock(&lock);
    if (taken) free(b);
    return taken ? FAKE_REGISTERED : SL_CU_OK;
}

sl_cu_result fake_unregister(void *p) {
    pthread_mutex_lock(&lock);
    block **at = &blocks[FAKE_HOST], *b;
    while (*at && ((*at)->is.p != p || !(*at)->is.registered)) at = &(*at)->next;
    if ((b = *at)) {
        *at = b->next;
        used[FAKE_HOST] -= b->is.bytes;
    }
    pthread_mutex_unlock(&lock);
    free(b);
    return b ? SL_CU_OK : SL_CU_INVALID_VALUE;
}

/* Others who map the file keep it, as a driver's memory is kept for them. */
static void take_back(const fake_block *b) {
    (void)close(b->fd);
    if (mmap(b->p, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
             0) == MAP_FAILED)
        abort();
}

sl_cu_result fake_free(fake_place place, void *p) {
    pthread_mutex_lock(&lock);
    block **at = &blocks[place], *b;
    while (*at && ((*at)->is.p != p || (*at)->is.imported || (*at)->is.registered))
        at = &(*at)->next;
    if ((b = *at)) {
        *at = b->next;
        used[place] -= b->is.bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!b) return SL_CU_INVALID_VALUE;
    if (b->is.fd) take_back(&b->is);
    memset(b->is.p, 0xff,
           b->is.bytes < GARBAGE_BYTES ? b->is.bytes : GARBAGE_BYTES); /* who reads it is seen */
    free(b->is.p);
    free(b);
    return SL_CU_OK;
}

/* With the lock. */
static block *find(fake_place place, const void *p) {
    block *b = blocks[place];
    while (b &&
           ((const uint8_t *)p < b->is.p || (size_t)((const uint8_t *)p - b->is.p) >= b->is.bytes))
        b = b->next;
    return b;
}

bool fake_find(fake_place place, const void *p, fake_block *out) {
    pthread_mutex_lock(&lock);
    const block *b = find(place, p);
    if (b) *out = b->is;
    pthread_mutex_unlock(&lock);
    return b != NULL;
}

/* Its pages become the file's: what lies around them stays the C library's. */
static bool to_file(fake_block *b) {
    char name[64];
    snprintf(name, sizeof name, "fake-cuda-%llu", (unsigned long long)b->serial);
    const int fd = memfd_create(name, MFD_CLOEXEC);
    bool done = fd > 0 && ftruncate(fd, (off_t)b->bytes) == 0 &&
                pwrite(fd, b->p, b->bytes, 0) == (ssize_t)b->bytes;
    done = done && mmap(b->p, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
                       (void *)b->p;
    if (done)
        b->fd = fd;
    else if (fd >= 0)
        (void)close(fd);
    return done;
}

bool fake_share(void *p, int *fd) {
    pthread_mutex_lock(&lock);
    block *b = find(FAKE_DEVICE, p);
    bool done = b && b->is.bytes % STEP == 0 && (b->is.fd || to_file(&b->is));
    if (done) *fd = b->is.fd;
    pthread_mutex_unlock(&lock);
    return done;
}

void fake_import(const fake_block *is) {
    block *b = malloc(sizeof *b);
    if (!b) abort();
    pthread_mutex_lock(&lock);
    *b = (block){.next = blocks[FAKE_DEVICE], .is = *is};
    blocks[FAKE_DEVICE] = b;
    pthread_mutex_unlock(&lock);
}

void fake_forget(void *p) {
    pthread_mutex_lock(&lock);
    block **at = &blocks[FAKE_DEVICE], *b;
    while (*at && (*at)->is.p != p) at = &(*at)->next;
    b = *at;
    if (b) *at = b->next;
    pthread_mutex_unlock(&lock);
    free(b);
}

bool fake_holds(fake_place place, const void *p, size_t bytes) {
    bool holds = false;
    pthread_mutex_lock(&lock);
    for (const block *b = blocks[place]; b && !holds; b = b->next) {
        const uintptr_t at = (uintptr_t)p, first = (uintptr_t)b->is.p;
        holds = at >= first && at - first <= b->is.bytes && b->is.bytes - (at - first) >= bytes;
    }
    pthread_mutex_unlock(&lock);
    return holds;
}

uint64_t fake_used(fake_place place) {
    pthread_mutex_lock(&lock);
    const uint64_t n = used[place];
    pthread_mutex_unlock(&lock);
    return n;
}
