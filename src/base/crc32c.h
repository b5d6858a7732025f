/* CRC-32C (Castagnoli; RFC 3720, appendix B.4): all single bursts of up to 32 damaged bits are
 * found, and others but for one in 2^32. By the processor's instruction where there is one
 * (SSE4.2), else by tables; both give the same. Thread: any. */
#ifndef SL_BASE_CRC32C_H
#define SL_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `len` more bytes; crc: of those before, 0 where there are none. */
uint32_t sl_crc32c(uint32_t crc, const void *data, size_t len);
/* The same by tables, on every processor: for tests. */
uint32_t sl_crc32c_portable(uint32_t crc, const void *data, size_t len);

#endif
