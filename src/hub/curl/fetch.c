/* Bringing what the cache lacks of a model: which files, then their pieces over several
 * connections, their digests beside that, and links to them. */
#include "hub/curl/fetch.h"

#include "base/clock.h"
#include "base/mem.h"
#include "hub/curl/api.h"
#include "hub/curl/check.h"
#include "hub/curl/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TURN_MS       100
#define RESERVE_BYTES ((uint64_t)1 << 20) /* of the disk, for links and states */
#define LOCK_NS       200000000ull        /* between two looks at another's lock */
#define LOCK_DEAD_NS  600000000000ull     /* nothing moves in a blob of another for so long */
#define BEAT_NS       5000000000ull       /* between two signs that a digest advances */

typedef enum job_state { JOB_WAITS, JOB_RUNS, JOB_DONE } job_state;

typedef struct piece {
    bool busy;
    unsigned tries;    /* in a row without a byte */
    uint64_t since_ns; /* when its last byte came, or it was first asked for */
    uint64_t after_ns; /* not before that */
} piece;

/* One file. */
typedef struct job {
    sl_hub_file *file;
    job_state state;
    bool again; /* it was wrong once */
    bool resumed;
    bool no_ranges;
    uint64_t most, wrong; /* bytes that ever came without ranges; inode of a damaged blob, or 0 */
    char blob[SL_HUB_PATH];
    int lock;
    sl_hub_part part;
    piece *piece;
    uint32_t place;            /* at the checker */
    uint64_t have;             /* bytes, for the sum */
    uint64_t hashed, beat_ns;  /* bytes that its digest had when that was last shown, and when */
    uint64_t look_ns;          /* when the lock was last looked at */
    uint64_t moved_ns, others; /* when another's bytes were last seen to move */
} job;

typedef struct fetch fetch;

typedef struct lane {
    sl_hub_call call;
    fetch *f;
    job *job; /* NULL: free */
    uint32_t piece;
    uint64_t got; /* bytes in this call */
    sl_status st; /* of writing them */
    sl_err err;
} lane;

struct fetch {
    const sl_hub_settings *s;
    const sl_hub_name *name;
    char what[2 * SL_HUB_PART + 2];
    sl_hub_http *http;
    sl_hub_checker *checker;
    sl_progress *progress;
    sl_hub_report *report;
    job *job;
    size_t n;
    uint32_t running; /* jobs */
    lane *lane;
};

/* ---- what is there, and whether the rest fits ---- */

static bool is_there(const job *j) {
    struct stat at;
    return stat(j->blob, &at) == 0 && S_ISREG(at.st_mode) &&
           (uint64_t)at.st_size == j->file->bytes && (!j->wrong || at.st_ino != j->wrong);
}

static void finish_job(job *j) {
    j->have = j->file->bytes;
    j->state = JOB_DONE;
}

/* With --verify: what is there is read. A wrong file goes when its lock is ours (remove_wrong). */
static sl_status verify(fetch *f, job *j, sl_err *err) {
    char id[SL_HUB_ID + 1] = "";
    struct stat at;
    sl_status st = SL_OK;
    uint32_t place;
    int fd = open(j->blob, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &at) != 0) {
        st = sl_fail(err, SL_ERR_IO, "%s: %s", j->blob, strerror(errno));
        if (fd >= 0) close(fd);
        return st;
    }
    st = sl_hub_checker_join(f->checker, fd, j->file->bytes, j->file->id, &place, err);
    if (st == SL_OK) {
        sl_hub_checker_front(f->checker, place, j->file->bytes);
        while (!sl_hub_checker_ended(f->checker, place, id, &st, err)) usleep(1000);
        sl_hub_checker_leave(f->checker, place);
    }
    close(fd);
    if (st == SL_OK && strcmp(id, j->file->id) != 0) j->wrong = at.st_ino;
    return st;
}

/* Under the lock: another fetch may have put a right file in the damaged one's place. */
static sl_status remove_wrong(const job *j, sl_err *err) {
    struct stat at;
    if (!j->wrong || stat(j->blob, &at) != 0 || at.st_ino != j->wrong || unlink(j->blob) == 0)
        return SL_OK;
    return sl_fail(err, SL_ERR_IO, "%s: has another digest and cannot be removed: %s", j->blob,
                   strerror(errno));
}

