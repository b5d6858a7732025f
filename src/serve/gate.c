/* Who may be in the server: calls that are answered, up to a limit and until it drains, and the
 * references that keep it alive until the last has left. */
#include "serve/server_int.h"

#include "base/mem.h"
#include "grammar/guide.h"

#include <stdlib.h>
#include <unistd.h>

void sl_server_drain(sl_server *s) {
    pthread_mutex_lock(&s->lock);
    s->draining = true;
    pthread_mutex_unlock(&s->lock);
}

uint32_t sl_server_running(sl_server *s) {
    pthread_mutex_lock(&s->lock);
    uint32_t n = s->n_answering;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool sl_server_is_draining(sl_server *s) {
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining;
    pthread_mutex_unlock(&s->lock);
    return draining;
}

bool sl_server_enter(sl_call *call, sl_api_error *e) {
    sl_server *s = call->server;
    pthread_mutex_lock(&s->lock);
    bool draining = s->draining, open = !draining && s->n_answering < s->o.max_connections;
    if (open) {
        call->answering = true;
        s->n_answering++;
    }
    pthread_mutex_unlock(&s->lock);
    if (draining)
        sl_api_error_draining(e);
    else if (!open)
        sl_api_error_connections(e, s->o.max_connections);
    return open;
}

void sl_server_ref(sl_server *s) {
    pthread_mutex_lock(&s->lock);
    s->refs++;
    pthread_mutex_unlock(&s->lock);
}

static void forget_planner(sl_planner *p) {
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    sl_profile_free(&p->costs);
    free(p->model_path);
    free(p->profile_path);
    free(p->program);
}

void sl_server_unref(sl_server *s) {
    pthread_mutex_lock(&s->lock);
    bool last = --s->refs == 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!last) return;
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work.changed);
    pthread_mutex_destroy(&s->work.lock);
    pthread_mutex_destroy(&s->store.lock);
    pthread_mutex_destroy(&s->guides_lock);
    sl_guides_free(s->guides);
    pthread_cond_destroy(&s->live.changed);
    pthread_mutex_destroy(&s->live.lock);
    forget_planner(&s->planner);
    sl_conns_free(&s->conns);
    sl_metrics_free(&s->metrics);
    sl_server_unlisten(s);
    if (s->epoll_fd >= 0) close(s->epoll_fd);
    if (s->event_fd >= 0) close(s->event_fd);
    sl_keys_free(&s->keys);
    for (size_t i = 0; i < s->n_origins; i++) sl_free(s->origin[i]);
    sl_free(s->origin);
    sl_free(s->api_key);
    sl_free(s->admin_key);
    for (size_t i = 0; i < s->n_names; i++) sl_free(s->names[i]);
    sl_free(s->names);
    sl_free(s->url);
    sl_free(s);
}

bool sl_server_enter_watcher(sl_server *s) {
    sl_live *live = &s->live;
    pthread_mutex_lock(&live->lock);
    bool fits = live->n_watchers < SL_LIVE_WATCHERS;
    live->n_watchers += fits;
    pthread_cond_signal(&live->changed);
    pthread_mutex_unlock(&live->lock);
    return fits;
}

void sl_server_leave_watcher(sl_server *s) {
    pthread_mutex_lock(&s->live.lock);
    s->live.n_watchers--;
    pthread_mutex_unlock(&s->live.lock);
}
