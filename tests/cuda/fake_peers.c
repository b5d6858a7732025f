/* Memory of GPUs that are not there, for other GPUs and other processes. As the driver has it: a
 * GPU reaches another one's memory after its context was told to, memory of another process is
 * opened by a handle, in no process twice as its own, and is mapped until it is closed. Stricter:
 * a handle of memory that was freed is refused, and kernels that move rows are asked at their
 * launch whether they reach them. */
#include "fake_int.h"

#include "stage/cuda/kernels/args_rows.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GPUS 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool reaches[GPUS][GPUS];
static uint32_t contexts[GPUS]; /* how often each GPU's is held */

static bool lends(void) {
    return fake_number("SLUICE_FAKE_CUDA_IPC", 1) != 0;
}

/* ---- other GPUs ---- */

sl_cu_result fake_can_reach(int *out, int device, int peer) {
    const int n = (int)fake_number("SLUICE_FAKE_CUDA_COUNT", 2);
    if (device < 0 || peer < 0 || device >= n || peer >= n) return SL_CU_INVALID_DEVICE;
    *out = device != peer && fake_number("SLUICE_FAKE_CUDA_PEERS", 1);
    return SL_CU_OK;
}

sl_cu_result fake_reach(int device, int peer) {
    int can = 0;
    sl_cu_result r = fake_can_reach(&can, device, peer);
    if (r != SL_CU_OK) return SL_CU_INVALID_CONTEXT;
    if (!can) return FAKE_PEERS_UNSUPPORTED;
    pthread_mutex_lock(&lock);
    if (reaches[device][peer]) r = SL_CU_PEERS_ALREADY;
    reaches[device][peer] = true;
    pthread_mutex_unlock(&lock);
    return r;
}

/* What a context was told goes with it, and so does what others were of it. */
void fake_context(int device, bool held) {
    pthread_mutex_lock(&lock);
    contexts[device] += held ? 1 : (uint32_t)-1;
    for (int i = 0; contexts[device] == 0 && i < GPUS; i++)
        reaches[device][i] = reaches[i][device] = false;
    pthread_mutex_unlock(&lock);
}

/* ---- other processes ---- */

typedef struct handle {
    char mark[8];
    int32_t pid, fd, device;
    uint32_t zero;
    uint64_t serial, bytes;
} handle;
_Static_assert(sizeof(handle) <= sizeof(sl_cu_ipc_handle), "a handle's bytes");

static const char mark[8] = "fake-ipc";

sl_cu_result fake_lend(sl_cu_ipc_handle *out, void *p) {
    fake_block b;
    int fd;
    handle h = {.pid = getpid()};
    if (!lends()) return FAKE_NOT_SUPPORTED;
    if (!fake_find(FAKE_DEVICE, p, &b) || b.p != p || b.imported || b.device != fake_device())
        return SL_CU_INVALID_VALUE;
    if (!fake_share(p, &fd)) return SL_CU_INVALID_VALUE;
    memcpy(h.mark, mark, sizeof mark);
    h.fd = fd;
    h.device = b.device;
    h.serial = b.serial;
    h.bytes = b.bytes;
    memset(out, 0, sizeof *out);
    memcpy(out, &h, sizeof h);
    return SL_CU_OK;
}

/* Whether the file is still the block's: numbers of files are used again. */
static bool is_the_block(const char *path, uint64_t serial) {
    char name[64], is[128];
    const ssize_t n = readlink(path, is, sizeof is - 1);
    if (n < 0) return false;
    is[n] = 0;
    snprintf(name, sizeof name, "/memfd:fake-cuda-%llu ", (unsigned long long)serial);
    return strncmp(is, name, strlen(name)) == 0;
}

sl_cu_result fake_borrow(void **out, const sl_cu_ipc_handle *in, unsigned flags) {
    handle h;
    char path[64];
    memcpy(&h, in, sizeof h);
    if (!lends()) return FAKE_NOT_SUPPORTED;
    if (flags != SL_CU_IPC_PEERS || memcmp(h.mark, mark, sizeof mark)) return SL_CU_INVALID_VALUE;
    if (h.pid == getpid()) return SL_CU_INVALID_CONTEXT;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", h.pid, h.fd);
    if (!is_the_block(path, h.serial)) return SL_CU_INVALID_VALUE;
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return SL_CU_INVALID_VALUE;
    void *p = mmap(NULL, h.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (p == MAP_FAILED) return SL_CU_OUT_OF_MEMORY;
    const fake_block b = {.p = p, .bytes = h.bytes, .device = h.device, .imported = true};
    fake_import(&b);
    *out = p;
    return SL_CU_OK;
}

sl_cu_result fake_return(void *p) {
    fake_block b;
    if (!fake_find(FAKE_DEVICE, p, &b) || b.p != p || !b.imported) return SL_CU_INVALID_VALUE;
    fake_streams_wait();
    fake_forget(p);
    return munmap(p, b.bytes) == 0 ? SL_CU_OK : SL_CU_INVALID_VALUE; /* who writes later is seen */
}

/* ---- kernels ---- */

static bool can_touch(const void *p) {
    fake_block b;
    if (fake_find(FAKE_HOST, p, &b)) return true;
    if (!fake_find(FAKE_DEVICE, p, &b)) return false;
    if (b.imported || b.device == fake_device()) return true;
    pthread_mutex_lock(&lock);
    const bool can = reaches[fake_device()][b.device];
    pthread_mutex_unlock(&lock);
    return can;
}

bool fake_can_run(const fake_kernel *k, const void *args, uint32_t blocks) {
    uint8_t *const *at = NULL;
    uint32_t n = blocks;
    if (!strcmp(k->name, "sl_k_pack") || !strcmp(k->name, "sl_k_unpack")) {
        at = ((const sl_k_wire_args *)args)->at;
    } else if (!strcmp(k->name, "sl_k_merge")) {
        at = (uint8_t *const *)((const sl_k_merge_args *)args)->piece;
        n *= ((const sl_k_merge_args *)args)->k;
    }
    for (uint32_t i = 0; at && i < n; i++)
        if (at[i] && !can_touch(at[i])) return false;
    return true;
}
