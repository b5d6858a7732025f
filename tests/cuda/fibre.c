/* Switching of stacks: own code for x86-64 and AArch64, the C library's elsewhere. */
#include "fibre.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WITH_TSAN 1
#endif
#endif

#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef WITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#define WITH_UCONTEXT 1
#endif

struct fibre {
#ifdef WITH_UCONTEXT
    ucontext_t context;
#else
    void *at; /* its stack pointer while it does not run */
#endif
    void (*entry)(fibre *f);
    uint8_t *map; /* NULL: a thread's own stack */
    size_t map_bytes;
    const void *bottom; /* of the stack, lowest address */
    size_t bytes;
    void *fake; /* ASan's */
    void *tsan; /* TSan's */
};

#if defined(__x86_64__)
void fibre_swap(void **save, void *to);
void fibre_start(void);
__asm__(".pushsection .text\n"
        ".hidden fibre_swap\n"
        ".globl fibre_swap\n"
        ".type fibre_swap, @function\n"
        "fibre_swap:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fibre_swap, .-fibre_swap\n"
        ".hidden fibre_start\n"
        ".globl fibre_start\n"
        ".type fibre_start, @function\n"
        "fibre_start:\n"
        "    movq %rbx, %rdi\n"
        "    call *%r12\n"
        "    ud2\n"
        ".size fibre_start, .-fibre_start\n"
        ".popsection\n");

/* What fibre_swap finds on a stack that never ran: registers, where to return to. */
static void *first_frame(uint8_t *top, void (*entry)(void *), void *arg) {
    void **s = (void **)top - 9; /* aligned to 16 bytes once all of it is taken */
    memset(s, 0, 9 * sizeof *s);
    s[3] = (void *)(uintptr_t)entry; /* r12 */
    s[4] = arg;                      /* rbx */
    s[6] = (void *)(uintptr_t)fibre_start;
    return s;
}
#elif defined(__aarch64__)
void fibre_swap(void **save, void *to);
void fibre_start(void);
__asm__(".pushsection .text\n"
        ".hidden fibre_swap\n"
        ".globl fibre_swap\n"
        ".type fibre_swap, %function\n"
        "fibre_swap:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size fibre_swap, .-fibre_swap\n"
        ".hidden fibre_start\n"
        ".globl fibre_start\n"
        ".type fibre_start, %function\n"
        "fibre_start:\n"
        "    mov x0, x20\n"
        "    blr x19\n"
        "    brk #0\n"
        ".size fibre_start, .-fibre_start\n"
        ".popsection\n");

static void *first_frame(uint8_t *top, void (*entry)(void *), void *arg) {
    void **s = (void **)top - 20;
    memset(s, 0, 20 * sizeof *s);
    s[0] = (void *)(uintptr_t)entry; /* x19 */
    s[1] = arg;                      /* x20 */
    s[11] = (void *)(uintptr_t)fibre_start;
    return s;
}
#endif

/* The first thing on a new stack. */
static void begin(void *arg) {
    fibre *f = arg;
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    f->entry(f);
    abort();
}

#ifdef WITH_UCONTEXT
static void begin_halves(unsigned high, unsigned low) { /* makecontext passes ints */
    begin((void *)(uintptr_t)((uint64_t)high << 32 | low));
}
#endif

static fibre *fibre_new(void) {
    fibre *f = calloc(1, sizeof *f);
    if (!f) {
        fprintf(stderr, "no memory for a fibre\n");
        abort();
    }
    return f;
}

fibre *fibre_of_thread(void) {
    fibre *f = fibre_new();
    pthread_attr_t attr;
    void *bottom;
    if (pthread_getattr_np(pthread_self(), &attr) == 0) {
        if (pthread_attr_getstack(&attr, &bottom, &f->bytes) == 0) f->bottom = bottom;
        pthread_attr_destroy(&attr);
    }
#ifdef WITH_TSAN
    f->tsan = __tsan_get_current_fiber();
#endif
    return f;
}

fibre *fibre_create(size_t stack_bytes, void (*entry)(fibre *f)) {
    fibre *f = fibre_new();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    f->entry = entry;
    f->bytes = (stack_bytes + page - 1) / page * page;
    f->map_bytes = f->bytes + page; /* below it nothing may be touched */
    void *map = mmap(NULL, f->map_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED || mprotect(map, page, PROT_NONE) != 0) {
        fprintf(stderr, "no memory for a fibre's stack\n");
        abort();
    }
    f->map = map;
    f->bottom = f->map + page;
#ifdef WITH_UCONTEXT
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->map + page;
    f->context.uc_stack.ss_size = f->bytes;
    makecontext(&f->context, (void (*)(void))begin_halves, 2,
                (unsigned)((uint64_t)(uintptr_t)f >> 32), (unsigned)(uintptr_t)f);
#else
    f->at = first_frame(f->map + f->map_bytes, begin, f);
#endif
#ifdef WITH_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

void fibre_free(fibre *f) {
    if (!f) return;
#ifdef WITH_TSAN
    if (f->map) __tsan_destroy_fiber(f->tsan);
#endif
    if (f->map) munmap(f->map, f->map_bytes);
    free(f);
}

const void *fibre_stack(const fibre *f, size_t *bytes) {
    *bytes = f->bytes;
    return f->bottom;
}

void fibre_switch(fibre *from, fibre *to) {
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
#ifdef WITH_TSAN
    __tsan_switch_to_fiber(to->tsan, 0);
#endif
#ifdef WITH_UCONTEXT
    swapcontext(&from->context, &to->context);
#else
    fibre_swap(&from->at, to->at);
#endif
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}
