/* Expert workers are lost and come back, links between live workers break: steps are given up, and changes
 * of plans take in who is there, as in src/sched/change.h and src/sched/recover.h.
 *
 * NA attention workers of one lane, NE expert workers. A step is a word to the sequencer, the lowest expert
 * worker of the plan, and its answer, then rows to every expert worker of the plan and their replies; how
 * rounds are agreed on is in membership.pml. Each attention worker has STEPS. At most LOSSES expert workers
 * are lost, RETURNS come back, CUTS links break, DEATHS attention workers die, and FAILS changes are given
 * up for no reason seen here: every run ends. Then every attention worker that lives is through its steps
 * by a plan of those who are there, unless there is nobody left to compute.
 *
 * Channels are per pair. When a link ends, what is under way on it is lost, or has come and is read later.
 * The change makes links anew. Words of the coordinator are steps of its own, in any order of workers;
 * answers are seen at once, since what they say stays true.
 *
 * BUG_x plants a fault that a check must find; COVER_x fails when a situation is reached. */
#ifndef NA
#define NA 2
#endif
#ifndef NE
#define NE 2
#endif
#ifndef STEPS
#define STEPS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif
#ifndef RETURNS
#define RETURNS 1
#endif
#ifndef CUTS
#define CUTS 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef FAILS
#define FAILS 0
#endif

#define PLANS (2 + 2 * LOSSES + 2 * RETURNS + 2 * CUTS + FAILS)
#define BIT(i) (1 << (i))
#define ALL_A (BIT(NA) - 1)
#define ALL_E (BIT(NE) - 1)
#define UP(a, e) up[(a) * NE + (e)]
#define DOWN(a, e) down[(a) * NE + (e)]
/* Of a set of at most 3 that is not empty. */
#define LOWEST(s) (((s) & 1) -> 0 : (((s) & 2) -> 1 : 2))
#define HIGHEST(s) (((s) & 4) -> 2 : (((s) & 2) -> 1 : 0))
#define HOST(p) HIGHEST(set[p]) /* of the expert that is asked for */
#ifdef BUG_OLD_SEQUENCER
#define SEQUENCER(p) 0
#else
#define SEQUENCER(p) LOWEST(set[p])
#endif

mtype = {JOIN, OPEN, ROWS, REPLY};
chan up[NA * NE] = [2] of {mtype, byte /*epoch*/, byte /*ghost: which attempt at a step*/};
chan down[NA * NE] = [2] of {mtype, byte, byte};

byte set[PLANS];                 /* expert workers of each plan; its number is its epoch */
byte plan_of[NA], plan_at[NE];   /* the epoch that each is in */
byte open[NA];                   /* to whom it has a link */
byte lost = 0;                   /* attention workers that have lost one which their plan needs */
byte hold = 0, breaks = 0;       /* that were told to */
byte gave_up = 0;                /* a step: they begin none until they take a plan */
byte idle = ALL_A;               /* nothing is under way that counts */
byte ended = 0;                  /* all steps are through */
byte a_dead = 0, e_dead = 0;     /* really */
byte gone = 0;                   /* expert workers that the coordinator knows to be lost */
byte ready = 0;                  /* those that came back and are in no plan yet */
byte missed = 0;                 /* those that the plan that holds has, and that are lost */
byte hosts;                      /* that can compute what is asked for */
byte returned = 0;               /* ghost: that ever came back */
bit mend = 0;                    /* a link broke between two that live */
byte plan = 0;                   /* that holds */

/* ---- attention worker ---- */

inline hear(a, e) {
    atomic {
        nempty(DOWN(a, e)) && !(a_dead & BIT(a)) ->
        DOWN(a, e)?kind, p, t;
        if
#ifndef BUG_NO_EPOCH
        :: p != plan_of[a] || (gave_up & BIT(a)) -> /* dropped */
#ifdef COVER_STALE
            assert(false)
#else
            skip
#endif
        :: p == plan_of[a] && !(gave_up & BIT(a)) ->
#else
        :: true ->
#endif
            assert(t == attempt && !(got & BIT(e)) && !(idle & BIT(a)));
            assert((kind == REPLY) == opened);
            if
            :: kind == OPEN -> opened = 1
            :: kind == REPLY -> got = got | BIT(e)
            fi
        fi;
        kind = 0; p = 0; t = 0
    }
}

