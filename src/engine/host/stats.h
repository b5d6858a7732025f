/* What workers count, and how it is named: at the worker, on the wire, at the coordinator. */
#ifndef SL_ENGINE_STATS_H
#define SL_ENGINE_STATS_H

#include <stdint.h>

/* Counters a worker reports in SL_MSG_STATS, u64 little-endian in this order. No counters but
 * states are memory_free and machine: bytes that its machine has left, and which one that is
 * (workers of one say the same); device_free: bytes of experts that find room on its device beside
 * what is there (sl_device_room), UINT64_MAX where that is its machine's memory; prompt_rows,
 * prompt_rows_done: rows of the prompts that are under way; and again_out: rows that were asked of
 * two and have not come (sched/twice.h). tokens_forced: of tokens, those that the shape of an
 * answer alone decided. guesses: rows of what requests might say next (sched/draft.h), and those of
 * them that were right. sent_bytes counts a message as if it went whole; rail_bytes: of these, what
 * ranks other than the first have sent (schedule hybrid). kv_loaded, kv_saved, kv_damaged: KV pages
 * that came from the disk, that went there, and that were not used as they had changed there.
 * choices: how often something of the schedule was chosen anew (sched/resolve.h). put_messages: of
 * those sent, by windows (net/window.h). device_bytes: of rows that went from device to device
 * (engine/host/far.h), not in sent_bytes. expert_us: how long its device had tasks of experts, from
 * when they were given to it until it was through. ranks_us: in calls that the
 * ranks of its device make together, since they were open: of execute_us, but for those of experts
 * and pages that move. Not of ranks on machines. */
#define SL_WORKER_COUNTERS(X)                                                                      \
    X(attention_rows)                                                                              \
    X(expert_rows)                                                                                 \
    X(rounds)                                                                                      \
    X(tokens)                                                                                      \
    X(sent_bytes)                                                                                  \
    X(received_bytes)                                                                              \
    X(sent_messages)                                                                               \
    X(received_messages)                                                                           \
    X(execute_us)                                                                                  \
    X(pack_us)                                                                                     \
    X(send_us)                                                                                     \
    X(wait_us)                                                                                     \
    X(poll_us)                                                                                     \
    X(sleep_us)                                                                                    \
    X(wall_us)                                                                                     \
    X(cpu_us)                                                                                      \
    X(rows_created)                                                                                \
    X(rows_merged)                                                                                 \
    X(rows_cancelled)                                                                              \
    X(rows_lost)                                                                                   \
    X(rows_stale)                                                                                  \
    X(memory_free)                                                                                 \
    X(machine)                                                                                     \
    X(rows_reissued)                                                                               \
    X(rows_late)                                                                                   \
    X(steps_given_up)                                                                              \
    X(prompt_rows)                                                                                 \
    X(prompt_rows_done)                                                                            \
    X(again_asked)                                                                                 \
    X(again_counted)                                                                               \
    X(again_lost)                                                                                  \
    X(again_out)                                                                                   \
    X(tokens_forced)                                                                               \
    X(guesses)                                                                                     \
    X(guesses_right)                                                                               \
    X(striped_messages)                                                                            \
    X(rail_bytes)                                                                                  \
    X(kv_loaded)                                                                                   \
    X(kv_saved)                                                                                    \
    X(kv_damaged)                                                                                  \
    X(choices)                                                                                     \
    X(put_messages)                                                                                \
    X(expert_us)                                                                                   \
    X(device_free)                                                                                 \
    X(ranks_us)                                                                                    \
    X(device_bytes)

/* Rows that one expert got in one call: 1, 2, 3-4, 5-8, ..., more than 32768. */
#define SL_BATCH_BUCKETS 17u

/* Of one block: calls of its experts, (row, expert) pairs, how long the first rows of a call had
 * waited, kernel time of the experts and of the attention side; micro-batches away at the experts
 * and for how long. */
#define SL_LAYER_COUNTERS(X)                                                                       \
    X(tasks)                                                                                       \
    X(rows)                                                                                        \
    X(queued_us)                                                                                   \
    X(expert_ns)                                                                                   \
    X(attention_ns)                                                                                \
    X(flights)                                                                                     \
    X(away_ns)
typedef struct sl_layer_stats {
#define SL_LAYER_FIELD(name) uint64_t name;
    SL_LAYER_COUNTERS(SL_LAYER_FIELD)
#undef SL_LAYER_FIELD
} sl_layer_stats;
/* Of one expert of one block. waits: no counter but a state, rows that lie in its queue (schedule
 * aep) when that is told. */
typedef struct sl_expert_stats {
    uint64_t rows, calls;
    uint32_t waits;
} sl_expert_stats;
#define SL_EXPERT_STATS_BYTES 20u /* in SL_MSG_STATS */

#endif
