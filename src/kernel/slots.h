/* The slots of a table of kernels by number and by name: what is measured, chosen and mixed.
 * Thread: any. */
#ifndef SL_KERNEL_SLOTS_H
#define SL_KERNEL_SLOTS_H

#include "kernel/kernel_int.h"

#define SL_TABLES_MAX 7u /* of one processor architecture */

/* What a kernel has a slot for each of. */
typedef enum sl_per {
    SL_PER_ONE,
    SL_PER_AMOUNT,
    SL_PER_KIND,
    SL_PER_TYPE,
    SL_PER_PRODUCT, /* type and amount */
    SL_PER_INT8,    /* the same, with one amount more */
} sl_per;

typedef enum sl_kernel_id {
#define SL_KERNEL(name, per, tol, what) SL_KERNEL_##name,
#include "kernel/kernels.def"
#undef SL_KERNEL
    SL_KERNEL_COUNT
} sl_kernel_id;

typedef void (*sl_slot_fn)(void);
#define SL_FIRST_SLOT offsetof(struct sl_kernels, gemm_tile)
enum { SL_SLOTS = (sizeof(struct sl_kernels) - SL_FIRST_SLOT) / sizeof(sl_slot_fn) };

/* Slot i; amount, kind and dtype mean something where its kernel has them. */
typedef struct sl_slot {
    char name[40]; /* "swiglu", "attn_page.few", "int8_tile.q4_k.many" */
    sl_kernel_id kernel;
    sl_per per;
    sl_amount amount;
    sl_act_kind kind;
    sl_dtype dtype;
} sl_slot;

/* False: nothing calls that slot (there is no integer product of the type). i < SL_SLOTS. */
bool sl_slot_at(size_t i, sl_slot *out);

/* Number of the table with that name, SIZE_MAX: none. len: bytes of the name. */
size_t sl_table_find(const char *name, size_t len);
/* Whether table i has a form of its own of a slot. */
bool sl_table_has(size_t i, size_t slot);

/* Fills out's slots, each from the table whose number is given; every table is one that runs here.
 */
void sl_kernels_mix(const uint8_t from[SL_SLOTS], sl_kernels *out);

/* The mix in the words of sl_kernels_select, as short as it gets. */
#define SL_KERNELS_SPEC_MAX 4096u
void sl_kernels_spec(const uint8_t from[SL_SLOTS], char out[SL_KERNELS_SPEC_MAX]);

#endif