inline end_step(a) {
    opened = 0; got = 0; sent = 0;
    idle = idle | BIT(a)
}

#define ALIVE(a) !(a_dead & BIT(a))

proctype attention(byte a) {
    byte p, t, attempt, got, sent, done;
    bit opened;
    mtype kind;

end_idle:
    do
    :: atomic { (a_dead & BIT(a)) -> goto end_gone }
    :: hear(a, 0)
#if NE > 1
    :: hear(a, 1)
#endif
#if NE > 2
    :: hear(a, 2)
#endif
    :: atomic { (lost & ~gave_up & BIT(a)) && ALIVE(a) -> gave_up = gave_up | BIT(a) }
    :: atomic {
        !((hold | gave_up | lost) & BIT(a)) && ALIVE(a) && done < STEPS && nfull(UP(a, SEQUENCER(plan_of[a]))) ->
        idle = idle & ~BIT(a);
        attempt++;
        if
        :: open[a] & BIT(SEQUENCER(plan_of[a])) -> UP(a, SEQUENCER(plan_of[a]))!JOIN, plan_of[a], attempt
        :: else
        fi
       };
       do
       :: atomic { (a_dead & BIT(a)) -> goto end_gone }
       :: hear(a, 0)
#if NE > 1
       :: hear(a, 1)
#endif
#if NE > 2
       :: hear(a, 2)
#endif
       :: atomic { /* rows leave one by one */
            opened && ALIVE(a) && sent < NE && nfull(UP(a, sent)) ->
            if
            :: (set[plan_of[a]] & open[a] & BIT(sent)) && !(lost & BIT(a)) -> UP(a, sent)!ROWS, plan_of[a], attempt
            :: else
            fi;
            sent++
          }
       :: atomic {
            opened && sent == NE && got == set[plan_of[a]] && ALIVE(a) ->
            end_step(a);
            done++;
            if
            :: done == STEPS -> ended = ended | BIT(a)
            :: else
            fi;
            break
          }
       :: atomic {
            ((lost | breaks) & BIT(a)) && ALIVE(a) ->
            end_step(a);
            gave_up = gave_up | BIT(a);
            break
          }
       od
    od;
end_gone:
    skip
}

/* ---- expert worker ---- */

inline answer(a) {
    atomic {
        nempty(UP(a, e)) && !(e_dead & BIT(e)) && nfull(DOWN(a, e)) ->
        UP(a, e)?kind, p, t;
        if
        :: p != plan_at[e] -> assert(p < plan_at[e]) /* nothing comes early */
        :: p == plan_at[e] ->
            assert(set[p] & BIT(e));
            assert(kind != JOIN || e == SEQUENCER(p));
            assert(kind != ROWS || e != HOST(p) || (hosts & BIT(e)));
#ifdef COVER_RETURN
            assert(!(returned & BIT(e)));
#endif
#ifdef COVER_SUCCESSION
            assert(kind != JOIN || e == 0);
#endif
            if
            :: !(open[a] & BIT(e)) -> skip
            :: (open[a] & BIT(e)) && kind == JOIN -> DOWN(a, e)!OPEN, p, t
            :: (open[a] & BIT(e)) && kind == ROWS -> DOWN(a, e)!REPLY, p, t
            fi
        fi;
        kind = 0; p = 0; t = 0
    }
}

proctype expert(byte e) {
    byte p, t;
    mtype kind;
end_serve:
    do
    :: answer(0)
#if NA > 1
    :: answer(1)
#endif
    od
}

/* ---- coordinator ---- */

#define THERE (ALL_E & ~gone)

/* A link is there, to whoever has the place now. */
inline connect(e) {
    i = 0;
    do
    :: i < NA -> open[i] = (a_dead & BIT(i) -> open[i] : open[i] | BIT(e)); i++
    :: i == NA -> break
    od;
    i = 0
}

/* The end of expert worker e is taken note of. */
inline on_lost(e) {
    gone = gone | BIT(e);
    ready = ready & ~BIT(e);
    left = left | BIT(e);
    missed = missed | (set[plan] & BIT(e))
}

