/* The simulation: coordinator and workers of one deployment in one thread, on a virtual clock, over
 * "loop". Everything that happens follows from the seed. Thread: one. */
#ifndef SL_TESTS_SIM_H
#define SL_TESTS_SIM_H

#include "base/mutate.h"
#include "base/rng.h"
#include "deferred.h"
#include "engine/attn/attn_int.h"
#include "engine/coord/coord_int.h"
#include "format/plan_json.h"

#define SIM_MAX_WORKERS  9u
#define SIM_MAX_REQUESTS 24u
#define SIM_MAX_PROMPT   100u
#define SIM_MAX_NEW      70u
#define SIM_CONTEXT      (SIM_MAX_PROMPT + SIM_MAX_NEW)
#define SIM_SCORED       3u /* ids that reports name, and what those of answers alone have */
#define SIM_REPORTED     (1 + SL_MAX_LOGPROBS + SIM_SCORED)
#define SIM_FAMILIES     8u /* prompts; each with the choices 0..2 */
#define SIM_CHOICES      3u
#define SIM_PROMPTS      (SIM_FAMILIES * SIM_CHOICES)
#define SIM_MAX_EVENTS   36u
#define SIM_MAX_PAGES    256u /* of an attention worker */
#define SIM_PATIENCE_S   20u  /* of the coordinator */
#define SIM_STUCK_S      75u  /* no request hears anything so long: more than the longest stall */

