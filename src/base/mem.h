/* Heap allocation with overflow-checked products, and an arena for step scratch.
 * Tests make the nth allocation fail with sl_mem_fail_at(). Thread: any for sl_alloc; owner for an
 * arena. */
#ifndef SL_BASE_MEM_H
#define SL_BASE_MEM_H

#include "base/status.h"

/* Zeroed memory for n objects of `size` bytes, 64-byte aligned; NULL when n*size overflows or
 * memory is out. n*size == 0 yields a valid unique pointer. Free with sl_free. */
void *sl_alloc(size_t n, size_t size) SL_MUST_CHECK;

/* Grows p (from sl_alloc or NULL) from old_n to new_n objects, keeping contents, zeroing the rest.
 * NULL on failure, p then untouched. */
void *sl_grow(void *p, size_t old_n, size_t new_n, size_t size) SL_MUST_CHECK;

void sl_free(void *p); /* NULL-safe */

/* The arrays that an object has from its creation to its end: one block, with one test for NULL and
 * one sl_free. */
typedef struct sl_array {
    void *at; /* of the pointer to the first item; NULL ends a list */
    size_t n, each, size;
} sl_array;
#define SL_ARRAY(p, n)           SL_TABLE(p, n, 1)
#define SL_TABLE(p, rows, width) ((sl_array){&(p), (rows), (width), sizeof(*(p))})

/* Sets the pointer of each SL_ARRAY or SL_TABLE to n, or rows * width, zeroed items, 64-byte
 * aligned, and returns the block that they are in. NULL, and all pointers NULL, when a size
 * overflows or memory is out. AddressSanitizer sees what is read or written between the arrays. */
#define sl_alloc_arrays(...) sl_alloc_list((const sl_array[]){__VA_ARGS__, {0}})
void *sl_alloc_list(const sl_array *arrays) SL_MUST_CHECK;

/* Address space for n objects of `size` bytes, zero; it takes memory as it is touched, 2 MB at a
 * time where the system gives pages of that size (from 2 MB on: reading is then a tenth to a
 * quarter faster) and 4 KB elsewhere. NULL when n*size overflows or there is no room; not
 * counted by sl_mem_count. Give it back with sl_release and the same n and size. */
void *sl_reserve(size_t n, size_t size) SL_MUST_CHECK;
void sl_release(void *p, size_t n, size_t size); /* NULL-safe */

/* Copy of a NUL-terminated string or of n bytes plus NUL; NULL when memory is out. */
char *sl_strdup(const char *s) SL_MUST_CHECK;
char *sl_strndup(const char *s, size_t n) SL_MUST_CHECK;

/* From now on the nth allocation (1 = next) of this process returns NULL; 0 turns it off. */
void sl_mem_fail_at(uint64_t nth);
/* Allocations made so far in this process: lets a test assert that decode makes none. */
uint64_t sl_mem_count(void);

/* Bump allocator: one block, reset between steps, no individual frees. */
typedef struct sl_arena {
    uint8_t *base;
    size_t cap, used, peak;
} sl_arena;

sl_status sl_arena_create(size_t cap, sl_arena *out, sl_err *err) SL_MUST_CHECK;
void sl_arena_free(sl_arena *a);
/* 64-byte aligned, NOT zeroed; NULL when it does not fit. */
void *sl_arena_take(sl_arena *a, size_t n, size_t size) SL_MUST_CHECK;
static inline void sl_arena_reset(sl_arena *a) {
    a->used = 0;
}

#endif
