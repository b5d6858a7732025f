/* One GPU as the files of this folder share it: memory, copies, launches of the kernels of
 * kernels.def, and lists of the host that kernels read.
 *
 * All that is asked of the GPU runs one after another, in the order of the calls (one stream), and
 * later than they return, unless a call says that it waits or runs beside (sl_cuda_beside).
 * Launches, copies and lists return no error: the first one is kept, nothing more is asked of the
 * GPU after it, and sl_cuda_failed tells it. Device addresses are uint64_t, or pointers where a
 * call or a kernel's argument takes data; the host does not read through them. Thread: owner;
 * sl_cuda_alloc, sl_cuda_free and sl_cuda_copy_in from any other, too. */
#ifndef SL_STAGE_CUDA_CUDA_INT_H
#define SL_STAGE_CUDA_CUDA_INT_H

#include "base/status.h"
#include "spec/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum sl_cuda_kernel_id {
#define SL_CUDA_KERNEL(name, args) SL_CUDA_##name,
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL
    SL_CUDA_KERNEL_COUNT
} sl_cuda_kernel_id;

typedef struct sl_cuda_info {
    char name[96];
    uint32_t major, minor; /* compute capability */
    uint32_t sms;          /* multiprocessors */
    uint32_t shared_bytes; /* most shared memory of a block */
    uint32_t driver;       /* CUDA version of the driver: 1000 major + 10 minor */
    uint64_t memory_bytes, free_bytes;
} sl_cuda_info;

/* How many GPUs there are. No driver is SL_ERR_UNSUPPORTED, which says so. Thread: any. */
sl_status sl_cuda_count(uint32_t *out, sl_err *err) SL_MUST_CHECK;
/* What GPU `device` is, but for its free memory, which stays 0. Thread: any. */
sl_status sl_cuda_identify(uint32_t device, sl_cuda_info *out, sl_err *err) SL_MUST_CHECK;
/* With its free memory. Makes a context on it for a moment, since only that tells its free memory.
 * Thread: any. */
sl_status sl_cuda_describe(uint32_t device, sl_cuda_info *out, sl_err *err) SL_MUST_CHECK;

/* What sl_cuda_kind says of it. */
void sl_cuda_kind_text(const sl_cuda_info *info, char out[SL_GPU_KIND_BYTES]);

typedef struct sl_cuda sl_cuda;

/* Forms of what numerics fast has for very few rows (kernels/fast_vec.cu), all of the same bits but
 * for the last bit of gates. None of them: what was measured first. */
typedef struct sl_cuda_few {
    bool ring;   /* weights by the copy engine, not into registers */
    bool fetch;  /* a kernel's weights come near while the ones in front still run */
    bool routes; /* routers choose in the kernel that makes their logits */
} sl_cuda_few;

/* A stream on GPU `device`, with every kernel looked up. SL_ERR_UNSUPPORTED: no driver, no such
 * GPU, one that the kernels are not built for, or a program without kernels. The thread that opens
 * is the owner. */
sl_status sl_cuda_open(uint32_t device, sl_numerics numerics, sl_cuda **out,
                       sl_err *err) SL_MUST_CHECK;
/* NULL-safe; waits for what runs. Memory that was not freed before goes with the process. */
void sl_cuda_close(sl_cuda *c);
/* Another thread becomes the owner: the one that calls this. */
void sl_cuda_adopt(sl_cuda *c);

sl_numerics sl_cuda_numerics_of(const sl_cuda *c);
void sl_cuda_set_few(sl_cuda *c, sl_cuda_few few);
/* Whether numerics fast takes the forms for many rows that no GPU has run yet: products, attention
 * of prompts, norms and lists of experts by warp groups, copy engine and many blocks. Not, at
 * first.
 */
void sl_cuda_set_many(sl_cuda *c, bool many);
/* As of opening. Borrowed until sl_cuda_close. */
const sl_cuda_info *sl_cuda_info_of(const sl_cuda *c);

/* SL_OK, or the first failure, which fills err every time. */
sl_status sl_cuda_failed(const sl_cuda *c, sl_err *err) SL_MUST_CHECK;
/* For callers that find that what they were asked for cannot be done: makes it the failure, unless
 * there is one. */
void sl_cuda_fail(sl_cuda *c, sl_status code, const char *fmt, ...) SL_PRINTF(3, 4);

/* Kernel `k` over grid_x * grid_y * grid_z blocks of `threads` threads with so many bytes of
 * dynamic shared memory; a grid with a zero launches nothing. args: the kernel's struct, copied
 * before this returns. */
void sl_cuda_launch(sl_cuda *c, sl_cuda_kernel_id k, uint32_t grid_x, uint32_t grid_y,
                    uint32_t grid_z, uint32_t threads, uint32_t dynamic_shared, const void *args);

/* Launches what is held back (context.h): everything but launches, too, calls this first. */
void sl_cuda_settle(sl_cuda *c);

/* A copy of a list of the host, 16-byte aligned, at the address that kernels read it from; the
 * list itself may change once this returns. It may be read by all that is launched before the next
 * sl_cuda_fence. NULL after a failure, when nothing is launched. */
