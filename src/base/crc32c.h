/* CRC-32C (Castagnoli, as iSCSI and ext4 use it) of bytes. Thread: any. */
#ifndef SL_BASE_CRC32C_H
#define SL_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of n more bytes behind those of `crc`; begins with 0. */
uint32_t sl_crc32c(uint32_t crc, const void *data, size_t n);

#endif
