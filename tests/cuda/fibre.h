/* Fibres: stacks that one thread of the system runs on in turn. A switch saves the registers that a
 * call keeps and takes those of the other stack, a few nanoseconds; sanitizers are told of it.
 * Thread: the one that created them. */
#ifndef SL_TESTS_CUDA_FIBRE_H
#define SL_TESTS_CUDA_FIBRE_H

#include <stddef.h>

typedef struct fibre fibre;

/* The stack that the calling thread is on. */
fibre *fibre_of_thread(void);
/* One that runs entry(itself), which never returns, at its first turn. Ends the process if there is
 * no memory. */
fibre *fibre_create(size_t stack_bytes, void (*entry)(fibre *f));
/* NULL-safe; not the one that runs. */
void fibre_free(fibre *f);
/* Its stack's lowest address and size. */
const void *fibre_stack(const fibre *f, size_t *bytes);
/* From `from`, the one that runs, to `to`; returns when something switches back. */
void fibre_switch(fibre *from, fibre *to);

#endif