/* Bytes of the disk that are the file's already, or come free when it is begun. */
static uint64_t disk_taken(const job *j) {
    char path[SL_HUB_PATH + 16];
    struct stat at;
    uint64_t taken = j->wrong && stat(j->blob, &at) == 0 ? (uint64_t)at.st_blocks * 512 : 0;
    snprintf(path, sizeof path, "%s.sluice.part", j->blob);
    if (stat(path, &at) == 0) taken += (uint64_t)at.st_blocks * 512;
    return SL_MIN(taken, j->file->bytes);
}

static sl_status check_room(const fetch *f, sl_err *err) {
    uint64_t need = 0;
    struct statvfs disk;
    for (size_t i = 0; i < f->n; i++)
        if (f->job[i].state != JOB_DONE) need += f->job[i].file->bytes - disk_taken(&f->job[i]);
    if (need == 0 || statvfs(f->s->cache, &disk) != 0) return SL_OK; /* writing will tell */
    uint64_t free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (need + RESERVE_BYTES <= free_bytes) return SL_OK;
    return sl_fail(err, SL_ERR_LIMIT, "%s: needs %.1f MB, and %.1f MB are free in %s", f->what,
                   (double)(need + RESERVE_BYTES) / 1e6, (double)free_bytes / 1e6, f->s->cache);
}

/* ---- a file's begin and end ---- */

static void end_job(fetch *f, job *j) {
    if (j->state == JOB_RUNS) {
        sl_hub_checker_leave(f->checker, j->place);
        f->running--;
        j->state = JOB_WAITS;
    }
    sl_hub_part_close(&j->part);
    sl_free(j->piece);
    j->piece = NULL;
    if (j->lock >= 0) close(j->lock);
    j->lock = -1;
}

/* Bytes that another process has of the blob, under whatever name: they move while it lives. */
static uint64_t bytes_of_others(const job *j) {
    static const char *const names[] = {".sluice.state", ".sluice.part", ".incomplete", ""};
    char path[SL_HUB_PATH + 16];
    struct stat at;
    uint64_t sum = 0;
    for (size_t i = 0; i < SL_LEN(names); i++) {
        snprintf(path, sizeof path, "%s%s", j->blob, names[i]);
        if (stat(path, &at) != 0) continue;
        sum += (uint64_t)at.st_size + (uint64_t)at.st_blocks;
        sum += (uint64_t)at.st_mtim.tv_sec * 1000 + (uint64_t)at.st_mtim.tv_nsec / 1000000;
    }
    snprintf(path, sizeof path, "%s", j->blob);
    *strrchr(path, '/') = 0; /* names of their own: their folder changes at least */
    if (stat(path, &at) == 0) sum += (uint64_t)at.st_mtim.tv_sec;
    return sum;
}

static sl_status wait_for_other(fetch *f, job *j, uint64_t now, sl_err *err) {
    uint64_t others = bytes_of_others(j);
    if (others != j->others || j->moved_ns == 0) {
        j->others = others;
        j->moved_ns = now;
    }
    if (now - j->moved_ns < LOCK_DEAD_NS) return SL_OK;
    return sl_fail(err, SL_ERR_TIMEOUT,
                   "%s: another process has had its lock for %llu s and brought nothing; "
                   "it is %s/.locks/models--%s--%s/%s.lock",
                   j->file->name, LOCK_DEAD_NS / 1000000000ull, f->s->cache, f->name->org,
                   f->name->model, j->file->id);
}

static sl_status start_pieces(fetch *f, job *j, sl_err *err) {
    sl_free(j->piece);
    j->piece = sl_alloc(SL_MAX(j->part.n, 1u), sizeof *j->piece);
    if (!j->piece) return sl_fail(err, SL_ERR_NOMEM, "%s: %u pieces", j->file->name, j->part.n);
    sl_status st =
        sl_hub_checker_join(f->checker, j->part.fd, j->file->bytes, j->file->id, &j->place, err);
    if (st != SL_OK) return st;
    sl_hub_checker_front(f->checker, j->place, sl_hub_part_front(&j->part));
    j->have = sl_hub_part_have(&j->part);
    return SL_OK;
}

/* Takes the lock over a blob, unless another process has it; then goes on with what is there. */
static sl_status start_job(fetch *f, job *j, uint64_t now, sl_err *err) {
    if (now - j->look_ns < LOCK_NS && j->look_ns) return SL_OK;
    j->look_ns = now;
    sl_status st = sl_hub_lock(f->s, f->name, j->file->id, &j->lock, err);
    if (st != SL_OK) return st;
    if (j->lock < 0) return wait_for_other(f, j, now, err);
    if (is_there(j)) {
        finish_job(j);
        end_job(f, j);
        return SL_OK;
    }
    st = sl_hub_part_open(&j->part, j->blob, j->file->bytes, err);
    if (st == SL_OK) st = remove_wrong(j, err); /* now, so that its inode is not the new file's */
    if (st == SL_OK) st = start_pieces(f, j, err);
    if (st == SL_OK) {
        j->resumed = j->have > 0;
        j->state = JOB_RUNS;
        f->running++;
    }
    if (st != SL_OK) end_job(f, j);
    return st;
}

