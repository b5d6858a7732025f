/* The UCX transport between processes, on loopback. */
#include "multi/net_procs.h"

#include <netinet/in.h>
#include <ucp/api/ucp.h>

#include "net/ucx/ucx_int.h"

NET_CASES("ucx")

/* ---- windows ---- */

/* Some payloads fit, some do not, some find no slot free: all of them come in order. */
static void windows_echo(void **state) {
    (void)state;
    assert_true(echo_with("ucx", "windows", 2, 20000) > 100);
    assert_true(echo_with("ucx", "windows", SL_WINDOW_MAX_SLOTS, 1 << 20) > 100);
}

/* A peer without windows goes on with messages. */
static void windows_one_sided(void **state) {
    (void)state;
    assert_int_equal(echo_with("ucx", "echo", 2, 20000), 0);
}

static void windows_killed_peer(void **state) {
    (void)state;
    killed_peer_with("ucx", "windows", 4, 65536);
}

/* Its window has payloads that it will not take. */
static void windows_stopped_and_killed(void **state) {
    (void)state;
    peer p = {.window_slots = 4, .window_bytes = 65536};
    start(&p, "ucx", KEY);
    child other = spawn("ucx", KEY, "windows"), far = spawn("ucx", KEY, "windows");
    sl_conn *survivor = call(&p, other.address), *c = call(&p, far.address);
    until(&p, &p.opened, 2, 10);
    assert_int_equal(peer_send_u64(&p, c, SL_MSG_DISPATCH, 1), SL_OK);
    until(&p, &p.messages, 1, 10); /* behind the offer of its window */
    for (int i = 0; i < 8; i++) {
        sl_buf *b = sl_net_buf_take(p.net, 40000);
        memset(b->data, i, b->len);
        if (i == 4) {
            until(&p, &p.messages, 5, 10);
            usleep(100000);
            kill(far.pid, SIGSTOP);
        }
        assert_int_equal(sl_net_send(p.net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, b),
                         SL_OK);
    }
    assert_true(sl_net_window_stats(p.net).put > 4); /* into memory of one that will not take it */
    kill(far.pid, SIGKILL);
    until(&p, &p.downs, 1, 10);
    assert_int_equal(p.why, SL_ERR_PEER_DOWN);
    reap_child(&far, SIGKILL);
    p.messages = 0;
    assert_int_equal(peer_send_u64(&p, survivor, SL_MSG_DISPATCH, 4711), SL_OK);
    until(&p, &p.messages, 1, 10);
    assert_int_equal(p.value, 4711);
    sl_net_free(p.net);
    reap_child(&other, 0);
}

/* Two nets of this process, the first of which has called: its end of the other's window. */
static ucx_window_out *open_two(peer *p, peer *q, sl_conn **c) {
    const uint64_t end_ns = sl_now_ns() + 10000000000ull;
    *p = *q = (peer){.window_slots = 2, .window_bytes = 4096};
    start(p, "ucx", KEY);
    start(q, "ucx", KEY);
    *c = call(p, sl_net_address(q->net));
    const ucx_link *l = (*c)->link;
    while (!l->out && sl_now_ns() < end_ns) {
        sl_net_progress(p->net);
        sl_net_progress(q->net);
    }
    assert_non_null(l->out);
    return l->out;
}

/* A message of 3000 bytes ends the connection at its receiver, saying `want`. */
static void expect_end(peer *p, peer *q, sl_conn *c, const char *want) {
    const uint64_t end_ns = sl_now_ns() + 10000000000ull;
    sl_buf *b = sl_net_buf_take(p->net, 3000);
    memset(b->data, 1, b->len);
    assert_int_equal(sl_net_send(p->net, c, (sl_wire_header){.kind = SL_MSG_DISPATCH}, b), SL_OK);
    assert_int_equal(sl_net_window_stats(p->net).put, 1);
    while (!q->downs && sl_now_ns() < end_ns) {
        sl_net_progress(p->net);
        sl_net_progress(q->net);
    }
    assert_int_equal(q->downs, 1);
    assert_int_equal(q->why, SL_ERR_PROTOCOL);
    if (!strstr(q->text, want)) fail_msg("'%s', expected '%s'", q->text, want);
    assert_int_equal(q->messages, 0);
    sl_net_free(p->net);
    sl_net_free(q->net);
}

