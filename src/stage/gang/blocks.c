/* Blocks of memory that all ranks of a gang have, seen from rank 0. */
#include "stage/gang/blocks.h"

#include "base/memfd.h"

#define LEAST_AREA  ((size_t)1 << 16)
#define LARGEST_LOG 40u /* of an area: address space is no more */

/* A block of zeroes, mapped by all ranks. */
static sl_status add_block(gang_blocks *b, size_t bytes, uint32_t *out, sl_err *err) {
    uint32_t id = 0;
    int fd;
    while (id < GANG_MAX_BLOCKS && b->memory.block[id].at) id++;
    if (id == GANG_MAX_BLOCKS)
        return sl_fail(err, SL_ERR_LIMIT, "a gang's %u blocks of memory are taken",
                       GANG_MAX_BLOCKS);
    sl_status st = sl_memfd_create(bytes, &fd, err);
    if (st != SL_OK) return st;
    b->delivered++;
    if (b->deliver) b->deliver(b, fd);
    if ((st = gang_memory_map(&b->memory, id, fd, bytes, err)) != SL_OK) return st;
    const gang_job j = {.kind = GANG_MAP, .map = {id, b->delivered, bytes}};
    if ((st = gang_do(b->of, &j, err)) != SL_OK) gang_memory_unmap(&b->memory, id);
    *out = id;
    return st;
}

static void drop_block(gang_blocks *b, uint32_t id) {
    const gang_job j = {.kind = GANG_UNMAP, .map = {.id = id}};
    sl_err err;
    gang_memory_unmap(&b->memory, id);
    if (gang_do(b->of, &j, &err) != SL_OK) b->of->own.lost(&b->of->own, &err);
}

sl_status gang_blocks_take(sl_device *d, size_t bytes, sl_mem *out, sl_err *err) {
    gang_blocks *b = ((gang *)d)->others;
    uint32_t id;
    sl_status st = add_block(b, bytes, &id, err);
    if (st == SL_OK) *out = sl_mem_host(b->memory.block[id].at, bytes);
    return st;
}

void gang_blocks_give(sl_device *d, sl_mem m) {
    gang_blocks *b = ((gang *)d)->others;
    for (uint32_t i = 0; i < GANG_MAX_BLOCKS; i++) {
        if (b->memory.block[i].at != sl_mem_ptr(m)) continue;
        drop_block(b, i);
        return;
    }
    SL_ASSERT(!"memory that is not the device's");
}

sl_status gang_blocks_reserve(gang_blocks *b, size_t bytes, sl_err *err) {
    gang_board *board = b->of->own.board;
    const uint32_t old = board->area;
    size_t more = LEAST_AREA;
    if (old < GANG_MAX_BLOCKS && b->memory.block[old].bytes >= bytes) return SL_OK;
    while (more < bytes && more < (size_t)1 << LARGEST_LOG) more *= 2;
    if (more < bytes)
        return sl_fail(err, SL_ERR_LIMIT, "a call of %zu bytes, a gang's limit is %zu", bytes,
                       more);
    uint32_t id;
    sl_status st = add_block(b, more, &id, err);
    if (st != SL_OK) return st;
    board->area = id;
    if (old < GANG_MAX_BLOCKS) drop_block(b, old);
    return SL_OK;
}

sl_status gang_blocks_show(gang_blocks *b, const gang_job *j, gang_job *own, sl_err *err) {
    gang_board *board = b->of->own.board;
    *own = *j;
    if (!gang_job_has_lists(j->kind)) {
        board->job = *j;
        return SL_OK;
    }
    const sl_model_spec *spec = b->of->base.spec;
    sl_status st = gang_blocks_reserve(b, gang_job_bytes(j, spec), err);
    if (st != SL_OK) return st;
    gang_job_pack(&b->memory, board->area, j, spec, &board->job);
    return SL_OK;
}
