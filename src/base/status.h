/* Status codes and error reports.
 *
 * Every fallible function returns sl_status; the first function that detects a failure fills sl_err
 * with what went wrong, where, the offending value and the limit it broke. Callers pass both up.
 * Only engine, serve and tools print.   Thread: any. */
#ifndef SL_BASE_STATUS_H
#define SL_BASE_STATUS_H

#include <stddef.h>
#include <stdint.h>

/* code, name, grouped by what the failure takes down with it */
#define SL_STATUS_LIST(X)                                                                          \
    /* a call */                                                                                   \
    X(ARG, -1, "invalid argument")                                                                 \
    X(NOMEM, -2, "out of memory")                                                                  \
    X(LIMIT, -3, "limit exceeded")                                                                 \
    X(IO, -4, "input/output error")                                                                \
    X(FORMAT, -5, "malformed data")                                                                \
    X(UNSUPPORTED, -6, "unsupported")                                                              \
    X(NOTFOUND, -7, "not found")                                                                   \
    X(INFEASIBLE, -8, "infeasible")                                                                \
    X(AGAIN, -9, "try again")                                                                      \
    /* a request */                                                                                \
    X(CANCELLED, -20, "cancelled")                                                                 \
    X(WORKER_LOST, -21, "worker lost")                                                             \
    X(OVERLOADED, -22, "overloaded")                                                               \
    X(NOT_FINITE, -23, "values are not finite")                                                    \
    X(CRASHES, -24, "crashes workers")                                                             \
    /* a peer */                                                                                   \
    X(PROTOCOL, -30, "protocol violation")                                                         \
    X(AUTH, -31, "authentication failed")                                                          \
    X(PEER_DOWN, -32, "peer is gone")                                                              \
    X(TIMEOUT, -33, "deadline passed")                                                             \
    /* the process */                                                                              \
    X(INTERNAL, -40, "internal error")

typedef enum sl_status {
    SL_OK = 0,
#define SL_STATUS_ENUM(name, value, text) SL_ERR_##name = (value),
    SL_STATUS_LIST(SL_STATUS_ENUM)
#undef SL_STATUS_ENUM
} sl_status;

typedef struct sl_err {
    sl_status code;
    char msg[512];
} sl_err;

#define SL_MUST_CHECK             __attribute__((warn_unused_result))
#define SL_PRINTF(fmt_arg, first) __attribute__((format(printf, fmt_arg, first)))

/* Records `code` and a formatted message in err (err may be NULL) and returns code. */
sl_status sl_fail(sl_err *err, sl_status code, const char *fmt, ...) SL_PRINTF(3, 4);

/* Puts "prefix: " before the message already in err; returns err's code. */
sl_status sl_err_prefix(sl_err *err, const char *fmt, ...) SL_PRINTF(2, 3);

/* Static text for a status, never NULL. */
const char *sl_status_text(sl_status st);

#define SL_LEN(array) (sizeof(array) / sizeof((array)[0]))

/* The lesser and the greater of two numbers, in the type that both convert to. Each argument is
 * evaluated once, so these are statements inside and no constant expressions. */
#define SL_MIN(a, b) SL_PICK_(a, <, b, SL_UNIQUE_(sl_a_), SL_UNIQUE_(sl_b_))
#define SL_MAX(a, b) SL_PICK_(a, >, b, SL_UNIQUE_(sl_a_), SL_UNIQUE_(sl_b_))
#define SL_PICK_(a, op, b, x, y)                                                                   \
    ({                                                                                             \
        __typeof__(1 ? (a) : (b)) x = (a), y = (b);                                                \
        x op y ? x : y;                                                                            \
    })
/* Names of their own, so that nested calls do not shadow each other. */
#define SL_UNIQUE_(x)        SL_JOIN_(x, __COUNTER__)
#define SL_JOIN_(x, y)       SL_JOIN_AGAIN_(x, y)
#define SL_JOIN_AGAIN_(x, y) x##y

/* Our own bug, never bad input: prints the expression and aborts, in every build. */
#define SL_ASSERT(expr)                                                                            \
    do {                                                                                           \
        if (__builtin_expect(!(expr), 0)) sl_assert_failed(#expr, __FILE__, __LINE__);             \
    } while (0)

__attribute__((noreturn)) void sl_assert_failed(const char *expr, const char *file, int line);

#endif
