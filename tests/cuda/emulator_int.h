/* Meetings of a warp's lanes, and who watches what threads do, for the files of the emulator. */
#ifndef SL_TESTS_CUDA_EMULATOR_INT_H
#define SL_TESTS_CUDA_EMULATOR_INT_H

#include "emulator.h"

#include "stage/cuda/kernels/device.h"

/* Every lane of `mask` brings `mine`; when all have come, all(lanes), where lanes[i] is lane i's,
 * runs once, and each goes on. `what` is one text for each kind of meeting. */
void emu_meet(const char *what, uint32_t mask, void *mine,
              void (*all)(void *const lanes[SL_WARP], uint32_t mask));
/* Who watches the order of things (emulator_races.c); NULL: nobody. What a thread did before it
 * releases a key comes before what another does after it has acquired that. */
typedef struct emu_watcher {
    void (*begin_launch)(void);
    void *(*begin_block)(uint32_t threads); /* of the block that begins; end_block frees it */
    void (*end_block)(void *watched);
    void (*forget)(const void *p, size_t bytes); /* nobody was here */
    void (*release)(const void *key);            /* by the thread that runs */
    void (*acquire)(const void *key, void *watched, uint32_t thread);
    void (*drop)(const void *key, void *watched);
    void (*touch)(const void *p, size_t bytes, bool writes); /* by the thread that runs */
} emu_watcher;
extern const emu_watcher *emu_watch;

/* For watchers: the thread that runs. */
typedef struct emu_who {
    void *watched;  /* of its block */
    uint64_t block; /* which one, of all that ever began; from 1 on */
    uint32_t thread;
    const void *stack; /* its own, where nobody else looks */
    size_t stack_bytes;
} emu_who;
const emu_who *emu_who_runs(void); /* NULL: none does */
/* Name of the shared array of that thread's block, and the offset in it; NULL: not shared memory.
 */
const char *emu_shared_name(const void *p, size_t *offset);

/* Whether blocks of this launch have met in clusters. */
bool emu_is_clustered(void);

/* Whether [p, p + bytes) lies in shared memory of the block. */
bool emu_is_shared(const void *p, size_t bytes);

#endif
