/* Pages of this process moved to one memory node: those of ranges that are handed in, and what
 * became of them. Nothing here fails: what cannot be moved stays where it is, and is counted.
 *
 * The kernel moves a page, of a file too, where this process's is the only mapping of it
 * (move_pages(2)). Containers often forbid the call. Thread: any, several at once; a batch is its
 * thread's. */
#ifndef SL_BASE_NUMA_H
#define SL_BASE_NUMA_H

#include "base/status.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SL_NUMA_BATCH 1024u /* pages: one call for many costs less, and ends soon enough */

/* As move_pages(2) of this process with MPOL_MF_MOVE: node NULL only asks. */
typedef long (*sl_numa_call)(unsigned long n, void *const *page, const int *node, int *status);

/* Bytes of the ranges, not of their pages: a page that two of them share counts for each with what
 * it has of it. */
typedef struct sl_numa_told {
    uint64_t there;  /* on the node; */
    uint64_t moved;  /* so many of them were elsewhere before */
    uint64_t others; /* elsewhere: somebody else has them mapped, too */
    uint64_t left;   /* elsewhere for another reason, the last of them: */
    uint64_t absent; /* not in this process's memory: they come where they are first used */
    int why;         /* an errno; ETIME: until_ns was over */
} sl_numa_told;

typedef struct sl_numa {
    int node;          /* as the kernel counts */
    uint64_t until_ns; /* CLOCK_MONOTONIC: nothing is moved later */
    sl_numa_call call; /* NULL: the kernel's */
    _Atomic uint64_t there, moved, others, left, absent;
    atomic_int why;
    atomic_int refused; /* errno of a call that will never be answered; 0: none was */
} sl_numa;

typedef struct sl_numa_batch {
    sl_numa *of;
    size_t page_bytes;
    size_t n;
    void *page[SL_NUMA_BATCH];
    uint32_t bytes[SL_NUMA_BATCH]; /* of a range, in this page */
} sl_numa_batch;

/* of NULL: what is added is ignored. */
void sl_numa_begin(sl_numa *of, sl_numa_batch *out);
/* The pages of these bytes, with the next flush; full batches go by themselves. */
void sl_numa_add(sl_numa_batch *b, const void *at, size_t bytes);
void sl_numa_flush(sl_numa_batch *b);

/* So far. Exact once no batch is open. */
sl_numa_told sl_numa_tell(const sl_numa *n);
/* All ranges are handed in once more: what was moved is remembered, where pages are is not. */
void sl_numa_again(sl_numa *n);

#endif