static void stop_lanes(fetch *f, const job *j) {
    for (uint32_t i = 0; i < f->s->connections; i++) {
        if (!f->lane[i].job || (j && f->lane[i].job != j)) continue;
        sl_hub_http_stop(f->http, &f->lane[i].call);
        f->lane[i].job = NULL;
    }
}

/* The file begins anew. */
static sl_status restart(fetch *f, job *j, sl_err *err) {
    stop_lanes(f, j);
    sl_hub_checker_leave(f->checker, j->place);
    sl_status st = sl_hub_part_reset(&j->part, j->no_ranges, err);
    if (st == SL_OK) st = start_pieces(f, j, err);
    if (st == SL_OK) return SL_OK;
    j->state = JOB_WAITS; /* it is at the checker no more */
    f->running--;
    return st;
}

/* The digest is there: the file takes its place, or goes. */
static sl_status settle(fetch *f, job *j, const char *id, sl_status st, sl_err *err) {
    if (st != SL_OK) return sl_err_prefix(err, "%s", j->part.path);
    if (strcmp(id, j->file->id) != 0) {
        bool again = j->resumed && !j->again; /* what lay there may have been damaged */
        j->again = true;
        if (again) return restart(f, j, err);
        unlink(j->part.path);
        unlink(j->part.state_path);
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: %s of what came is %s, the hub says %s; the bytes were removed",
                       j->file->name, strlen(id) == 64 ? "SHA-256" : "git's SHA-1", id,
                       j->file->id);
    }
    st = sl_hub_part_finish(&j->part, j->blob, err);
    sl_hub_checker_leave(f->checker, j->place);
    f->running--;
    finish_job(j);
    end_job(f, j);
    return st;
}

/* ---- pieces over connections ---- */

static bool take_bytes(void *ctx, const uint8_t *bytes, size_t n) {
    lane *l = ctx;
    job *j = l->job;
    uint64_t left = sl_hub_part_length(&j->part, l->piece) - j->part.done[l->piece];
    if (n > left) {
        l->st = sl_fail(&l->err, SL_ERR_FORMAT, "%s: more bytes came than the %llu of the file",
                        j->file->name, (unsigned long long)j->file->bytes);
        return false;
    }
    l->st = sl_hub_part_write(&j->part, l->piece, bytes, n, &l->err);
    l->got += n;
    l->f->report->fetched += n;
    return l->st == SL_OK;
}

static sl_status start_lane(fetch *f, lane *l, job *j, uint32_t i, sl_err *err) {
    char url[8192], name[3 * SL_HUB_MAX_NAME + 4];
    uint64_t begin = sl_hub_part_begin(&j->part, i), done = j->part.done[i];
    if (j->no_ranges && done) { /* what came of it is of no use; that it was tried, is */
        piece was = j->piece[i];
        sl_status st = restart(f, j, err);
        if (st != SL_OK) return st;
        j->piece[i] = was;
        done = 0;
    }
    if (!sl_hub_escape(j->file->name, true, name, sizeof name))
        return sl_fail(err, SL_ERR_LIMIT, "%s: name", j->file->name);
    snprintf(url, sizeof url, "%s/%s/%s/resolve/%s/%s", f->s->endpoint, f->name->org,
             f->name->model, f->report->commit, name);
    bool whole = begin + done == 0 && j->part.n == 1;
    *l = (lane){.f = f, .job = j, .piece = i};
    l->call = (sl_hub_call){.from = begin + done,
                            .bytes = whole ? 0 : sl_hub_part_length(&j->part, i) - done,
                            .total = j->file->bytes,
                            .on_body = take_bytes,
                            .ctx = l};
    j->piece[i].busy = true;
    if (!j->piece[i].since_ns) j->piece[i].since_ns = sl_now_ns();
    sl_status st = sl_hub_http_start(f->http, &l->call, url, err);
    if (st != SL_OK) l->job = NULL;
    return st;
}

static bool is_due(const job *j, uint32_t i, uint64_t now) {
    return !j->piece[i].busy && now >= j->piece[i].after_ns &&
           j->part.done[i] < sl_hub_part_length(&j->part, i);
}

/* Work for a free connection: pieces in their order, files in theirs. *l stays free where there is
 * none now. */
