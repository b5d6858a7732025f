/* Which table's form of each kernel is taken: the one that was measured to be the fastest on this
 * CPU. All forms give the same bits, so what is measured, kept or damaged changes speed alone.
 * Thread: any. */
#ifndef SL_KERNEL_CHOICE_H
#define SL_KERNEL_CHOICE_H

#include "base/span.h"
#include "kernel/slots.h"

/* Of each slot the time of one call by each table, in ns; 0: not measured. */
typedef struct sl_kernel_times {
    uint32_t ns[SL_SLOTS][SL_TABLES_MAX];
} sl_kernel_times;

/* Measures every slot of every table that can run here beside the base, on this thread: shortest
 * of calls that take turns, some 200 ms in all. Slots that `limit_ns` leaves no time for stay 0,
 * and so the result is false; it also is without memory. */
bool sl_kernels_measure(uint64_t limit_ns, sl_kernel_times *out);

/* The table of each slot. The base's form stays unless another takes less than 90 % of its time;
 * what was not measured, or cannot run here, is never taken. */
void sl_kernels_pick(const sl_kernel_times *t, uint8_t from[SL_SLOTS]);

/* Times as text: `key` (a line that names CPU and program), then a line a slot. Reading takes any
 * bytes; false where they are not times for that key. */
#define SL_KERNEL_TIMES_BYTES 32768u
size_t sl_kernel_times_write(const sl_kernel_times *t, const char *key,
                             char out[SL_KERNEL_TIMES_BYTES]);
bool sl_kernel_times_read(sl_span text, const char *key, sl_kernel_times *out);

/* What times hold for: version of the program, revision and compiler of its kernels, CPU. */
void sl_kernels_key(char *out, size_t cap);

typedef struct sl_kernel_choice {
    char
        spec[SL_KERNELS_SPEC_MAX]; /* for sl_kernels_select, here or in a process of this machine */
    sl_kernel_times times;
    enum {
        SL_CHOICE_ALONE,    /* one table runs here: there was nothing to measure */
        SL_CHOICE_MEASURED, /* just now */
        SL_CHOICE_KEPT,     /* read from `file` */
    } from;
    uint64_t took_ns;  /* measuring */
    char file[4096];   /* where times are kept; "": nowhere */
    char trouble[160]; /* why they were not kept; "": they were, or nobody wanted it */
} sl_kernel_choice;

/* The choice for this CPU. `folder` (made where it is missing) keeps times from one start to the
 * next; NULL or "": they are measured now. `again`: measured now in any case. Cannot fail: a folder
 * that cannot be used costs the measurement. */
void sl_kernels_choose(const char *folder, bool again, sl_kernel_choice *out);

/* The same with the user's cache folder, for programs without options for it: made by the first
 * call, the same spec from then on. Thread: any. */
const char *sl_kernels_chosen(void);

#endif
