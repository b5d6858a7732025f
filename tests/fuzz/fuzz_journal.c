/* Any bytes as a journal. The first one chooses: an even one makes the rest a file behind a head
 * that fits; an odd one makes it whole records, one behind the other (u8 type, u16 bytes, bytes),
 * so that what they say is reached. What is read becomes answers that are kept, and requests that
 * an engine refuses. */
#include "base/log.h"
#include "serve/kept_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The linker never takes the real ones. */
static const sl_model_spec spec = {.vocab = 1000, .max_position = 4096};

const sl_model_spec *sl_engine_spec(const sl_engine *e) {
    (void)e;
    return &spec;
}

sl_status sl_engine_submit(sl_engine *e, const sl_request_params *p, uint64_t *request,
                           sl_err *err) {
    (void)e;
    (void)request;
    SL_ASSERT(p->again && p->n_prompt > 0 && p->n_drawn <= p->max_tokens);
    for (uint32_t i = 0; i < p->n_drawn; i++) /* they are there */
        if (p->drawn[i] == UINT32_MAX) break;
    return sl_fail(err, SL_ERR_LIMIT, "none is taken");
}

void sl_engine_cancel(sl_engine *e, uint64_t request) {
    (void)e;
    (void)request;
}

sl_status sl_engine_detail_get(sl_engine *e, sl_engine_detail *out, sl_err *err) {
    (void)e;
    (void)out;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "none");
}

void sl_engine_detail_free(sl_engine_detail *d) {
    (void)d;
}

sl_status sl_engine_look(sl_engine *e, sl_err *err) {
    (void)e, (void)err;
    return SL_OK;
}

sl_status sl_engine_view_get(sl_engine *e, sl_engine_view *out, sl_err *err) {
    (void)e;
    *out = (sl_engine_view){0};
    return sl_fail(err, SL_ERR_NOMEM, "nobody is watched here");
}

void sl_engine_view_free(sl_engine_view *v) {
    (void)v;
}

void sl_engine_stats_get(sl_engine *e, sl_engine_stats *out) {
    (void)e;
    *out = (sl_engine_stats){0};
}

static const sl_journal_about about;
static sl_tokenizer *tok;

static void write_records(const char *path, const uint8_t *data, size_t size) {
    sl_err err;
    sl_journal *j = NULL;
    SL_ASSERT(sl_journal_open(path, &about, &j, &err) == SL_OK);
    for (size_t at = 0; at + 3 <= size;) {
        size_t n = data[at + 1] | (size_t)data[at + 2] << 8;
        uint8_t type = data[at];
        at += 3;
        n = SL_MIN(n, size - at);
        uint8_t *out = sl_journal_begin(j, n);
        SL_ASSERT(out);
        if (n) memcpy(out, data + at, n);
        SL_ASSERT(sl_journal_commit(j, SL_JOURNAL_HERE, type, n, NULL));
        at += n;
    }
    sl_journal_close(j);
}

/* A server with a store and nobody to serve. */
static sl_server *make_server(sl_journal *j) {
    static const char *const alias[] = {"m"};
    sl_err err;
    sl_server *s = sl_alloc(1, sizeof *s);
    SL_ASSERT(s && sl_metrics_create(&s->metrics, &err) == SL_OK);
    s->listen_fd = s->epoll_fd = s->event_fd = -1;
    s->refs = 1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->work.lock, NULL);
    pthread_mutex_init(&s->store.lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    pthread_cond_init(&s->work.changed, NULL);
    sl_conns_init(&s->conns);
    s->o = (sl_server_opts){.tokenizer = tok,
                            .responses = 8,
                            .responses_bytes = 1 << 20,
                            .responses_ttl_s = 600,
                            .journal = j};
    s->limits = (sl_api_limits){
        .model = "m", .alias = alias, .n_alias = 1, .vocab = spec.vocab, .context = 4096};
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int fd = -1;
    static char path[64];
    sl_err err;
    if (fd < 0) {
        sl_log_set_level(SL_LOG_ERROR);
        fd = memfd_create("journal", MFD_CLOEXEC);
        SL_ASSERT(fd >= 0 && fchmod(fd, 0600) == 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        SL_ASSERT(sl_tokenizer_open(SL_SOURCE_DIR "/tests/golden/qwen3moe-tiny", &tok, &err) ==
                  SL_OK);
    }
    if (size < 1 || size > 1 << 16 || ftruncate(fd, 0) != 0) return 0;
    write_records(path, data + 1, data[0] & 1 ? size - 1 : 0);
    if (!(data[0] & 1) &&
        pwrite(fd, data + 1, size - 1, SL_JOURNAL_HEAD_BYTES) != (ssize_t)(size - 1))
        return 0;
    sl_journal *j = NULL;
    SL_ASSERT(sl_journal_open(path, &about, &j, &err) == SL_OK);
    sl_server *s = make_server(j);
    if (sl_resume(s, &err) != SL_OK) SL_ASSERT(err.msg[0]);
    sl_metrics_kept stats = sl_kept_stats(s);
    SL_ASSERT(stats.n_resumed == 0);
    sl_kept_close(s);
    SL_ASSERT(s->store.n == 0 && s->store.bytes == 0 && s->refs == 1);
    sl_server_unref(s);
    sl_journal_close(j);
    return 0;
}
