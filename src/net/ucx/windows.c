/* Payloads by memory that UCX maps into both processes: a window for what the peer sends, the
 * peer's for what we send.
 *
 * A put into mapped memory is a copy and a store (ucp_rkey_ptr), so UCX's own puts
 * (UCP_FEATURE_RMA) are not asked for. Where it can only play them, over TCP, they would be a
 * danger: UCX 1.13 then writes wherever any peer says, and aborts the receiver of a put whose
 * sender has just died. */
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"
#include "net/ucx/ucx_int.h"

/* Shorter payloads go with their header, which costs as much. */
#define LEAST 1024u
/* UCX unpacks a key without being told its length. It has a byte for each length in it, and those
 * of all kinds of memory that there are: behind what came lie as many zeros. */
#define KEY_ROOM (SL_WINDOW_MAX_KEY_BYTES + 64u * 256u)

_Static_assert(offsetof(sl_block, note) == offsetof(sl_block, header) + SL_WIRE_HEADER_BYTES,
               "header and note leave as one");

/* ---- opening and closing ---- */

static sl_status map_memory(ucx_transport *t, ucx_window_in *w, sl_err *err) {
    const size_t bytes = sl_window_bytes(&w->in.shape);
    const ucp_mem_map_params_t p = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                  UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                    .length = bytes,
                                    .flags = UCP_MEM_MAP_ALLOCATE};
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucs_status_t st = ucp_mem_map(t->context, &p, &w->memory);
    if (st != UCS_OK)
        return sl_fail(err, SL_ERR_NOMEM, "a window of %zu bytes: %s", bytes,
                       ucs_status_string(st));
    st = ucp_mem_query(w->memory, &attr);
    if (st != UCS_OK || (uintptr_t)attr.address % SL_WINDOW_LINE) {
        (void)ucp_mem_unmap(t->context, w->memory);
        return sl_fail(err, SL_ERR_INTERNAL, "the memory of a window: %s", ucs_status_string(st));
    }
    w->in.memory = attr.address;
    sl_window_in_open(&w->in);
    return SL_OK;
}

static sl_status pack_key(ucx_transport *t, const ucx_window_in *w, sl_window_offer *offer,
                          uint8_t *key, sl_err *err) {
    void *packed = NULL;
    size_t bytes = 0;
    ucs_status_t st = ucp_rkey_pack(t->context, w->memory, &packed, &bytes);
    if (st != UCS_OK)
        return sl_fail(err, SL_ERR_INTERNAL, "the key of a window: %s", ucs_status_string(st));
    const bool fits = bytes <= SL_WINDOW_MAX_KEY_BYTES;
    if (fits) memcpy(key, packed, bytes);
    offer->key = (sl_span){key, bytes};
    ucp_rkey_buffer_release(packed);
    return fits ? SL_OK : sl_fail(err, SL_ERR_LIMIT, "the key of a window has %zu bytes", bytes);
}

sl_status sl_ucx_open_window(sl_transport *base, sl_conn *c, sl_window_offer *offer, uint8_t *key,
                             sl_err *err) {
    ucx_transport *t = (ucx_transport *)base;
    ucx_link *l = c->link;
    SL_ASSERT(!l->in);
    if (c->place == SL_PEER_ELSEWHERE)
        return sl_fail(err, SL_ERR_AGAIN, "a window for another machine");
    ucx_window_in *w = sl_alloc(1, sizeof *w);
    if (!w) return sl_fail(err, SL_ERR_NOMEM, "a window");
    offer->shape.first = 1 + randombytes_uniform(UINT32_MAX / 2);
    w->in.shape = offer->shape;
    sl_status st = map_memory(t, w, err);
    if (st != SL_OK) {
        sl_free(w);
        return st;
    }
    offer->at = (uint64_t)(uintptr_t)w->in.memory;
    st = pack_key(t, w, offer, key, err);
    if (st == SL_OK) {
        l->in = w;
        return SL_OK;
    }
    (void)ucp_mem_unmap(t->context, w->memory);
    sl_free(w);
    return st;
}

/* A link whose loss is noticed may have no lanes of memory, and its endpoint then maps none; one
 * to ourselves does. */
static ucs_status_t open_mapper(ucx_transport *t) {
    ucp_address_t *own = NULL;
    size_t bytes;
    if (t->mapper) return UCS_OK;
    ucs_status_t st = ucp_worker_get_address(t->worker, &own, &bytes);
    if (st != UCS_OK) return st;
    const ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = own};
    st = ucp_ep_create(t->worker, &p, &t->mapper);
    ucp_worker_release_address(t->worker, own);
    return st;
}

void sl_ucx_mapper_close(ucx_transport *t) {
    const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                       .flags = UCP_EP_CLOSE_FLAG_FORCE};
    if (!t->mapper) return;
    ucs_status_ptr_t p = ucp_ep_close_nbx(t->mapper, &param);
    if (UCS_PTR_IS_PTR(p)) ucp_request_free(p);
    t->mapper = NULL;
}

