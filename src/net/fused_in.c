/* What comes to a rank: part, partial sum, reply, each checked and placed. */
#include "net/fused_int.h"

#include <string.h>

#include "base/mem.h"

static const char *const step_name[FUSED_STEPS] = {"control", "part",  "gather",
                                                   "reduce",  "reply", "final"};

/* Whether that rank may send this step about that node at all. */
static sl_status check_sender(const sl_fused *f, uint32_t rank, const sl_wire_header *h,
                              sl_err *err) {
    uint32_t node = rank / f->o.n_tp, tp = rank % f->o.n_tp;
    if (h->kind != SL_MSG_FUSED || h->chunk >= FUSED_STEPS || h->lane >= f->o.n_nodes)
        return sl_fail(err, SL_ERR_PROTOCOL, "fused: kind %u, step %u, node %u from rank %u",
                       h->kind, h->chunk, h->lane, rank);
    bool sibling = node == f->o.node && tp != f->o.tp;
    bool counterpart = node < f->o.n_nodes && node != f->o.node && tp == f->o.tp && h->lane == node;
    bool fine = false;
    switch ((fused_step)h->chunk) {
    case FUSED_CONTROL:
    case FUSED_PART:
    case FUSED_REPLY:
        fine = counterpart;
        break;
    case FUSED_GATHER:
        fine = sibling && h->lane != f->o.node;
        break;
    case FUSED_REDUCE:
        fine = sibling;
        break;
    case FUSED_FINAL:
        fine = sibling && h->lane == f->o.node;
        break;
    case FUSED_STEPS:
        break;
    }
    if (!fine)
        return sl_fail(err, SL_ERR_PROTOCOL, "fused: %s of node %u from rank %u",
                       step_name[h->chunk], h->lane, rank);
    return SL_OK;
}

static sl_status check_size(const sl_fused *f, uint32_t rank, const sl_wire_header *h,
                            const sl_buf *payload, sl_err *err) {
    size_t len = payload ? payload->len : 0, part = f->part * sizeof(float);
    bool is_control = h->chunk == FUSED_CONTROL;
    if (h->rows > f->o.max_rows)
        return sl_fail(err, SL_ERR_PROTOCOL, "fused: %u rows from rank %u, limit %u", h->rows, rank,
                       f->o.max_rows);
    if (is_control ? len > f->o.max_control : len != h->rows * part)
        return sl_fail(err, SL_ERR_PROTOCOL, "fused: %s of %zu bytes for %u rows from rank %u",
                       step_name[h->chunk], len, h->rows, rank);
    return SL_OK;
}

static sl_status keep_early(sl_fused *f, uint32_t rank, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    /* A counterpart sends two messages ahead, a sibling at most one a node and step. */
    uint32_t limit = f->o.n_nodes * 2 + f->o.n_tp * (2 * f->o.n_nodes + 1);
    fused_early *e = f->n_early < limit ? sl_alloc(1, sizeof *e) : NULL;
    if (!e) {
        sl_net_buf_give(f->o.net, payload);
        return f->n_early < limit ? sl_fail(err, SL_ERR_NOMEM, "fused: a message of the next pass")
                                  : sl_fail(err, SL_ERR_PROTOCOL,
                                            "fused: more than %u messages of the next pass", limit);
    }
    *e = (fused_early){.rank = rank, .h = *h, .payload = payload};
    fused_early **at = &f->early;
    while (*at) at = &(*at)->next;
    *at = e;
    f->n_early++;
    return SL_OK;
}

/* All messages about one node's rows agree on their number. */
static bool agree(fused_in *in, uint32_t n) {
    if (!in->known) in->n = n;
    in->known = true;
    return in->n == n;
}

static void place_part(sl_fused *f, fused_in *in, uint32_t tp, const sl_buf *payload) {
    size_t bytes = f->part * sizeof(float);
    for (uint32_t i = 0; i < in->n; i++)
        memcpy(in->x + (size_t)i * f->o.d_model + (size_t)tp * f->part, payload->data + i * bytes,
               bytes);
    in->parts |= 1ull << tp;
}

static void place_final(sl_fused *f, uint32_t tp, const sl_buf *payload) {
    size_t bytes = f->part * sizeof(float);
    for (uint32_t i = 0; i < f->n_rows; i++)
        memcpy(f->result + (size_t)i * f->o.d_model + (size_t)tp * f->part,
               payload->data + i * bytes, bytes);
    f->finals |= 1ull << tp;
}

/* Takes the payload by clearing *payload where it is kept. False: it was there already, or says
 * another number of rows. */
static bool place(sl_fused *f, uint32_t tp, const sl_wire_header *h, sl_buf **payload) {
    fused_in *in = &f->in[h->lane];
    fused_back *back = &f->back[h->lane];
    uint64_t bit = 1ull << tp;
    switch ((fused_step)h->chunk) {
    case FUSED_CONTROL:
        if (in->has_control || !agree(in, h->rows)) return false;
        in->has_control = true;
        in->control = *payload;
        break;
    case FUSED_PART:
    case FUSED_GATHER:
        if ((in->parts & bit) || !agree(in, h->rows)) return false;
        place_part(f, in, tp, *payload);
        if (h->chunk == FUSED_PART) in->own_part = true;
        return true;
    case FUSED_REDUCE:
        if ((in->partials & bit) || !in->known || in->n != h->rows) return false;
        in->partials |= bit;
        in->partial[tp] = *payload;
        break;
    case FUSED_REPLY:
        if (back->here || h->rows != f->to[h->lane].n) return false;
        *back = (fused_back){.sums = *payload, .here = true};
        break;
    case FUSED_FINAL:
        if ((f->finals & bit) || h->rows != f->n_rows) return false;
        place_final(f, tp, *payload);
        return true;
    case FUSED_STEPS:
        return false;
    }
    *payload = NULL;
    return true;
}

sl_status sl_fused_on_message(sl_fused *f, uint32_t rank, const sl_wire_header *h, sl_buf *payload,
                              sl_err *err) {
    sl_status st = check_sender(f, rank, h, err);
    if (st == SL_OK) st = check_size(f, rank, h, payload, err);
    if (st == SL_OK && h->pass == f->pass + 1) return keep_early(f, rank, h, payload, err);
    if (st == SL_OK && (!f->active || h->pass != f->pass))
        st = sl_fail(err, SL_ERR_PROTOCOL, "fused: %s of pass %llu from rank %u in pass %llu",
                     step_name[h->chunk], (unsigned long long)h->pass, rank,
                     (unsigned long long)f->pass);
    if (st == SL_OK && h->layer != f->layer)
        st = sl_fail(err, SL_ERR_PROTOCOL, "fused: %s of layer %u from rank %u in layer %u",
                     step_name[h->chunk], h->layer, rank, f->layer);
    if (st == SL_OK && !place(f, rank % f->o.n_tp, h, &payload))
        st = sl_fail(err, SL_ERR_PROTOCOL, "fused: %s of node %u from rank %u: %u rows, or again",
                     step_name[h->chunk], h->lane, rank, h->rows);
    sl_net_buf_give(f->o.net, payload);
    return st == SL_OK ? sl_fused_advance(f, err) : st;
}
