/* Whether this build has a sanitizer that makes it several times as slow: tests whose work is a
 * list of like cases take fewer of them then. What decides is in each case; all of them run in the
 * release build. */
#ifndef SL_TESTS_SANITIZED_H
#define SL_TESTS_SANITIZED_H

#if defined(__SANITIZE_THREAD__)
#define SL_SLOW_BUILD 2 /* times five to fifteen */
#elif defined(__SANITIZE_ADDRESS__)
#define SL_SLOW_BUILD 1 /* times two to five */
#else
#define SL_SLOW_BUILD 0
#endif

#endif
