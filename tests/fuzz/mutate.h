/* Between a fuzz target and its mutator. libFuzzer programs only. */
#ifndef SL_FUZZ_MUTATE_H
#define SL_FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *data, size_t size, const uint8_t *other,
                                 size_t other_size, uint8_t *out, size_t max, unsigned seed);

/* Of a target with mutate_json.c, where it says something else than nothing: bytes before its JSON,
 * and what makes lengths fit again; returns the size. */
extern const size_t fuzz_prefix;
size_t fuzz_repair(uint8_t *data, size_t size);

#endif