const void *sl_cuda_list(sl_cuda *c, const void *list, size_t bytes);
/* The same, to be filled by the caller before the launch: *out is its address for kernels. Never
 * NULL. */
void *sl_cuda_list_room(sl_cuda *c, size_t bytes, const void **out);
/* Lists made until now are read by nothing that is launched from now on. Cheap: to be called at the
 * end of each op. */
void sl_cuda_fence(sl_cuda *c);

/* Memory of the GPU, 256-byte aligned, contents undefined. SL_ERR_NOMEM says how much was free. */
sl_status sl_cuda_alloc(sl_cuda *c, size_t bytes, uint64_t *out, sl_err *err) SL_MUST_CHECK;
void sl_cuda_free(sl_cuda *c, uint64_t address); /* of 0: nothing; waits for what runs */
/* At least so many bytes of the GPU, 256-byte aligned, for operations that run one after another:
 * its contents are what the last one left, zeros at first and where it has grown. 0: there is a
 * failure.
 */
uint64_t sl_cuda_scratch(sl_cuda *c, size_t bytes);
/* Free memory of the GPU now, 0 after a failure. */
uint64_t sl_cuda_free_bytes(sl_cuda *c);

/* Memory of the host that the GPU copies to and from, 64-byte aligned: *address is what kernels
 * call it. Freeing waits for what runs. */
sl_status sl_cuda_pin(sl_cuda *c, size_t bytes, void **out, uint64_t *address,
                      sl_err *err) SL_MUST_CHECK;
void sl_cuda_unpin(sl_cuda *c, void *p); /* NULL-safe */

/* Memory of the host, of whole pages, that is there already and only read from here on: it stays
 * where it is, so that copies beside may read it, until it is released. One such copy reads what
 * was registered at once. Whether that can be is a matter of driver and file system. Release waits
 * for what runs. */
sl_status sl_cuda_register(sl_cuda *c, const void *p, size_t bytes, sl_err *err) SL_MUST_CHECK;
void sl_cuda_release(sl_cuda *c, const void *p);

/* Any memory of the host to the GPU, at once: in no order with what was launched, none of which may
 * use `to`; what is launched later sees it. For weights. A held launch stays held, and rounded rows
 * stay known: this may be another thread than the one whose they are. */
sl_status sl_cuda_copy_in(sl_cuda *c, uint64_t to, const void *from, size_t bytes,
                          sl_err *err) SL_MUST_CHECK;
/* Waits for all that was asked before, then copies to any memory of the host. */
sl_status sl_cuda_copy_out(sl_cuda *c, void *to, uint64_t from, size_t bytes,
                           sl_err *err) SL_MUST_CHECK;

/* In order with launches; `from` or `to` of the host is pinned, and untouched until then. */
void sl_cuda_copy_in_later(sl_cuda *c, uint64_t to, const void *from, size_t bytes);
void sl_cuda_copy_out_later(sl_cuda *c, void *to, uint64_t from, size_t bytes);
void sl_cuda_copy(sl_cuda *c, uint64_t to, uint64_t from, size_t bytes); /* no overlap */
void sl_cuda_fill(sl_cuda *c, uint64_t to, uint8_t byte, size_t bytes);

/* A mark in the order of things. */
typedef struct sl_cuda_event sl_cuda_event;
sl_status sl_cuda_event_create(sl_cuda *c, sl_cuda_event **out, sl_err *err) SL_MUST_CHECK;
void sl_cuda_event_free(sl_cuda *c, sl_cuda_event *e); /* NULL-safe */
/* Behind all that was asked until now; a mark that was put before is put here instead. */
void sl_cuda_event_record(sl_cuda *c, sl_cuda_event *e);
/* Whether all before it has run; true for one never put, and after a failure. */
bool sl_cuda_event_is_done(sl_cuda *c, sl_cuda_event *e);
void sl_cuda_event_wait(sl_cuda *c, sl_cuda_event *e);
/* Milliseconds of the GPU from one mark to another, both done. */
float sl_cuda_event_ms(sl_cuda *c, const sl_cuda_event *from, const sl_cuda_event *to);
/* Waits for everything but what runs beside. */
void sl_cuda_drain(sl_cuda *c);

/* A second stream, for copies from registered memory of the host while kernels run: in order among
 * themselves alone. beside: of these calls the ones that are put there. */
sl_status sl_cuda_beside(sl_cuda *c, sl_err *err) SL_MUST_CHECK; /* opens it, unless it is open */
void sl_cuda_copy_in_beside(sl_cuda *c, uint64_t to, const void *from, size_t bytes);
void sl_cuda_event_record_beside(sl_cuda *c, sl_cuda_event *e);
/* What is asked from here on, of the one stream or of the other, waits for the mark. One never put
 * is not waited for. */
void sl_cuda_after(sl_cuda *c, const sl_cuda_event *e);
void sl_cuda_after_beside(sl_cuda *c, const sl_cuda_event *e);
void sl_cuda_drain_beside(sl_cuda *c);

#endif