inline on_new_plan(e) {
    plan_at[e] = next;
    hosts = (e == HOST(next) -> hosts : hosts & ~BIT(e))
}

inline on_take(a) {
    plan_of[a] = next;
    gave_up = gave_up & ~BIT(a);
    breaks = breaks & ~BIT(a);
    lost = ((set[next] & ~open[a]) == 0 -> lost & ~BIT(a) : lost | BIT(a));
#ifdef BUG_GO_EARLY
    hold = hold & ~BIT(a)
#else
    skip
#endif
}

#define TOOK_E(x) (plan_at[x] == next || !(set[next] & ~left & BIT(x)))
#define TOOK_A(x) (plan_of[x] == next || (a_dead & BIT(x)))
#ifdef BUG_MISS_NOBODY
#define DUE (ready != 0 || mend)
#else
#define DUE (missed != 0 || ready != 0 || mend)
#endif

proctype coordinator() {
    byte next, left, i, fails;
    bit broken, mending;

end_rest:
    do
    :: atomic { e_dead & ~gone & 1 -> on_lost(0) }
#if NE > 1
    :: atomic { e_dead & ~gone & 2 -> on_lost(1) }
#endif
#if NE > 2
    :: atomic { e_dead & ~gone & 4 -> on_lost(2) }
#endif
#ifdef BUG_REJOIN_NOW
    :: atomic { ready != 0 -> connect(LOWEST(ready)); missed = 0; ready = 0; lost = 0; gave_up = 0; hosts = hosts | returned }
#endif
    :: atomic {
        DUE && THERE != 0 && (ALL_A & ~a_dead) != 0 ->
        next++;
        assert(next < PLANS);
        set[next] = THERE;
        left = 0;
        broken = missed != 0 || mend;
        mending = mend;
        mend = 0;
        hosts = hosts | (BIT(HOST(next)) & ~e_dead); /* what PLAN gives is mapped, links are made */
        if
        :: set[next] & ~e_dead & 1 -> connect(0)
        :: else
        fi;
#if NE > 1
        if
        :: set[next] & ~e_dead & 2 -> connect(1)
        :: else
        fi;
#endif
#if NE > 2
        if
        :: set[next] & ~e_dead & 4 -> connect(2)
        :: else
        fi;
#endif
        skip
       };
       do
       :: atomic { ~hold & ~a_dead & 1 -> hold = hold | 1; breaks = (broken -> breaks | 1 : breaks) }
#if NA > 1
       :: atomic { ~hold & ~a_dead & 2 -> hold = hold | 2; breaks = (broken -> breaks | 2 : breaks) }
#endif
       :: atomic { (ALL_A & ~a_dead & ~(hold & idle)) == 0 && (ALL_A & ~a_dead) != 0 -> goto take }
       /* somebody of the new plan is lost, a link breaks, or a deadline passes */
       :: atomic { (e_dead & ~gone & set[next] & 1) -> on_lost(0); goto fail }
#if NE > 1
       :: atomic { (e_dead & ~gone & set[next] & 2) -> on_lost(1); goto fail }
#endif
#if NE > 2
       :: atomic { (e_dead & ~gone & set[next] & 4) -> on_lost(2); goto fail }
#endif
       :: atomic { mend && !broken -> goto fail }
       :: atomic { (ALL_A & ~a_dead) == 0 -> goto fail }
       :: atomic { fails < FAILS -> fails++; goto fail }
       od;
take:
       do
       :: atomic { (e_dead & ~gone & 1) -> on_lost(0) }
       :: atomic { !TOOK_E(0) && !(e_dead & 1) -> on_new_plan(0) }
#if NE > 1
       :: atomic { (e_dead & ~gone & 2) -> on_lost(1) }
       :: atomic { !TOOK_E(1) && !(e_dead & 2) -> on_new_plan(1) }
#endif
#if NE > 2
       :: atomic { (e_dead & ~gone & 4) -> on_lost(2) }
       :: atomic { !TOOK_E(2) && !(e_dead & 4) -> on_new_plan(2) }
#endif
       :: atomic { !TOOK_A(0) -> on_take(0) }
#if NA > 1
       :: atomic { !TOOK_A(1) -> on_take(1) }
#endif
       :: atomic {
            TOOK_E(0) && TOOK_E(NE - 1) && TOOK_E(NE / 2) && TOOK_A(0) && TOOK_A(NA - 1) ->
            plan = next;
            ready = ready & ~(set[plan] & ~left);
            missed = set[plan] & left;
            goto go
          }
       od;
fail:
       atomic {
#ifndef BUG_FORGET_MEND
        mend = mend || mending;
#endif
        hosts = hosts & BIT(HOST(plan));
#ifdef BUG_UNHOLD
        gave_up = 0;
#endif
        skip
       };
go:
       do
       :: atomic { hold & 1 -> hold = hold & ~1; breaks = breaks & ~1 }
#if NA > 1
       :: atomic { hold & 2 -> hold = hold & ~2; breaks = breaks & ~2 }
#endif
       :: atomic { hold == 0 -> mending = 0; break }
       od
    od
}

