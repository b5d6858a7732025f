/* A process for the fabric's tests: listens, prints its address on a line of its own, then answers
 * every DISPATCH with a RETURN of the same bytes until standard input ends, or STATS_GET with its
 * counters. usage: net_peer TRANSPORT SECRET [echo|mute|windows]   (mute: stops making progress at
 * the first message; windows: echoes, and has a window for whoever comes) */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/net.h"

typedef struct server {
    sl_net *net;
    bool mute, windows;
} server;

static sl_status on_open(void *ctx, sl_conn *c, const sl_hello *peer, sl_err *err) {
    server *s = ctx;
    (void)peer;
    return s->windows ? sl_net_open_window(s->net, c, 3, 65536, err) : SL_OK;
}

static sl_status on_message(void *ctx, sl_conn *c, const sl_wire_header *h, sl_buf *payload,
                            sl_err *err) {
    server *s = ctx;
    if (s->mute)
        for (;;) pause();
    if (h->kind != SL_MSG_DISPATCH) {
        sl_net_buf_give(s->net, payload);
        return sl_fail(err, SL_ERR_UNSUPPORTED, "only DISPATCH here");
    }
    sl_wire_header back = *h;
    back.kind = SL_MSG_RETURN;
    sl_status st = sl_net_send(s->net, c, back, payload);
    return st == SL_OK ? SL_OK : sl_fail(err, st, "echo");
}

static void on_down(void *ctx, sl_conn *c, sl_status why, const char *text) {
    (void)ctx, (void)c, (void)why, (void)text;
}

static bool input_ended(void) {
    char byte;
    return read(0, &byte, 1) == 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    server s = {.mute = argc > 3 && strcmp(argv[3], "mute") == 0,
                .windows = argc > 3 && strcmp(argv[3], "windows") == 0};
    sl_err err = {0};
    sl_net_setup_process(argv[1]);
    sl_log_set_who("net_peer");
    sl_net_opts o = {.transport = argv[1], .clock = sl_clock_real(), .ctx = &s};
    o.windows = s.windows;
    /* Two addresses are two machines. */
    o.host = strcmp(argv[1], "tcp") == 0 ? "127.0.0.2" : "127.0.0.1";
    o.encrypt = SL_NET_WHEN_AUTO;
    o.secret = (sl_span){(const uint8_t *)argv[2], strlen(argv[2])};
    o.hello = (sl_hello){.worker = 1, .incarnation = (uint32_t)getpid(), .name = "echo"};
    o.on = (sl_net_events){on_open, on_message, on_down};
    if (sl_net_create(&o, &s.net, &err) != SL_OK) {
        fprintf(stderr, "net_peer: %s\n", err.msg);
        return 1;
    }
    printf("%s\n", sl_net_address(s.net));
    fflush(stdout);
    fcntl(0, F_SETFL, O_NONBLOCK);
    /* A run that its parent forgot ends by itself. */
    for (uint64_t end_ns = sl_now_ns() + 240000000000ull; sl_now_ns() < end_ns && !input_ended();) {
        while (sl_net_progress(s.net)) {
        }
        sl_net_wait(s.net, 50000);
    }
    sl_net_free(s.net);
    return 0;
}