/* What a run of seeds must have met, each at least once: name, and whether it takes a failure. */
#define SIM_COVER(X)                                                                               \
    X(colocated)                                                                                   \
    X(apart)                                                                                       \
    X(several_lanes)                                                                               \
    X(several_chunks)                                                                              \
    X(shared_asas)                                                                                 \
    X(shared_aass)                                                                                 \
    X(inexact)                                                                                     \
    X(bf16_wire)                                                                                   \
    X(fp8_wire)                                                                                    \
    X(delays)                                                                                      \
    X(preempted)                                                                                   \
    X(preempted_and_finished)                                                                      \
    X(preempted_with_penalties)                                                                    \
    X(preempted_with_logprobs)                                                                     \
    X(preempted_with_bad_words)                                                                    \
    X(waited_for_a_place)                                                                          \
    X(pages_grew)                                                                                  \
    X(prompt_in_chunks)                                                                            \
    X(prompt_over_a_page)                                                                          \
    X(too_long_refused)                                                                            \
    X(several_choices)                                                                             \
    X(penalties)                                                                                   \
    X(bias)                                                                                        \
    X(allowed)                                                                                     \
    X(bad_words)                                                                                   \
    X(min_p)                                                                                       \
    X(shape)                                                                                       \
    X(decided_by_a_shape)                                                                          \
    X(guessed)                                                                                     \
    X(guessed_right)                                                                               \
    X(preempted_with_shape)                                                                        \
    X(logprobs)                                                                                    \
    X(prompt_logprobs)                                                                             \
    X(scored_ids)                                                                                  \
    X(logits)                                                                                      \
    X(stopped_by_id)                                                                               \
    X(stopped_by_eos)                                                                              \
    X(cancelled_waiting)                                                                           \
    X(cancelled_running)                                                                           \
    X(cancelled_too_late)                                                                          \
    X(chosen_anew)                                                                                 \
    X(groups_chosen_anew)                                                                          \
    X(lane_closed)                                                                                 \
    X(chosen_anew_and_replanned)                                                                   \
    X(parked)                                                                                      \
    X(slow_coordinator)                                                                            \
    X(slow_worker)                                                                                 \
    X(link_held)                                                                                   \
    X(link_lost)                                                                                   \
    X(cut)                                                                                         \
    X(cut_from_coordinator)                                                                        \
    X(cut_under_load)                                                                              \
    X(cut_in_a_change)                                                                             \
    X(cut_again)                                                                                   \
    X(cut_and_mended)                                                                              \
    X(far)                                                                                         \
    X(damaged)                                                                                     \
    X(damaged_of_coordinator)                                                                      \
    X(thin)                                                                                        \
    X(thin_under_load)                                                                             \
    X(hedged_thin)                                                                                 \
    X(grew_attention)                                                                              \
    X(grew_expert)                                                                                 \
    X(grew_both)                                                                                   \
    X(grew_under_load)                                                                             \
    X(grew_and_lost)                                                                               \
    X(replanned)                                                                                   \
    X(replanned_under_load)                                                                        \
    X(replanned_aep)                                                                               \
    X(replanned_again)                                                                             \
    X(replan_too_late)                                                                             \
    X(replan_not_now)                                                                              \
    X(replanned_without_a_worker)                                                                  \
    X(replan_lost_an_expert)                                                                       \
    X(moved_by_load)                                                                               \
    X(moved_by_load_again)                                                                         \
    X(moved_by_load_defrag)                                                                        \
    X(moved_by_load_mtfs)                                                                          \
    X(moved_by_load_flfs)                                                                          \
    X(moved_by_load_rmf)                                                                           \
    X(load_queued)                                                                                 \
    X(moved_by_load_and_lost)                                                                      \
    X(requeued)                                                                                    \
    X(handed_over)                                                                                 \
    X(handed_over_aep)                                                                             \
    X(prompts_killed)                                                                              \
    X(prompts_not_whole)                                                                           \
    X(kv_kept)                                                                                     \
    X(kv_kept_beside_others)                                                                       \
    X(kv_kept_of_a_prompt)                                                                         \
    X(copied)                                                                                      \
    X(went_on_with_copies)                                                                         \
    X(began_with_pages)                                                                            \
    X(began_with_pages_beside_others)                                                              \
    X(began_with_what_was_drawn)                                                                   \
    X(began_with_pages_of_half_a_prompt)                                                           \
    X(began_with_pages_apart)                                                                      \
    X(began_with_pages_under_pressure)                                                             \
    X(began_with_pages_and_reports)                                                                \
    X(preempted_and_found)                                                                         \
    X(lost_and_found)                                                                              \
    X(drained_and_found)                                                                           \
    X(found_of_who_was_lost)                                                                       \
    X(pages_evicted)                                                                               \
    X(killed_before_its_successor)                                                                 \
    X(rehosted)                                                                                    \
    X(recovered_defrag)                                                                            \
    X(recovered_mtfs)                                                                              \
    X(recovered_flfs)                                                                              \
    X(recovered_rmf)                                                                               \
    X(came_back)                                                                                   \
    X(came_back_under_load)                                                                        \
    X(mended)                                                                                      \
    X(left_out)                                                                                    \
    X(left_out_and_back)                                                                           \
    X(sent_again)                                                                                  \
    X(sent_again_aep)                                                                              \
    X(hedged)                                                                                      \
    X(hedged_aep)                                                                                  \
    X(misjudged)                                                                                   \
    X(hedged_sequencer)                                                                            \
    X(hedged_and_back)                                                                             \
    X(rehosted_slow)                                                                               \
    X(rehosted_slow_aep)                                                                           \
    X(rehosted_slow_and_back)                                                                      \
    X(moved_at_once)                                                                               \
    X(waited_for_its_place)                                                                        \
    X(answered_late)                                                                               \
    X(owner_answered_first)                                                                        \
    X(asked_of_two_and_lost)                                                                       \
    X(sequencer_killed)                                                                            \
    X(drained_attention)                                                                           \
    X(drained_expert)                                                                              \
    X(drained_both)                                                                                \
    X(drained_under_load)                                                                          \
    X(drained_and_moved)                                                                           \
    X(drained_and_joined)                                                                          \
    X(restarted)                                                                                   \
    X(restarted_the_last)                                                                          \
    X(drain_taken_back)                                                                            \
    X(drain_refused)                                                                               \
    X(drain_given_up)                                                                              \
    X(died_while_it_drained)                                                                       \
    X(attention_killed)                                                                            \
    X(expert_killed)                                                                               \
    X(two_killed)                                                                                  \
    X(killed_while_starting)                                                                       \
    X(silence)                                                                                     \
    X(poison_found)                                                                                \
    X(suspect_cleared)                                                                             \
    X(suspects_go_on_beside)                                                                       \
    X(died_with_error)                                                                             \
    X(survived_a_failure)                                                                          \
    X(refused_after_failure)

typedef enum sim_cover {
#define SIM_COVER_ENUM(name) COVER_##name,
    SIM_COVER(SIM_COVER_ENUM)
#undef SIM_COVER_ENUM
        COVER_COUNT
} sim_cover;

typedef struct sim_prompt {
    uint32_t ids[SIM_MAX_PROMPT], n;
    sl_sampling sampling;
    sl_logit_bias bias[3];
    sl_shared *shape; /* of its answers, which never end by it; NULL: anything */
} sim_prompt;

/* What a prompt's request says when it is alone: nothing ends it before SIM_MAX_NEW tokens. */
typedef struct sim_answer {
    uint32_t ids[SIM_MAX_NEW];
    sl_logprob logprobs[SIM_MAX_NEW][SIM_REPORTED];
    sl_logprob prompt[SIM_MAX_PROMPT][SIM_REPORTED]; /* from position 1 on */
    uint64_t logits[SIM_CONTEXT];                    /* hash by position; not the last one */
} sim_answer;

