/* Memory of GPUs that are not there: what the C library gives, so that AddressSanitizer watches it,
 * with a list of what was given. */
#include "fake_int.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GARBAGE_BYTES ((size_t)64 << 20) /* of memory that comes or goes, filled with no number */

typedef struct block {
    struct block *next;
    uint8_t *p;
    size_t bytes;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block *blocks[2];
static uint64_t used[2];

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
        posix_memalign((void **)&b->p, 256, bytes) != 0) {
        free(b);
        r = SL_CU_OUT_OF_MEMORY;
    } else {
        b->bytes = bytes;
        b->next = blocks[place];
        blocks[place] = b;
        used[place] += bytes;
        *out = b->p;
    }
    pthread_mutex_unlock(&lock);
    if (r == SL_CU_OK) memset(*out, 0xff, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    return r;
}

sl_cu_result fake_free(fake_place place, void *p) {
    pthread_mutex_lock(&lock);
    block **at = &blocks[place], *b;
    while (*at && (*at)->p != p) at = &(*at)->next;
    if ((b = *at)) {
        *at = b->next;
        used[place] -= b->bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!b) return SL_CU_INVALID_VALUE;
    memset(b->p, 0xff,
           b->bytes < GARBAGE_BYTES ? b->bytes : GARBAGE_BYTES); /* who reads it is seen */
    free(b->p);
    free(b);
    return SL_CU_OK;
}

bool fake_holds(fake_place place, const void *p, size_t bytes) {
    bool holds = false;
    pthread_mutex_lock(&lock);
    for (const block *b = blocks[place]; b && !holds; b = b->next) {
        const uintptr_t at = (uintptr_t)p, first = (uintptr_t)b->p;
        holds = at >= first && at - first <= b->bytes && b->bytes - (at - first) >= bytes;
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