static void windows_strange_generation(void **state) {
    (void)state;
    peer p, q;
    sl_conn *c;
    ucx_window_out *w = open_two(&p, &q, &c);
    w->out.shape.first += 1000; /* as somebody has it who was connected before */
    expect_end(&p, &q, c, "a late writer");
}

static void windows_unwritten_slot(void **state) {
    (void)state;
    peer p, q;
    sl_conn *c;
    ucx_window_out *w = open_two(&p, &q, &c);
    w->out.memory += sl_window_bytes(&w->out.shape) / 2; /* the other slot */
    expect_end(&p, &q, c, "of 0 bytes");
}

/* A peer that says another length, place or generation than its memory has: nothing is mapped. */
static void windows_lies(void **state) {
    (void)state;
    peer p, q;
    sl_conn *c;
    sl_err err;
    void *key;
    size_t bytes;
    open_two(&p, &q, &c);
    const ucx_transport *other = (const ucx_transport *)q.net->transport;
    const ucx_window_in *in = other->links->in;
    ucx_link *l = c->link;
    assert_int_equal(ucp_rkey_pack(other->context, in->memory, &key, &bytes), UCS_OK);
    const uint64_t at = (uint64_t)(uintptr_t)in->in.memory;
    for (int lie = 0; lie < 5; lie++) {
        sl_window_offer o = {.shape = in->in.shape, .at = at, .key = {key, bytes}};
        if (lie == 1) o.shape.slots = 64;
        if (lie == 2) o.shape.slot_bytes = SL_WINDOW_MAX_SLOT_BYTES;
        if (lie == 3) o.shape.first++;
        if (lie == 4) o.at += 64;
        sl_ucx_windows_close(l);
        assert_int_equal(sl_ucx_use_window(p.net->transport, c, &o, &err), SL_OK);
        assert_int_equal(l->out->out.memory != NULL, lie == 0);
        assert_int_equal(sl_ucx_use_window(p.net->transport, c, &o, &err), SL_ERR_PROTOCOL);
    }
    ucp_rkey_buffer_release(key);
    sl_net_free(p.net);
    sl_net_free(q.net);
}

static void windows_refusals(void **state) {
    (void)state;
    peer p = {0};
    sl_err err = {0};
    sl_net *n = NULL;
    start(&p, "ucx", KEY);
    sl_conn *c = call(&p, sl_net_address(p.net));
    assert_int_equal(sl_net_open_window(p.net, c, 2, 64, &err), SL_ERR_UNSUPPORTED);
    sl_net_free(p.net);
    p = (peer){.window_slots = 1, .window_bytes = 64};
    start(&p, "ucx", KEY);
    c = call(&p, sl_net_address(p.net));
    assert_int_equal(sl_net_open_window(p.net, c, 0, 64, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_open_window(p.net, c, 65, 64, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_open_window(p.net, c, 1, (64u << 20) + 1, &err), SL_ERR_ARG);
    until(&p, &p.opened, 2, 10); /* with itself, where nothing is put */
    sl_net_free(p.net);
    sl_net_opts o = peer_opts(&p, NULL, sl_clock_real(), KEY);
    o.transport = "tcp";
    assert_int_equal(sl_net_create(&o, &n, &err), SL_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "transport tcp has none"));
}

static void refusals(void **state) {
    (void)state;
    peer p = {0};
    start(&p, "ucx", KEY);
    call(&p, "127.0.0.1:1"); /* nobody listens */
    until(&p, &p.downs, 1, 10);
    printf("ucx: nobody listens: %s\n", p.text);
    assert_int_equal(p.opened, 0);
    sl_conn *c = NULL;
    sl_err err = {0};
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1", NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1:70000", NULL, &c, &err), SL_ERR_ARG);
    assert_int_equal(sl_net_connect(p.net, "127.0.0.1:x", NULL, &c, &err), SL_ERR_ARG);
    sl_net_opts o = peer_opts(&p, NULL, sl_clock_real(), KEY);
    sl_net *second = NULL;
    o.transport = "ucx";
    o.host = "127.0.0.1";
    o.port = (uint16_t)atoi(strrchr(sl_net_address(p.net), ':') + 1);
    assert_true(o.port < 32768);
    assert_int_equal(sl_net_create(&o, &second, &err), SL_ERR_IO);
    sl_net_free(p.net);
}

