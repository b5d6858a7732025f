/* Heads and tails of the rings in a shared area, as both ends see them. */
#include "net/shm/shm_int.h"

/* Every access to a shared counter is sequentially consistent: that orders the bytes before their
 * counter (release and acquire), and a counter before the look at the other side's sleeper word. */

void sl_shm_pipes_open(shm_area *area, uint32_t side, shm_pipe *tx, shm_pipe *rx) {
    uint8_t *data = (uint8_t *)area + SL_SHM_DATA_AT;
    *tx = (shm_pipe){.ring = &area->ring[side], .data = data + side * SL_SHM_RING_BYTES};
    *rx = (shm_pipe){.ring = &area->ring[!side], .data = data + !side * SL_SHM_RING_BYTES};
}

bool sl_shm_tx_look(shm_pipe *p) {
    uint64_t head = atomic_load(&p->ring->head);
    if (head - p->seen > p->own - p->seen) return false; /* back, or past what was written */
    p->seen = head;
    return true;
}

bool sl_shm_rx_look(shm_pipe *p) {
    uint64_t tail = atomic_load(&p->ring->tail);
    uint64_t there = tail - p->own;
    if (there > SL_SHM_RING_BYTES || there < p->seen - p->own) return false;
    p->seen = tail;
    return true;
}

bool sl_shm_tx_moved(const shm_pipe *p) {
    return atomic_load(&p->ring->head) != p->seen;
}

bool sl_shm_rx_moved(const shm_pipe *p) {
    return atomic_load(&p->ring->tail) != p->seen;
}

void sl_shm_tx_put(shm_pipe *p, const void *src, size_t n) {
    size_t at = (size_t)(p->own & (SL_SHM_RING_BYTES - 1));
    size_t first = SL_MIN(n, (size_t)SL_SHM_RING_BYTES - at);
    if (src) {
        memcpy(p->data + at, src, first);
        if (n > first) memcpy(p->data, (const uint8_t *)src + first, n - first);
    }
    p->own += n;
}

void sl_shm_rx_take(shm_pipe *p, void *out, size_t n) {
    size_t at = (size_t)(p->own & (SL_SHM_RING_BYTES - 1));
    size_t first = SL_MIN(n, (size_t)SL_SHM_RING_BYTES - at);
    if (out) {
        memcpy(out, p->data + at, first);
        if (n > first) memcpy((uint8_t *)out + first, p->data, n - first);
    }
    p->own += n;
}

void sl_shm_tx_publish(shm_pipe *p) {
    p->published = p->own;
    atomic_store(&p->ring->tail, p->own);
}

void sl_shm_rx_publish(shm_pipe *p) {
    p->published = p->own;
    atomic_store(&p->ring->head, p->own);
}
