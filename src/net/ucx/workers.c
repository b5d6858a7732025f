#include <errno.h>
#include <sys/epoll.h>

#include "net/ucx/ucx_int.h"

static ucs_status_t ignore_message(void *arg, const void *header, size_t header_length, void *data,
                                   size_t length, const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)data, (void)length;
    return param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV ? UCS_ERR_REJECTED : UCS_OK;
}

/* UCX looks a peer's id up without a bound and trusts what it finds, so each possible id gets a
 * handler, the last one first: that sizes the table at once. */
static sl_status set_handlers(ucx_transport *t, ucp_worker_h worker, sl_err *err) {
    ucp_am_handler_param_t am = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .arg = t,
    };
    for (uint32_t id = UINT16_MAX + 1u; id-- > 0;) {
        am.id = id;
        am.cb = id == SL_UCX_AM_ID ? sl_ucx_on_message : ignore_message;
        ucs_status_t st = ucp_worker_set_am_recv_handler(worker, &am);
        if (st != UCS_OK)
            return sl_fail(err, SL_ERR_INTERNAL, "UCX handler %u: %s", id, ucs_status_string(st));
    }
    return SL_OK;
}

static sl_status watch(ucx_transport *t, ucp_worker_h worker, sl_err *err) {
    int fd = -1;
    ucs_status_t st = ucp_worker_get_efd(worker, &fd);
    if (st != UCS_OK)
        return sl_fail(err, SL_ERR_INTERNAL, "UCX event descriptor: %s", ucs_status_string(st));
    struct epoll_event ev = {.events = EPOLLIN};
    if (epoll_ctl(t->event_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return sl_fail(err, SL_ERR_IO, "epoll: %s", strerror(errno));
    return SL_OK;
}

static sl_status check_header_room(ucp_worker_h worker, sl_err *err) {
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    ucs_status_t st = ucp_worker_query(worker, &attr);
    if (st != UCS_OK || attr.max_am_header < SL_WIRE_HEADER_BYTES)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "UCX headers hold %zu bytes, %d needed",
                       attr.max_am_header, SL_WIRE_HEADER_BYTES);
    return SL_OK;
}

sl_status sl_ucx_worker_open(ucx_transport *t, ucp_worker_h *out, sl_err *err) {
    ucp_worker_h worker = NULL;
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t us = ucp_worker_create(t->context, &params, &worker);
    if (us != UCS_OK) return sl_fail(err, SL_ERR_INTERNAL, "UCX worker: %s", ucs_status_string(us));
    sl_status st = check_header_room(worker, err);
    if (st == SL_OK) st = set_handlers(t, worker, err);
    if (st == SL_OK) st = watch(t, worker, err);
    if (st == SL_OK)
        *out = worker;
    else
        ucp_worker_destroy(worker);
    return st;
}

void sl_ucx_worker_close(ucx_transport *t, ucp_worker_h worker) {
    int fd = -1;
    if (ucp_worker_get_efd(worker, &fd) == UCS_OK)
        (void)epoll_ctl(t->event_fd, EPOLL_CTL_DEL, fd, NULL);
    ucp_worker_destroy(worker);
}

unsigned sl_ucx_workers_progress(ucx_transport *t) {
    unsigned n = ucp_worker_progress(t->worker);
    if (!t->worker_per_link) return n;
    for (ucx_link *l = t->links; l; l = l->next) n += ucp_worker_progress(l->worker);
    return n;
}

bool sl_ucx_workers_arm(ucx_transport *t) {
    bool armed = ucp_worker_arm(t->worker) == UCS_OK;
    for (ucx_link *l = t->links; armed && t->worker_per_link && l; l = l->next)
        armed = ucp_worker_arm(l->worker) == UCS_OK;
    return armed;
}