/* ---- a peer that speaks UCX but not our handshake ---- */

typedef struct rogue {
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_ep_h ep;
    bool dropped;
} rogue;

static void rogue_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
    (void)ep, (void)status;
    ((rogue *)arg)->dropped = true;
}

static ucs_status_t rogue_hears(void *arg, const void *header, size_t header_length, void *data,
                                size_t length, const ucp_am_recv_param_t *param) {
    (void)arg, (void)header, (void)header_length, (void)data, (void)length, (void)param;
    return UCS_OK;
}

static void rogue_open(rogue *r, const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM};
    ucp_worker_params_t wp = {0};
    ucp_ep_params_t ep = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = (struct sockaddr *)&a, .addrlen = sizeof a},
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = {.cb = rogue_error, .arg = r},
    };
    memset(r, 0, sizeof *r);
    assert_int_equal(ucp_init(&p, NULL, &r->context), UCS_OK);
    assert_int_equal(ucp_worker_create(r->context, &wp, &r->worker), UCS_OK);
    ucp_am_handler_param_t am = {.field_mask =
                                     UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
                                 .id = 1,
                                 .cb = rogue_hears};
    assert_int_equal(ucp_worker_set_am_recv_handler(r->worker, &am), UCS_OK);
    assert_int_equal(ucp_ep_create(r->worker, &ep, &r->ep), UCS_OK);
}

static void rogue_close(rogue *r, ucs_status_ptr_t *sent, int count) {
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    ucs_status_ptr_t p = ucp_ep_close_nbx(r->ep, &param);
    while (UCS_PTR_IS_PTR(p) && ucp_request_check_status(p) == UCS_INPROGRESS)
        ucp_worker_progress(r->worker);
    if (UCS_PTR_IS_PTR(p)) ucp_request_free(p);
    for (int i = 0; i < count; i++)
        if (UCS_PTR_IS_PTR(sent[i])) ucp_request_free(sent[i]);
    ucp_worker_destroy(r->worker);
    ucp_cleanup(r->context);
}

/* Sends `count` messages with that header and payload; the net must end the connection, saying
 * `want`. */
static void rogue_sends(peer *p, unsigned id, int count, const void *header, size_t header_length,
                        size_t length, const char *want) {
    rogue r;
    ucs_status_ptr_t sent[16] = {0};
    uint8_t *bytes = calloc(1, length + 1);
    int downs = p->downs;
    uint64_t end_ns = sl_now_ns() + 10000000000ull;
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_AM_SEND_FLAG_REPLY};
    rogue_open(&r, sl_net_address(p->net));
    for (int i = 0; i < count; i++)
        sent[i] = ucp_am_send_nbx(r.ep, id, header, header_length, bytes, length, &param);
    while (p->downs == downs && sl_now_ns() < end_ns) {
        ucp_worker_progress(r.worker);
        sl_net_progress(p->net);
    }
    assert_int_equal(p->downs, downs + 1);
    if (!strstr(p->text, want))
        fail_msg("%d of %zu bytes: '%s' (%d), expected '%s'", count, length, p->text, p->why, want);
    while (!r.dropped && sl_now_ns() < end_ns) {
        ucp_worker_progress(r.worker);
        sl_net_progress(p->net);
    }
    assert_true(r.dropped);
    rogue_close(&r, sent, count);
    free(bytes);
}

