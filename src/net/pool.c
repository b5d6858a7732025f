/* Blocks of memory by size class, kept for the next message. */
#include "base/mem.h"
#include "net/net_int.h"

#define SMALLEST ((size_t)256)
#define DATA_AT  ((sizeof(sl_block) + 63) / 64 * 64)

static uint32_t class_of(size_t len) {
    uint32_t c = 0;
    while (c < SL_POOL_CLASSES && SMALLEST << c < len) c++;
    return c;
}

sl_block *sl_block_take(sl_block_pool *p, size_t len) {
    uint32_t c = class_of(len);
    if (c >= SL_POOL_CLASSES) return NULL;
    sl_block *b = p->free[c];
    if (b) {
        p->free[c] = b->next;
        p->free_bytes -= SMALLEST << c;
    } else {
        b = sl_alloc(1, DATA_AT + (SMALLEST << c) + SL_CRYPT_TAG_BYTES); /* when it is encrypted */
        if (!b) return NULL;
        b->buf.data = (uint8_t *)b + DATA_AT;
        b->buf.cap = SMALLEST << c;
        b->size_class = c;
    }
    b->buf.len = len;
    b->buf.spread = (sl_spread_name){0};
    b->buf.far = (sl_far_name){0};
    b->next = NULL;
    b->link = NULL;
    b->event = 0;
    b->quiet = false;
    return b;
}

void sl_block_give(sl_block_pool *p, sl_block *b) {
    if (!b) return;
    size_t bytes = SMALLEST << b->size_class;
    if (p->free_bytes + bytes > p->max_free_bytes) {
        sl_free(b);
        return;
    }
    b->next = p->free[b->size_class];
    p->free[b->size_class] = b;
    p->free_bytes += bytes;
}

void sl_block_give_all(sl_block_pool *p, sl_block_list *l) {
    for (sl_block *b; (b = sl_block_pop(l)) != NULL;) sl_block_give(p, b);
}

void sl_block_pool_drain(sl_block_pool *p) {
    for (uint32_t c = 0; c < SL_POOL_CLASSES; c++)
        while (p->free[c]) {
            sl_block *b = p->free[c];
            p->free[c] = b->next;
            sl_free(b);
        }
    p->free_bytes = 0;
}