static sl_status employ(fetch *f, lane *l, uint64_t now, sl_err *err) {
    for (size_t k = 0; k < f->n; k++) {
        job *j = &f->job[k];
        if (j->state == JOB_WAITS && f->running < f->s->connections) {
            sl_status st = start_job(f, j, now, err);
            if (st != SL_OK) return st;
        }
        for (uint32_t i = 0; j->state == JOB_RUNS && i < j->part.n; i++)
            if (is_due(j, i, now)) return start_lane(f, l, j, i, err);
    }
    return SL_OK;
}

/* A call has ended, with or without all of its piece. */
static sl_status take_answer(fetch *f, lane *l, uint64_t now, sl_err *err) {
    job *j = l->job;
    piece *p = &j->piece[l->piece];
    l->job = NULL;
    p->busy = false;
    sl_status st = sl_hub_part_save(&j->part, l->piece, err);
    if (st != SL_OK) return st;
    if (l->st != SL_OK) {
        *err = l->err;
        return l->st;
    }
    if (j->part.done[l->piece] == sl_hub_part_length(&j->part, l->piece)) return SL_OK;
    if (l->call.no_ranges && !j->no_ranges) {
        j->no_ranges = true;
        return restart(f, j, err);
    }
    bool short_one = l->call.st == SL_OK && (l->call.status == 200 || l->call.status == 206);
    /* Where all comes anew each time, only more than ever is a step. */
    bool moved = l->got > (j->no_ranges ? j->most : 0);
    j->most = SL_MAX(j->most, l->got);
    p->tries = moved ? 1 : p->tries + 1;
    if (moved) p->since_ns = now;
    if (sl_hub_may_wait(f->s, p->since_ns) && (short_one || sl_hub_call_may_retry(&l->call))) {
        p->after_ns = now + sl_hub_wait_ns(p->tries, l->call.retry_s);
        return SL_OK;
    }
    if (short_one)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %s ends before the %llu bytes that the hub says",
                       j->file->name, f->s->endpoint, (unsigned long long)j->file->bytes);
    return sl_hub_call_refused(&l->call, f->s, f->name, j->file->name, err);
}

/* A file that was there in full but for its digest brings no bytes for as long as it is read: a
 * large one for longer than others wait for a lock in whose blob nothing moves. */
static void show_life(fetch *f, job *j, uint64_t now) {
    uint64_t hashed = sl_hub_checker_hashed(f->checker, j->place);
    if (hashed == j->hashed || (j->beat_ns && now - j->beat_ns < BEAT_NS)) return;
    sl_hub_part_touch(&j->part);
    j->hashed = hashed;
    j->beat_ns = now;
}

static sl_status look_at_jobs(fetch *f, bool *all, sl_err *err) {
    uint64_t have = 0, total = 0, now = sl_now_ns();
    bool waits = false;
    *all = true;
    for (size_t i = 0; i < f->n; i++) {
        job *j = &f->job[i];
        char id[SL_HUB_ID + 1];
        sl_status st = SL_OK;
        if (j->state == JOB_RUNS) {
            j->have = sl_hub_part_have(&j->part);
            sl_hub_checker_front(f->checker, j->place, sl_hub_part_front(&j->part));
            show_life(f, j, now);
            if (sl_hub_checker_ended(f->checker, j->place, id, &st, err))
                st = settle(f, j, id, st, err);
            if (st != SL_OK) return st;
        }
        *all = *all && j->state == JOB_DONE;
        waits = waits || (j->state == JOB_WAITS && j->moved_ns);
        have += j->have;
        total += j->file->bytes;
    }
    const char *note = f->running && have == total ? "compares digests" : "";
    sl_progress_say(f->progress, waits && f->running == 0 ? "waits for another process" : note);
    sl_progress_set(f->progress, have, total);
    return SL_OK;
}

static sl_status turn(fetch *f, sl_err *err) {
    uint64_t now = sl_now_ns();
    sl_status st = SL_OK;
    bool busy = false;
    for (uint32_t i = 0; st == SL_OK && i < f->s->connections; i++) {
        if (!f->lane[i].job) st = employ(f, &f->lane[i], now, err);
        busy = busy || f->lane[i].job;
    }
    /* Where only digests are waited for, no connection wakes us. */
    int wait_ms = !busy && f->running ? TURN_MS / 20 : TURN_MS;
    sl_hub_call *ended = st == SL_OK ? sl_hub_http_turn(f->http, wait_ms) : NULL;
    for (; st == SL_OK && ended; ended = sl_hub_http_turn(f->http, 0))
        st = take_answer(f, ended->ctx, sl_now_ns(), err);
    return st;
}

