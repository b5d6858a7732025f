/* A thread of low priority for one piece of work, and the wait for it. */
#include "base/quiet.h"

#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NICE        10
#define LOOK_MIN_US 50u
#define LOOK_MAX_US 1000u

bool sl_quiet_thread(void) {
    return setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE) == 0;
}

bool sl_quiet_process(int pid) {
    return setpriority(PRIO_PROCESS, (id_t)pid, NICE) == 0;
}

typedef struct task {
    sl_quiet_work work;
    void *ctx;
    bool loud; /* at the caller's priority */
    bool done;
    atomic_bool hurry, over;
} task;

/* Where nobody else wants the core, and gives it back to whoever wakes up. A thread that is only
 * niced keeps it for a time slice: 3.6 ms at each wait of a worker for rows, and a token has sixty
 * such waits. Best effort: without the system's leave it is as loud as a niced one. */
static void be_idle(void) {
    const struct sched_param none = {0};
    if (sched_setscheduler((pid_t)syscall(SYS_gettid), SCHED_IDLE, &none) != 0)
        (void)sl_quiet_thread();
}

static void *run(void *arg) {
    task *t = arg;
    if (!t->loud) be_idle(); /* else it is as loud as the caller would be */
    t->done = t->work(t->ctx, t->loud ? NULL : &t->hurry);
    /* Release: pairs with the acquire of who waits, publishes what the work wrote. */
    atomic_store_explicit(&t->over, true, memory_order_release);
    return NULL;
}

static void look(const sl_quiet *q) {
    uint32_t us = LOOK_MAX_US;
    if (q->tick && q->tick_us < us) us = q->tick_us < LOOK_MIN_US ? LOOK_MIN_US : q->tick_us;
    const struct timespec pause = {.tv_nsec = us * 1000l};
    nanosleep(&pause, NULL);
    if (q->tick) q->tick(q->ctx);
}

/* False: it was given up. */
static bool run_one(const sl_quiet *q, task *t) {
    uint64_t until_ns = sl_now_ns() + q->at_most_ms * 1000000ull;
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, t) != 0) return t->work(t->ctx, NULL);
    while (!atomic_load_explicit(&t->over, memory_order_acquire)) {
        look(q);
        if (sl_now_ns() >= until_ns) atomic_store_explicit(&t->hurry, true, memory_order_relaxed);
    }
    pthread_join(thread, NULL);
    return t->done;
}

void sl_quiet_run(const sl_quiet *q, sl_quiet_work work, void *ctx) {
    task low = {.work = work, .ctx = ctx}, loud = {.work = work, .ctx = ctx, .loud = true};
    if (q->loud || !run_one(q, &low)) (void)run_one(q, &loud);
}
