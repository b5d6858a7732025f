/* What memory this machine has left. Thread: any. */
#ifndef SL_BASE_MEMORY_H
#define SL_BASE_MEMORY_H

#include <stdint.h>

/* Bytes that this process could take: what the kernel says is available, pages of files that can
 * be dropped among them, or less where a control group (v2) allows less. UINT64_MAX: nobody says.
 */
uint64_t sl_memory_free(void);

#endif