/* The snapshot gets its names when all bytes are there, and those of weights last: whoever finds
 * them finds the whole. */
static sl_status link_all(fetch *f, sl_err *err) {
    sl_status st = SL_OK;
    for (int last = 0; last < 2; last++)
        for (size_t i = 0; st == SL_OK && i < f->n; i++)
            if (sl_hub_is_weights(f->job[i].file->name) == (last == 1))
                st = sl_hub_link(f->s, f->name, f->report->commit, f->job[i].file, err);
    return st;
}

/* Brings all that is wanted and not there. */
static sl_status bring(fetch *f, const sl_hub_listing *l, sl_err *err) {
    sl_status st = SL_OK;
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) n += l->file[i].wanted;
    f->n = 0;
    f->job = sl_alloc(n, sizeof *f->job);
    if (!f->job) return sl_fail(err, SL_ERR_NOMEM, "%zu files", n);
    for (size_t i = 0; st == SL_OK && i < l->n; i++) {
        if (!l->file[i].wanted) continue;
        job *j = &f->job[f->n++];
        *j = (job){.file = &l->file[i], .lock = -1};
        st = sl_hub_path(f->s, f->name, j->blob, err, "blobs/%s", j->file->id);
        if (st == SL_OK && f->s->verify && is_there(j)) st = verify(f, j, err);
        if (st == SL_OK && is_there(j)) finish_job(j);
    }
    if (st == SL_OK) st = sl_hub_make_folders(f->job[0].blob, err);
    if (st == SL_OK) st = check_room(f, err);
    for (bool all = false; st == SL_OK && !all;) {
        st = turn(f, err);
        if (st == SL_OK) st = look_at_jobs(f, &all, err);
    }
    if (st == SL_OK) st = link_all(f, err);
    stop_lanes(f, NULL);
    for (size_t i = 0; i < f->n; i++) {
        job *j = &f->job[i];
        sl_err late;
        for (uint32_t k = 0; j->state == JOB_RUNS && k < j->part.n; k++)
            if (sl_hub_part_save(&j->part, k, &late) != SL_OK) break; /* less is resumed */
        end_job(f, j);
    }
    sl_free(f->job);
    f->job = NULL;
    return st;
}

static sl_status bring_all(fetch *f, sl_hub_want want, sl_err *err) {
    sl_hub_listing l = {0};
    sl_hub_choice choice = {0};
    char index[SL_HUB_PATH];
    sl_hub_report *r = f->report;
    const char *pattern = f->name->pattern;
    sl_status st = sl_hub_api_list(f->http, f->s, f->name, r->commit, &l, err);
    if (st == SL_OK) st = sl_hub_select(&l, f->what, pattern, want, &choice, err);
    if (st == SL_OK) st = bring(f, &l, err);
    if (st == SL_OK && choice.index) {
        st = sl_hub_path(f->s, f->name, index, err, "snapshots/%s/%s", r->commit, choice.index);
        if (st == SL_OK) st = sl_hub_select_shards(&l, index, err);
        if (st == SL_OK) st = bring(f, &l, err);
    }
    if (st == SL_OK) st = sl_hub_ref_write(f->s, f->name, r->commit, err);
    if (st == SL_OK)
        st = sl_hub_path(f->s, f->name, r->path, err, "snapshots/%s%s%s", r->commit,
                         choice.open ? "/" : "", choice.open ? choice.open : "");
    for (size_t i = 0; i < l.n; i++) {
        r->files += l.file[i].wanted;
        r->bytes += l.file[i].wanted ? l.file[i].bytes : 0;
    }
    sl_hub_listing_free(&l);
    return st;
}

sl_status sl_hub_fetch_all(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                           sl_progress *progress, sl_hub_report *out, sl_err *err) {
    fetch f = {.s = s, .name = name, .progress = progress, .report = out};
    *out = (sl_hub_report){0};
    snprintf(f.what, sizeof f.what, "%s/%s", name->org, name->model);
    f.lane = sl_alloc(s->connections, sizeof *f.lane);
    sl_status st = f.lane ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%u connections", s->connections);
    if (st == SL_OK) st = sl_hub_http_create(s, &f.http, err);
    if (st == SL_OK) st = sl_hub_checker_create(s->connections + 1, &f.checker, err);
    if (st == SL_OK) st = bring_all(&f, want, err);
    sl_hub_http_free(f.http);
    sl_hub_checker_free(f.checker);
    sl_free(f.lane);
    return st;
}
