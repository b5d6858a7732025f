/* For tests of contexts of GPUs over the driver library without one: what the library does when
 * asked (fake_driver.h), and what contexts say. */
#ifndef SL_TESTS_CUDA_DRIVER_TEST_H
#define SL_TESTS_CUDA_DRIVER_TEST_H

#include "cuda/fake_driver.h"
#include "stage/cuda/cuda_int.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static sluice_fake_cuda_seed_fn *set_seed;
static sluice_fake_cuda_fail_fn *fail_at;
static sluice_fake_cuda_used_fn *used;

static inline void look_up(void *library, const char *name, void *out) {
    void *p = dlsym(library, name);
    assert_non_null(p);
    memcpy(out, &p, sizeof p);
}

/* NULL, or why the library cannot be asked. */
static inline const char *find_driver(void) {
    void *library = dlopen(SL_FAKE_CUDA, RTLD_NOW);
    if (!library) return dlerror();
    look_up(library, "sluice_fake_cuda_seed", &set_seed);
    look_up(library, "sluice_fake_cuda_fail", &fail_at);
    look_up(library, "sluice_fake_cuda_used", &used);
    return NULL;
}

static inline void is_well(const sl_cuda *c) {
    sl_err err = {0};
    if (sl_cuda_failed(c, &err) != SL_OK) fail_msg("%s", err.msg);
}

static inline void says(sl_status st, sl_status code, const sl_err *err, const char *why) {
    assert_int_equal(st, code);
    if (!strstr(err->msg, why)) fail_msg("'%s' in: %s", why, err->msg);
}

#endif
