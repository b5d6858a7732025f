/* What a context is made of, for the files that make it: launch.c, memory.c, lists.c, context.c,
 * graph.c, each of which calls those before it. */
#ifndef SL_STAGE_CUDA_CONTEXT_H
#define SL_STAGE_CUDA_CONTEXT_H

#include "stage/cuda/cuda_int.h"
#include "stage/cuda/driver.h"
#include "stage/cuda/graph.h"
#include "stage/cuda/kernels/args_fast_vec.h"
#include "stage/cuda/kernels/args_rows.h"

#define SL_CUDA_IMAGES 64u /* modules at most */

/* Memory that lists lie in. */
typedef enum sl_cuda_part_state {
    SL_CUDA_PART_FREE,
    SL_CUDA_PART_USED,  /* since the last fence, or open */
    SL_CUDA_PART_FENCED /* `read` says when it is free */
} sl_cuda_part_state;

typedef struct sl_cuda_part {
    uint8_t *host;
    uint64_t address;
    size_t bytes, used;
    sl_cuda_part_state state;
    uint64_t number; /* of its fence */
    sl_cu_event read;
} sl_cuda_part;

typedef struct sl_cuda_lists {
    sl_cuda_part *parts;
    uint32_t n, open; /* open: that lists are put into */
    uint32_t fenced;  /* the one that was open at the last fence */
    uint64_t fences;
    uint8_t *junk; /* what is written after a failure */
    size_t junk_bytes;
} sl_cuda_lists;

/* A launch that waits for the next one, which may take what it does with it: a norm its product, a
 * product a sum. Whatever else is asked of the GPU settles it first, but sl_cuda_copy_in. */
typedef enum sl_cuda_held_what {
    SL_CUDA_HELD_NONE,
    SL_CUDA_HELD_NORM,
    SL_CUDA_HELD_VEC
} sl_cuda_held_what;

typedef struct sl_cuda_held {
    sl_cuda_held_what what;
    sl_cuda_kernel_id kernel;
    uint32_t blocks, threads, shared;
    union {
        sl_k_norm_args norm;
        sl_vec_args vec;
    } args;
} sl_cuda_held;

/* Rows of x that lie in bf16 in the memory of rounded rows (exec_wide.h), since `asked` was so
 * much. */
typedef struct sl_cuda_rounded {
    const float *x; /* NULL: there are none */
    uint32_t n_rows, n;
    uint64_t at, asked;
} sl_cuda_rounded;

/* While launches are recorded (graph.h). */
typedef struct sl_cuda_recording {
    bool on, named;              /* named: the kernel that wanted what cannot be is */
    uint64_t moved;              /* when it began */
    const sl_cuda_step *step;    /* whose lists are there */
    char why[SL_CUDA_WHY_BYTES]; /* what speaks against it; "": nothing */
} sl_cuda_recording;

struct sl_cuda {
    const sl_cu_driver *d;
    sl_cu_device device;
    sl_cu_context context;
    sl_cu_stream stream, beside; /* beside: NULL until somebody copies there */
    sl_numerics numerics;
    sl_cuda_few few;
    bool many; /* sl_cuda_set_many */
    sl_cuda_info info;
    sl_cu_module modules[SL_CUDA_IMAGES];
    uint32_t n_modules;
    sl_cu_function kernels[SL_CUDA_KERNEL_COUNT];
    uint32_t dynamic[SL_CUDA_KERNEL_COUNT]; /* bytes that are allowed to each so far */
    sl_cuda_held held;
    sl_cuda_lists lists;
    uint64_t scratch;
    size_t scratch_bytes;
    uint64_t vec_done; /* a counter that is zero between kernels (exec_fast_vec.c), or 0 */
    uint64_t parts;    /* memory for sums in parts (exec_fast_products.c), or 0 */
    uint64_t wide;     /* memory for rounded rows (exec_fast_wide.c), or 0 */
    size_t wide_bytes;
    sl_cuda_rounded rounded;
    sl_cuda_recording recording;
    _Atomic uint64_t moved; /* counts changes of what a graph has for good: sl_cuda_moves */
    uint64_t asked;         /* counts what may have written to the GPU's memory */
    uint32_t wide_shape;    /* sl_cuda_wide_as */
    bool wide_alone;
    bool failed;
    sl_err failure;
};

struct sl_cuda_event {
    sl_cu_event handle;
    bool put;
};

/* For what returns no error: keeps the first. False: there is one, or while launches are recorded
 * something that speaks against the graph. */
bool sl_cuda_did(sl_cuda *c, const char *call, sl_cu_result r);
#define SL_CUDA_DO(c, call, ...) sl_cuda_did(c, #call, (c)->d->call(__VA_ARGS__))

const char *sl_cuda_kernel_name(uint32_t k);

/* Keeps a launch back, one at a time. */
void sl_cuda_hold(sl_cuda *c, const sl_cuda_held *h);
/* What is held, if it is of that kind, else NULL; it may be changed. */
sl_k_norm_args *sl_cuda_held_norm(sl_cuda *c);
sl_vec_args *sl_cuda_held_vec(sl_cuda *c);
/* It is not launched: another launch does it. */
void sl_cuda_drop_held(sl_cuda *c);

/* Makes the context that of the calling thread. */
sl_status sl_cuda_enter(const sl_cuda *c, sl_err *err) SL_MUST_CHECK;

sl_status sl_cuda_lists_create(sl_cuda *c, sl_err *err) SL_MUST_CHECK;
void sl_cuda_lists_free(sl_cuda *c); /* nothing reads them any more */

/* The program's images of kernels (image.c), each of one file; NULL past the last. */
const void *sl_cuda_image(uint32_t i);

#endif
