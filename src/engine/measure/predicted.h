/* What was predicted of the schedule that runs. */
#ifndef SL_ENGINE_PREDICTED_H
#define SL_ENGINE_PREDICTED_H

#include <stdint.h>

/* What --schedule auto said of a block with experts, at two points: all requests decode, and all
 * rows are a prompt's. */
typedef struct sl_predicted {
    double block_s[2]; /* period; 0: nothing was predicted */
    uint32_t rows[2];  /* for so many rows of one attention worker, in all its lanes */
} sl_predicted;

#endif