/* Whether all of it lies in one mapping that this process shares and may write: UCX takes the
 * peer's word for what is how long. */
static bool is_shared(const void *memory, size_t bytes) {
    const uintptr_t at = (uintptr_t)memory;
    char line[512], may[8];
    uintptr_t begin, end;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps))
        found = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &begin, &end, may) == 3 &&
                at >= begin && at < end && bytes <= end - at && may[1] == 'w' && may[3] == 's';
    if (maps) fclose(maps);
    return found;
}

/* Maps the peer's memory, or leaves it NULL: UCX may not reach it, or reach something else, as
 * where the two ends name memory apart (containers). */
static ucs_status_t map_peer(ucx_link *l, const sl_window_offer *offer, uint8_t *key,
                             ucx_window_out *w) {
    void *memory = NULL;
    memcpy(key, offer->key.data, offer->key.len);
    w->out.shape = offer->shape;
    ucs_status_t st = open_mapper(l->t);
    if (st == UCS_OK) st = ucp_ep_rkey_unpack(l->t->mapper, key, &w->key);
    if (st != UCS_OK) return st;
    st = ucp_rkey_ptr(w->key, offer->at, &memory);
    w->out.memory = memory;
    if (st == UCS_OK && is_shared(memory, sl_window_bytes(&offer->shape)) &&
        sl_window_out_is_it(&w->out))
        return UCS_OK;
    ucp_rkey_destroy(w->key);
    w->key = NULL;
    w->out.memory = NULL;
    return st == UCS_OK ? UCS_ERR_INVALID_ADDR : st;
}

sl_status sl_ucx_use_window(sl_transport *base, sl_conn *c, const sl_window_offer *offer,
                            sl_err *err) {
    ucx_link *l = c->link;
    if (!base->net->windows) return SL_OK;
    if (l->out) return sl_fail(err, SL_ERR_PROTOCOL, "a second window of a connection");
    ucx_window_out *w = sl_alloc(1, sizeof *w);
    uint8_t *key = sl_alloc(KEY_ROOM, 1);
    if (!w || !key) {
        sl_free(w);
        sl_free(key);
        return sl_fail(err, SL_ERR_NOMEM, "a window");
    }
    ucs_status_t st = map_peer(l, offer, key, w);
    if (st != UCS_OK)
        sl_log(SL_LOG_INFO, "net", "memory of %s is not mapped, it is sent messages: %s",
               c->peer.name, ucs_status_string(st));
    sl_free(key);
    l->out = w;
    return SL_OK;
}

/* The memory is nobody's after that: whoever still writes by a connection that is gone writes to
 * pages of his own. */
void sl_ucx_windows_close(ucx_link *l) {
    if (l->in) (void)ucp_mem_unmap(l->t->context, l->in->memory);
    if (l->out && l->out->key) ucp_rkey_destroy(l->out->key);
    sl_free(l->in);
    sl_free(l->out);
    l->in = NULL;
    l->out = NULL;
}

/* ---- sending ---- */

size_t sl_ucx_window_send(ucx_link *l, sl_block *b, bool *put) {
    sl_window_note note = {0};
    ucx_window_out *w = l->out;
    if (!w) return SL_WIRE_HEADER_BYTES; /* the peer may know no notes */
    *put = w->out.memory && b->buf.len >= LEAST && sl_window_out_has_room(&w->out, b->buf.len);
    if (*put) {
        note.number = sl_window_out_put(&w->out, b->buf.data, (uint32_t)b->buf.len);
        l->t->base.net->by_windows.put++;
    }
    if (l->in) note.taken = l->in->in.taken;
    if (!note.number && (!l->in || l->in->told == note.taken)) return SL_WIRE_HEADER_BYTES;
    if (l->in) l->in->told = note.taken;
    sl_window_note_encode(&note, b->note);
    return SL_WIRE_HEADER_BYTES + SL_WINDOW_NOTE_BYTES;
}

/* ---- receiving ---- */

sl_status sl_ucx_window_noted(ucx_link *l, const uint8_t *note, size_t bytes, uint64_t *number,
                              sl_err *err) {
    const sl_window_note n = sl_window_note_decode(note);
    sl_status st = SL_OK;
    if ((n.number && !l->in) || (n.taken && !l->out))
        return sl_fail(err, SL_ERR_PROTOCOL, "a note of a window that is not there");
    if (l->out) st = sl_window_out_credit(&l->out->out, n.taken, err);
    if (st == SL_OK && n.number) st = sl_window_in_announced(&l->in->in, n.number, bytes, err);
    *number = n.number;
    return st;
}

sl_status sl_ucx_window_take(ucx_link *l, sl_block *b, sl_err *err) {
    sl_status st = sl_window_in_take(&l->in->in, b->key, (uint32_t)b->buf.len, b->buf.data, err);
    if (st == SL_OK) l->t->base.net->by_windows.taken++;
    return st;
}