static void rogue_peer(void **state) {
    (void)state;
    peer p = {0};
    uint8_t header[SL_WIRE_HEADER_BYTES];
    start(&p, "ucx", KEY);
    p.net->dead_after_us = 1000000; /* before the handshake's own deadline */
    sl_wire_header h = {.kind = SL_MSG_HELLO, .incarnation = 9, .seq = 1, .bytes = 276};
    sl_wire_header_encode(&h, header);
    rogue_sends(&p, 1, 1, header, 71, 276, "header of the wrong size");
    rogue_sends(&p, 1, 1, header, 0, 276, "header of the wrong size");
    rogue_sends(&p, 1, 1, header, 72, 4097, "payload over the limit");
    rogue_sends(&p, 1, 1, header, 72, 20u << 20, "payload over the limit");
    rogue_sends(&p, 1, 1, header, 72, 275, "header says 276 payload bytes, 275 came");
    rogue_sends(&p, 1, 1, header, 72, 276, "incarnation 0, header says 9");
    h.seq = 7;
    sl_wire_header_encode(&h, header);
    rogue_sends(&p, 1, 12, header, 72, 276, "too many messages before authentication");
    rogue_sends(&p, 1, 1, header, 72, 276, "sequence number is missing");
    const unsigned ids[] = {2, 4096, 65535}; /* not ours: nothing is heard */
    for (size_t i = 0; i < SL_LEN(ids); i++)
        rogue_sends(&p, ids[i], 1, header, 72, i % 2 ? 276 : 1000000, "handshake not finished");
    assert_int_equal(p.opened, 0);
    assert_int_equal(p.messages, 0);
    assert_int_equal(sl_pending_count(p.net), 0);
    sl_net_free(p.net);
}

/* Notes of windows that nobody opened. */
static void windows_rogue_notes(void **state) {
    (void)state;
    uint8_t header[SL_WIRE_HEADER_BYTES + SL_WINDOW_NOTE_BYTES];
    const size_t noted = sizeof header;
    peer p = {.window_slots = 2, .window_bytes = 4096};
    sl_wire_header h = {.kind = SL_MSG_HELLO, .incarnation = 9, .seq = 1, .bytes = 276};
    sl_wire_header_encode(&h, header);
    for (int with = 1; with >= 0; with--) {
        p.window_slots = with ? 2 : 0;
        start(&p, "ucx", KEY);
        p.net->dead_after_us = 1000000;
        for (int k = 0; k < 2; k++) {
            const sl_window_note n = {.number = k == 0, .taken = k};
            sl_window_note_encode(&n, header + SL_WIRE_HEADER_BYTES);
            rogue_sends(&p, 1, 1, header, noted, 276,
                        with ? "a window that is not there" : "header of the wrong size");
            rogue_sends(&p, 1, 1, header, noted - 1, 276, "header of the wrong size");
        }
        assert_int_equal(p.opened, 0);
        sl_net_free(p.net);
    }
}

/* usage: test_net_ucx [windows]: their cases, which need UCX_* to say that memory is shared, or the
 * others. */
int main(int argc, char **argv) {
    alarm(200);
    sl_net_setup_process("ucx");
    if (argc > 1 && strcmp(argv[1], "windows") == 0)
        cmocka_set_test_filter("windows_*");
    else
        cmocka_set_skip_filter("windows_*");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(echo),
        cmocka_unit_test(killed_peer),
        cmocka_unit_test(mute_peer),
        cmocka_unit_test(stopped_peer),
        cmocka_unit_test(wrong_secret),
        cmocka_unit_test(self_and_bye),
        cmocka_unit_test(refusals),
        cmocka_unit_test(rogue_peer),
        cmocka_unit_test(windows_echo),
        cmocka_unit_test(windows_one_sided),
        cmocka_unit_test(windows_rogue_notes),
        cmocka_unit_test(windows_strange_generation),
        cmocka_unit_test(windows_unwritten_slot),
        cmocka_unit_test(windows_refusals),
        cmocka_unit_test(windows_lies),
        cmocka_unit_test(windows_killed_peer),
        cmocka_unit_test(windows_stopped_and_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