typedef struct sim sim;

typedef struct sim_request {
    sim *s;
    const sim_prompt *p;
    const sim_answer *want;
    uint32_t given; /* first tokens of the answer that are in its prompt: a talk that goes on */
    uint32_t max_tokens, stop[2], n_stop, n_top, n_scored;
    bool shares; /* its KV pages with others of the same... */
    uint8_t tenant;
    bool ignore_eos, logprobs, prompt_logprobs, logits, too_long;
    bool poison; /* a worker that computes it after `fatal` tokens crashes */
    uint32_t fatal;
    bool suspected;                      /* seen in the ledger */
    uint64_t submit_at_us, cancel_at_us; /* 0: never */
    uint32_t cancel_at_n;                /* after so many tokens; 0: never */
    uint64_t id;
    bool submitted, refused, cancelled;
    bool preempted, ran, stayed; /* seen in the ledger */
    uint32_t worker;             /* where it runs; SL_NO_WORKER: it waits */
    uint32_t last_worker;        /* where it ran last */
    uint32_t n, n_prompt_reported, ends;
    bool wrong; /* something that it was told differs from `want` */
    sl_finish finish;
    sl_status status;
    char message[160];
} sim_request;

typedef enum sim_event_kind {
    SIM_KILL,
    SIM_SILENCE,
    SIM_STALL,
    SIM_HOLD,
    SIM_REPLAN,
    SIM_LEAVE,
    SIM_RESTART,
    SIM_RETURN,
    SIM_CUT,
    SIM_DAMAGE,
    SIM_THIN
} sim_event_kind;

typedef struct sim_event {
    sim_event_kind kind;
    uint32_t a, b;          /* workers; n_workers: the coordinator */
    uint64_t at_us, for_us; /* of damage the latter is the bit */
    uint64_t bytes_per_s;   /* of a thin link */
    bool done;
    sl_replan replan; /* what became of it */
    sl_wish wish;     /* the same */
    bool under_load;
    bool grows; /* into a free place */
} sim_event;

struct sim {
    uint64_t seed, rng, now_us, trace; /* trace: hash of all that happened */
    sl_engine *engine;
    sl_plan plan; /* as started; owner is not kept */
    sl_worker_opts opts[SIM_MAX_WORKERS];
    sl_worker *worker[SIM_MAX_WORKERS];
    char address[SIM_MAX_WORKERS + 1][96];
    uint8_t *kv[SIM_MAX_WORKERS]; /* the coordinator's view of its pages; NULL: they die with it */
    bool silent[SIM_MAX_WORKERS]; /* alive, but never scheduled again */
    uint64_t stalled_until_us[SIM_MAX_WORKERS + 1];
    uint32_t n_workers, n_first; /* places; those that are not free at first: they come first */
    uint32_t slow;               /* this actor moves rarely; UINT32_MAX: none */
    uint32_t idle, idle_jump_us;
    bool pressure;
    sim_request request[SIM_MAX_REQUESTS];
    uint32_t n_requests;
    sim_event event[SIM_MAX_EVENTS];
    uint32_t n_events;
    uint64_t settle_until_us, progress_us; /* the latter: when a request was told something */
    bool failure;                          /* something went wrong, on purpose */
    bool moved;                            /* experts, so that without --exact last bits differ */
    bool poisonous;                        /* some requests are */
    uint32_t delay_us;                     /* of a message, at most */
    uint64_t n_hedged, n_rehosted;         /* verdicts, as last seen */
    bool awaits;                           /* experts of who is lost wait for its next process */
    bool hedged[SIM_MAX_WORKERS];          /* left out, as others waited for it */
    bool doubled;                          /* every expert has two hosts, whatever the plan */
    uint32_t kills;                        /* of expert workers; another failure counts as two */
    bool starved;                          /* attention or experts were nowhere, not even coming */
    bool spawns; /* the coordinator starts and kills workers; else another one comes by itself */
    uint64_t returns_us[SIM_MAX_WORKERS]; /* another one comes then; 0: none */
    uint64_t dies_us[SIM_MAX_WORKERS];    /* the one at this place was killed, and ends then */
    sl_worker *zombie[SIM_MAX_WORKERS];   /* that one, if another one came before */
    bool rejoins[SIM_MAX_WORKERS];        /* when it ends, as it has lost the coordinator */
    uint32_t n_cut;                       /* links */
    bool crashed[SIM_MAX_WORKERS];        /* which the coordinator is to hear of, after... */
    uint64_t loss[SIM_MAX_WORKERS];       /* ...the loss that comes after this one */
    bool returned;
    bool paused; /* on purpose, as the last worker of a role restarts */
    bool seen[COVER_COUNT];
    deferred_maker devices; /* seed 0: workers compute on the CPU */
    bool verbose;
    char what[240]; /* why it failed */
};