/* ---- what happens to them ---- */

/* The link ends; what is on it has come, or is lost. */
inline unlink(a, e) {
    open[a] = open[a] & ~BIT(e);
    lost = (set[plan_of[a]] & BIT(e) -> lost | BIT(a) : lost);
    if
    :: true -> skip
    :: true ->
        do
        :: nempty(UP(a, e)) -> UP(a, e)?_, _, _
        :: nempty(DOWN(a, e)) -> DOWN(a, e)?_, _, _
        :: empty(UP(a, e)) && empty(DOWN(a, e)) -> break
        od
    fi
}

/* A process that is gone has read nothing of what was still on its way. */
inline empty_up(a, e) {
    do
    :: nempty(UP(a, e)) -> UP(a, e)?_, _, _
    :: empty(UP(a, e)) -> break
    od
}

inline lose(e) {
    losses++;
    e_dead = e_dead | BIT(e);
    hosts = hosts & ~BIT(e);
    unlink(0, e);
    empty_up(0, e);
#if NA > 1
    unlink(1, e);
    empty_up(1, e);
#endif
    skip
}

inline cut(a, e) {
    cuts++;
    unlink(a, e);
    mend = 1
}

/* Another process: it knows the plan that holds, and is in none. */
inline come_back(e) {
    returns++;
    e_dead = e_dead & ~BIT(e);
    gone = gone & ~BIT(e);
    ready = ready | BIT(e);
    returned = returned | BIT(e);
    plan_at[e] = plan
}

inline die(a) {
    deaths++;
    a_dead = a_dead | BIT(a);
    open[a] = 0
}

#define CAN_CUT(a, e) (cuts < CUTS && (open[a] & BIT(e) & set[plan_of[a]]) && ALIVE(a))

proctype fate() {
    byte losses, returns, cuts, deaths;
end_fate:
    do
    :: atomic { losses < LOSSES && !(e_dead & 1) -> lose(0) }
    :: atomic { returns < RETURNS && (gone & 1) -> come_back(0) }
#if NE > 1
    :: atomic { losses < LOSSES && !(e_dead & 2) -> lose(1) }
    :: atomic { returns < RETURNS && (gone & 2) -> come_back(1) }
#endif
#if NE > 2
    :: atomic { losses < LOSSES && !(e_dead & 4) -> lose(2) }
    :: atomic { returns < RETURNS && (gone & 4) -> come_back(2) }
#endif
#if CUTS
    :: atomic { CAN_CUT(0, 0) -> cut(0, 0) }
#if NE > 1
    :: atomic { CAN_CUT(0, 1) -> cut(0, 1) }
#endif
#endif
#if DEATHS
    :: atomic { deaths < DEATHS && ALIVE(0) -> die(0) }
#endif
    :: break
    od
}

/* When nothing can happen any more. */
proctype judge() {
    timeout -> assert(((ALL_A & ~a_dead & ~ended) == 0 && ((gave_up | hold) & ~a_dead & ALL_A) == 0) ||
                      (ALL_E & ~e_dead) == 0)
}

init {
    byte i;
    atomic {
        set[0] = ALL_E;
        hosts = BIT(HOST(0));
        for (i : 0 .. NA - 1) { open[i] = ALL_E; run attention(i) }
        for (i : 0 .. NE - 1) { run expert(i) }
        run coordinator();
        run fate();
        run judge();
        i = 0
    }
}
