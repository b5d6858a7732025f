/* Valid UTF-8. Thread: any. */
#ifndef SL_BASE_UTF8_H
#define SL_BASE_UTF8_H

#include <stddef.h>

/* Length of the valid UTF-8 sequence at s[0..n), 0 when there is none (RFC 3629). */
size_t sl_utf8_sequence(const char *s, size_t n);

#endif