extern sl_model_spec sim_spec;
extern const uint32_t sim_scored[SIM_SCORED];
extern const char *sim_folder;

static inline uint32_t sim_below(sim *s, uint32_t n) {
    return (uint32_t)sl_rng_below(&s->rng, n);
}
/* True once in n times. */
static inline bool sim_once_in(sim *s, uint32_t n) {
    return sim_below(s, n) == 0;
}
static inline bool sim_is(const sim *s, uint32_t worker, uint32_t role) {
    return worker < s->n_workers && (s->plan.worker[worker].roles & role);
}

static inline uint32_t sim_prompt_of(const sim_request *r) {
    return r->p->n + r->given;
}

/* All are on one machine: who stands still counts as dead after 10 s, else after 2. */
static inline bool sim_is_near(const sim *s) {
    return s->seed % 12 == 1 || s->devices.windows;
}

/* world.c: a deployment on the virtual clock */
/* Records why the seed failed, the first time; returns false. */
bool sim_fail(sim *s, const char *fmt, ...) SL_PRINTF(2, 3);
/* A line of the trace: goes into the hash, and is printed with --verbose. */
void sim_say(sim *s, const char *fmt, ...) SL_PRINTF(2, 3);
/* The plan is s->plan. False: see s->what. */
bool sim_start(sim *s, uint64_t delay_seed, uint32_t delay_us);
bool sim_await_serving(sim *s);
/* One randomly chosen actor moves; when all were idle for a while, time jumps. */
void sim_turn(sim *s);
void sim_remove_worker(sim *s, uint32_t i, bool crash);
/* The one that was killed ends. */
void sim_bury_worker(sim *s, uint32_t i);
/* The same for a crash in the middle of whatever it does: of its KV only rows that it is through
 * with are as they were. */
void sim_tear_worker(sim *s, uint32_t i);
/* Another process in its place, as at first. */
bool sim_start_worker(sim *s, uint32_t i);
/* Somebody with this role lives, or comes. */
bool sim_has(const sim *s, uint32_t role);
/* The side for prompts has whom it needs. */
bool sim_has_prefill(const sim *s);
void sim_stop(sim *s);

/* reference.c: what every prompt's answer must be */
/* The prompts that the seeds of this block use. */
const sim_prompt *sim_prompts(uint64_t block);
/* The answer to prompts[i] alone, computed at its first use. Under --exact it depends on the wire
 * only, else also on how many expert workers share the experts. NULL: see s->what. */
const sim_answer *sim_reference(sim *s, uint32_t i);
uint64_t sim_hash(const void *data, size_t n);

/* story.c: who asks what, and what goes wrong when */
/* Fills s->plan. */
bool sim_draw_plan(sim *s);
bool sim_draw_requests(sim *s);
void sim_draw_events(sim *s);
bool sim_do_requests(sim *s);
void sim_do_events(sim *s);
/* Requests that crash whoever computes them do so. */
void sim_do_poison(sim *s);
/* Worker i has stopped as it was told to: it comes back, if that was wanted. */
void sim_on_stopped(sim *s, uint32_t i);
bool sim_is_over(const sim *s);
/* By the plan that holds. */
bool sim_is_sequencer(const sim *s, uint32_t worker);
bool sim_submit(sim *s, sim_request *r);

/* At a time from now on. */
void sim_add_event(sim *s, sim_event_kind kind, uint32_t a, uint32_t b, uint64_t at_us,
                   uint64_t for_us);

/* links.c: faults of links, and growth */
/* Free places of s->plan, which the rest is drawn without. */
bool sim_draw_spares(sim *s);
void sim_add_thin(sim *s, uint32_t a, uint32_t b, uint64_t at_us, uint64_t for_us,
                  uint64_t bytes_per_s);
void sim_draw_links(sim *s, uint32_t span_us);
void sim_strike_link(sim *s, sim_event *e);
/* Another one comes in place of worker i, which has lost the coordinator. */
bool sim_rejoins(sim *s, uint32_t i);

/* check.c: what must hold */
void sim_on_event(void *ctx, const sl_request_event *ev);
void sim_on_logits(void *ctx, uint64_t first, uint32_t n, const float *logits);
/* After each move of the coordinator: pages, and where requests are. */
bool sim_check_ledger(sim *s);
/* After each move of an attention worker. */
void sim_look_at_slots(sim *s, uint32_t i);
/* No lane of a living worker is in a round, no change of plans is under way. */
bool sim_is_quiet(const sim *s);
bool sim_check_end(sim *s);

#endif
