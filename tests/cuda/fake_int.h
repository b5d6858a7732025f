/* Parts of the driver library without a GPU: memory (fake_memory.c), that of others (fake_peers.c),
 * streams (fake_stream.c), graphs (fake_graph.c), the entry points (fake_driver.c). */
#ifndef SL_TESTS_CUDA_FAKE_INT_H
#define SL_TESTS_CUDA_FAKE_INT_H

#include "fake_driver.h"

#include "stage/cuda/driver.h"

#include <stdbool.h>

#define FAKE_CALL __attribute__((visibility("default")))

/* Where memory is. */
typedef enum fake_place { FAKE_DEVICE, FAKE_HOST } fake_place;

/* Numbers of variables; `otherwise` where one is not set. */
uint64_t fake_number(const char *variable, uint64_t otherwise);

sl_cu_result fake_alloc(fake_place place, size_t bytes, void **out);
sl_cu_result fake_free(fake_place place, void *p);
/* Whether [p, p + bytes) is within one allocation there. */
bool fake_holds(fake_place place, const void *p, size_t bytes);
uint64_t fake_used(fake_place place);
uint64_t fake_memory(void); /* of a GPU */
int fake_device(void);      /* of this thread's context */

/* An allocation. */
typedef struct fake_block {
    uint8_t *p;
    size_t bytes;
    int device;
    bool imported;   /* another process's */
    bool registered; /* not this library's */
    uint64_t serial;
    int fd; /* other processes may map it; 0: they may not */
} fake_block;
/* Which one this address is of. */
bool fake_find(fake_place place, const void *p, fake_block *out);
/* Memory of the process that a GPU may copy from, of whole pages, none of them registered yet. */
sl_cu_result fake_register(void *p, size_t bytes);
sl_cu_result fake_unregister(void *p);
/* From now on it lies in a file, as it is. False: it is no multiple of the driver's steps, in which
 * something else would lie, too. */
bool fake_share(void *p, int *fd);
void fake_import(const fake_block *b);
void fake_forget(void *p);

#define FAKE_PEERS_UNSUPPORTED 217
#define FAKE_NOT_SUPPORTED     801
#define FAKE_REGISTERED        712
sl_cu_result fake_can_reach(int *out, int device, int peer);
sl_cu_result fake_reach(int device, int peer);
void fake_context(int device, bool held);
sl_cu_result fake_lend(sl_cu_ipc_handle *out, void *p);
sl_cu_result fake_borrow(void **out, const sl_cu_ipc_handle *in, unsigned flags);
sl_cu_result fake_return(void *p);

/* A kernel of kernels.def. */
typedef struct fake_kernel {
    const char *name;
    void (*thunk)(const void *);
    const uint32_t *bytes;    /* of its arguments */
    _Atomic uint32_t dynamic; /* shared memory that it may have */
    _Atomic bool asked;       /* somebody asked for that */
} fake_kernel;
fake_kernel *fake_kernel_find(const char *name); /* NULL: none */
/* Whether it reaches the rows that it is to move. */
bool fake_can_run(const fake_kernel *k, const void *args, uint32_t blocks);

/* What a stream does. */
typedef enum fake_kind {
    FAKE_COPY,
    FAKE_FILL,
    FAKE_LAUNCH,
    FAKE_MARK,
    FAKE_WAIT /* for a mark of another stream */
} fake_kind;
typedef struct fake_work {
    struct fake_work *next;
    fake_kind kind;
    void *to;
    const void *from;
    size_t bytes;
    uint8_t byte;
    const fake_kernel *kernel;
    void *args;
    uint32_t grid[3], threads, dynamic;
    bool asked, early;
    struct CUevent_st *mark;
    uint64_t number;
    struct CUstream_st *other; /* of WAIT: its work `until` */
    uint64_t until;
} fake_work;

sl_cu_result fake_stream_create(sl_cu_stream *out);
sl_cu_result fake_stream_destroy(sl_cu_stream s);
/* Takes over *w's args. */
sl_cu_result fake_stream_add(sl_cu_stream s, const fake_work *w);
sl_cu_result fake_stream_wait(sl_cu_stream s);
void fake_streams_wait(void); /* all */
/* What s does from here on waits for the last mark that e is. */
sl_cu_result fake_stream_after(sl_cu_stream s, sl_cu_event e);
sl_cu_result fake_mark_create(sl_cu_event *out);
sl_cu_result fake_mark_query(sl_cu_event e);
sl_cu_result fake_mark_wait(sl_cu_event e);
sl_cu_result fake_mark_ms(sl_cu_event from, sl_cu_event to, float *out);
void fake_mark_free(sl_cu_event e);

/* What this thread may not ask for while it captures a stream; SL_CU_OK: it captures none. */
sl_cu_result fake_forbidden(void);
/* Whether the stream is captured by this thread: then *w, with its args, is the graph's. */
bool fake_captures(sl_cu_stream s, const fake_work *w, sl_cu_result *out);
bool fake_is_captured(sl_cu_stream s);
/* Nobody may ask for it until it is put by a stream. */
void fake_mark_captured(sl_cu_event e);
void fake_count(fake_counted what, uint64_t n);

/* The failure that a test has asked for: of this call, now. */
sl_cu_result fake_failure(const char *call);
uint64_t fake_seed(void);

#endif
