/* Membership of a lane's barrier, as in src/sched/membership.h and docs/membership.md.
 *
 * NA attention workers, NE expert workers (0 is the sequencer), NL lanes, LAYERS MoE layers. The
 * ROUNDSth round of a lane is the last that anybody stays in or joins after, and at most DEATHS
 * attention workers die, so every run ends. A run may only end with every live attention worker idle
 * and every channel empty: a lost JOIN, a barrier that waits for ever or a lane that does not wake
 * all show up as an invalid end state. The rest is assertions.
 *
 * Channels are per pair and lane. Workers really have one ordered channel a pair; splitting it allows
 * more orders, so what holds here holds there. What the sequencer tells another expert worker (DEAD,
 * one message for all lanes, and ROUND_SET) is one ordered channel. A message of a round that was not
 * announced yet stays in its channel, as the engine keeps it aside.
 *
 * Steps that nobody can tell apart from a delayed or lost message are merged, to keep the state space
 * small: a member sends one layer to all expert workers at once (or dies after any part of it) and
 * takes all replies of a layer at once; messages to the dead vanish.
 *
 * With EPOCHS the deployment takes so many other plans, as in src/sched/change.h: the coordinator has the
 * attention workers hold, awaits that they are quiet, has everybody take the plan, and lets them go on. A
 * change may be given up before that. In epoch x expert worker x % NE hosts what is asked for: experts
 * move with every plan. RETURNS of the dead come back, as new incarnations, each with a plan: the one way
 * in which an id may be used again. What is said of an earlier incarnation, or in an earlier epoch, is
 * stale; a message of another epoch may only be from somebody who is gone. Words of the coordinator are
 * steps of its own, in any order of workers; answers are seen at once, since what they say stays true.
 *
 * BUG_x plants a fault that a check must find; COVER_x fails when a situation is reached, to show
 * that it is. run.sh knows which must fail. */
#ifndef NA
#define NA 3
#endif
#ifndef NE
#define NE 2
#endif
#ifndef NL
#define NL 2
#endif
#ifndef LAYERS
#define LAYERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef DEATHS
#define DEATHS NA
#endif

#ifndef EPOCHS
#define EPOCHS 0
#endif
#ifndef RETURNS
#define RETURNS 0
#endif

#define MAXR (ROUNDS + NA + 2) /* joiners that came before round ROUNDS may need a few more */
#define LAST (LAYERS - 1)
#define UP(a, e, n) up[((a) * NE + (e)) * NL + (n)]
#define UPR(a, e, n) up_round[((a) * NE + (e)) * NL + (n)]
#define DOWN(a, e, n) down[((a) * NE + (e)) * NL + (n)]
#define EL(e, n) ((e) * NL + (n))
#define RD(e, n, r) (EL(e, n) * MAXR + (r))
#define BIT(a) (1 << (a))

/* Under way at most, asserted to be enough: each death is a word and may open a round at once. */
#define WORDS (NA + DEATHS + 3 * NL * (1 + EPOCHS))

#define ALL ((1 << NA) - 1)
#if EPOCHS
#define HOLDS(a) (hold & BIT(a))
#define UPE(a, e, n) up_epoch[((a) * NE + (e)) * NL + (n)]
#define DOWNE(a, e, n) down_epoch[((a) * NE + (e)) * NL + (n)]
#define IS_STALE(a, e, n) (UPE(a, e, n) != plan_at[e])
#define KNOWS(a, e) (born[a] <= plan_at[e]) /* the incarnation of a that is there now */
/* What an earlier incarnation sent is gone: a send never waits, so that steps stay whole. */
#define IS_FREE(a, e, n) empty(UP(a, e, n))
#define IS_GONE(a, e, n) ((dead & BIT(a)) || born[a] > UPE(a, e, n)) /* who sent this */
#else
#define IS_GONE(a, e, n) (dead & BIT(a))
#define IS_FREE(a, e, n) 1
#define HOLDS(a) 0
#define IS_STALE(a, e, n) 0
#define KNOWS(a, e) 1
#endif

mtype = {JOIN, ROWS, OPEN, REPLY};
chan up[NA * NE * NL] = [1] of {mtype, byte /*round*/, byte /*layer*/, byte /*set*/, bit /*stay*/};
byte up_round[NA * NE * NL]; /* of the message in `up`, 0: JOIN or none */
chan down[NA * NE * NL] = [1] of {mtype, byte /*round*/, byte /*set*/};
#if EPOCHS
byte up_epoch[NA * NE * NL], down_epoch[NA * NE * NL]; /* of the messages there */
chan word[NE] = [WORDS] of {bit /*1: a round, 0: a death*/, byte /*lane; worker*/, byte /*round*/,
                            byte /*set*/, byte /*epoch; when the dead incarnation came*/};
byte plan_of[NA], plan_at[NE]; /* the epoch that attention and expert workers are in */
byte born[NA];                 /* the first epoch of an incarnation */
byte hold = 0;                 /* who joins nothing and stays nowhere */
byte idle[NL];                 /* who is in no round, and has not joined */
byte at_end[NL];               /* whose lane has come to its end */
byte hosts = 1;                /* expert workers that can compute */
#define TELL(e, kind, x, r, s, tag) word[e]!kind, x, r, s, tag
#else
chan word[NE] = [WORDS] of {bit /*1: a round, 0: a death*/, byte /*lane; worker*/, byte /*round*/,
                            byte /*set*/};
#define TELL(e, kind, x, r, s, tag) word[e]!kind, x, r, s
#endif

byte dead = 0;       /* who really is dead */
byte deaths = 0;     /* how many died; DEATHS also when no more will */
byte known[NE];      /* whose death an expert worker was told */

/* sequencer, per lane */
byte seq_round[NL];
byte seq_set[NL];    /* 0: asleep */
byte seq_joiners[NL];
byte seq_voted[NL];
byte seq_stayers[NL];

/* barriers, per expert worker, lane and round */
byte bar_set[NE * NL * MAXR];
byte bar_layer[NE * NL * MAXR];
byte bar_sent[NE * NL * MAXR];
byte bar_opened[NE * NL]; /* the newest round that was announced */

/* ghosts: read by assertions and formulas only */
byte truth[NL * MAXR]; /* the set that the sequencer fixed */
byte left[NL];         /* said LEAVE, no JOIN since */
byte joining[NL];      /* JOIN sent, no round yet */

inline die(a) {
    dead = dead | BIT(a);
    deaths++;
    n_ = 0;
    do
    :: n_ < NL ->
        joining[n_] = joining[n_] & ~BIT(a);
        i_ = 0;
        do
        :: i_ < NE ->
            if
            :: nempty(DOWN(a, i_, n_)) -> DOWN(a, i_, n_)?_, _, _
            :: empty(DOWN(a, i_, n_))
            fi;
            i_++
        :: else -> break
        od;
        n_++
    :: else -> break
    od;
    n_ = 0;
    i_ = 0
}

/* Of a layer's message that member a sends to e. */
inline send_rows(a, e, n, r, l, s, stay) {
    UP(a, e, n)!ROWS, r, l, s, stay;
#if EPOCHS
    UPE(a, e, n) = plan_of[a];
#endif
    UPR(a, e, n) = r
}

/* ---- attention worker, one lane ---- */

proctype member(byte a, n) {
    byte r, s, l, r2, s2, i_, n_;
    bit stay;

end_idle:
    do
    :: atomic { (dead & BIT(a)) -> goto gone }
    :: atomic {
        !(dead & BIT(a)) && !HOLDS(a) && seq_round[n] < ROUNDS && IS_FREE(a, 0, n) ->
        left[n] = left[n] & ~BIT(a);
        joining[n] = joining[n] | BIT(a);
#if EPOCHS
        idle[n] = idle[n] & ~BIT(a);
        UPE(a, 0, n) = plan_of[a];
#endif
        UP(a, 0, n)!JOIN, 0, 0, 0, 0
       };
       if
       :: atomic { (dead & BIT(a)) -> goto gone }
       :: atomic {
            nempty(DOWN(a, 0, n)) && !(dead & BIT(a)) ->
            DOWN(a, 0, n)?OPEN, r, s;
#if EPOCHS
            assert(DOWNE(a, 0, n) == plan_of[a]);
#endif
            assert(s & BIT(a));
            joining[n] = joining[n] & ~BIT(a);
            l = 0;
          }
       fi;
in_round:
       /* one layer goes out, whole or cut off by death */
       atomic {
           if
           :: (dead & BIT(a)) -> goto gone
           :: !(dead & BIT(a)) && IS_FREE(a, 0, n) && IS_FREE(a, NE - 1, n) && IS_FREE(a, NE / 2, n)
           fi;
           if
           :: l == LAST && r < ROUNDS && !HOLDS(a) -> stay = 1
           :: stay = 0
           fi;
           if
           :: l == LAST && !stay -> left[n] = left[n] | BIT(a)
           :: else
           fi;
           if
           :: i_ = 0;
              do
              :: i_ < NE -> send_rows(a, i_, n, r, l, s, stay); i_++
              :: else -> break
              od;
              i_ = 0
           :: deaths < DEATHS ->
              i_ = 0;
              do
              :: i_ < NE -> send_rows(a, i_, n, r, l, s, stay); i_++
              :: i_ < NE -> i_++
              :: i_ == NE -> break
              od;
              die(a);
              goto gone
           fi
       };
       if
       :: atomic { (dead & BIT(a)) -> goto gone }
#if NE == 1 || defined(BUG_NO_WAIT)
       :: atomic { nempty(DOWN(a, 0, n)) && !(dead & BIT(a)) ->
#elif NE == 2
       :: atomic { nempty(DOWN(a, 0, n)) && nempty(DOWN(a, 1, n)) && !(dead & BIT(a)) ->
#else
       :: atomic { nempty(DOWN(a, 0, n)) && nempty(DOWN(a, 1, n)) && nempty(DOWN(a, 2, n)) &&
                   !(dead & BIT(a)) ->
#endif
            DOWN(a, 0, n)?REPLY, r2, s2;
#if EPOCHS
            assert(DOWNE(a, 0, n) == plan_of[a]);
#endif
            i_ = 1;
            do
            :: i_ < NE ->
                if
                :: nempty(DOWN(a, i_, n)) -> DOWN(a, i_, n)?REPLY, _, _
                :: empty(DOWN(a, i_, n)) /* only with BUG_NO_WAIT */
                fi;
                i_++
            :: else -> break
            od;
            i_ = 0;
            if
            :: l < LAST -> l++; r2 = 0; s2 = 0; goto in_round
            :: else
            fi;
            assert(r2 == r + 1);
            assert((s2 & BIT(a) && stay) || (!(s2 & BIT(a)) && !stay));
            r = r2; s = s2; l = 0; r2 = 0; s2 = 0;
            if
            :: stay -> stay = 0; goto in_round
            :: else ->
                r = 0; s = 0;
#if EPOCHS
                idle[n] = idle[n] | BIT(a)
#endif
            fi
          }
       fi
    od;
gone:
    atomic {
        r = 0; s = 0; l = 0; r2 = 0; s2 = 0; stay = 0;
#if RETURNS
        at_end[n] = at_end[n] | BIT(a)
#endif
    };
#if RETURNS
end_gone:
    atomic { !(dead & BIT(a)) -> at_end[n] = at_end[n] & ~BIT(a); goto end_idle }
#endif
}

/* ---- sequencer ---- */

/* The sequencer's word: round r of lane n has the members s. */
inline bar_open(e, n, r, s) {
    assert(bar_set[RD(e, n, r)] == 0);
    bar_set[RD(e, n, r)] = s;
    bar_opened[EL(e, n)] = r
}

/* seq_set[n] becomes the set s of the next round; the joiners among it get ROUND_OPEN. */
inline seq_open(n, s) {
    seq_round[n] = seq_round[n] + 1;
    assert(seq_round[n] < MAXR);
#ifdef COVER_REOPEN
    assert(!(seq_set[n] == 0 && seq_round[n] > 1)); /* a sleeping lane wakes */
#endif
    seq_set[n] = s;
    truth[n * MAXR + seq_round[n]] = s;
    bar_open(0, n, seq_round[n], s);
    i_ = 1;
    do
    :: i_ < NE ->
#ifndef BUG_NO_SET
        assert(nfull(word[i_]));
        TELL(i_, 1, n, seq_round[n], s, plan_at[0]);
#endif
        i_++
    :: else -> break
    od;
    seq_voted[n] = 0;
    seq_stayers[n] = 0;
    i_ = 0;
    do
    :: i_ < NA ->
        if
        :: (seq_joiners[n] & s & BIT(i_)) && !(dead & BIT(i_)) && KNOWS(i_, 0) ->
            assert(nfull(DOWN(i_, 0, n)));
#if EPOCHS
            DOWNE(i_, 0, n) = plan_at[0];
#endif
            DOWN(i_, 0, n)!OPEN, seq_round[n], s
        :: else
        fi;
        i_++
    :: else -> break
    od;
    i_ = 0;
    seq_joiners[n] = 0
}

inline seq_join(n, a) {
    assert(!(seq_set[n] & BIT(a)) && !(seq_joiners[n] & BIT(a)));
    seq_joiners[n] = seq_joiners[n] | BIT(a);
    if
#ifdef BUG_SLEEP
    :: false
#else
    :: seq_set[n] == 0 -> seq_open(n, BIT(a))
#endif
#ifdef BUG_JOIN_NOW
    :: seq_set[n] != 0 && seq_voted[n] == 0 ->
        seq_set[n] = seq_set[n] | BIT(a);
        seq_joiners[n] = 0;
        DOWN(a, 0, n)!OPEN, seq_round[n], seq_set[n]
#endif
    :: else
    fi
}

/* Closes the round when the last live member has voted. */
inline seq_check(n) {
    closed = 0;
    if
    :: seq_set[n] != 0 &&
#ifdef BUG_EARLY
       seq_voted[n] != 0 &&
       ((seq_set[n] & ~known[0] & ~seq_voted[n]) & ((seq_set[n] & ~known[0] & ~seq_voted[n]) - 1)) == 0
#else
       (seq_set[n] & ~known[0] & ~seq_voted[n]) == 0
#endif
       ->
#ifdef BUG_EARLY
        seq_stayers[n] = seq_stayers[n] | (seq_set[n] & ~seq_voted[n]);
#endif
        closed = seq_round[n];
#ifdef BUG_OMIT_JOINER
        next = seq_stayers[n] & ~known[0];
#elif defined(BUG_KEEP_DEAD)
        next = seq_stayers[n] | seq_joiners[n];
#else
        next = (seq_stayers[n] | seq_joiners[n]) & ~known[0];
#endif
        assert((next & left[n]) == 0);
        if
        :: next != 0 -> seq_open(n, next)
        :: else -> seq_set[n] = 0; seq_voted[n] = 0; seq_stayers[n] = 0; seq_joiners[n] = 0
        fi
    :: else
    fi
}

/* ---- barrier ---- */

/* A round can be forgotten here; ghosts go with the last trace of it. */
inline bar_forget(e, n, r) {
    bar_set[RD(e, n, r)] = 0;
    bar_layer[RD(e, n, r)] = 0;
    bar_sent[RD(e, n, r)] = 0;
#if LAYERS > 1
    if
    :: (seq_round[n] != r || seq_set[n] == 0) &&
#if NE > 1
       bar_set[RD(1, n, r)] == 0 &&
#endif
#if NE > 2
       bar_set[RD(2, n, r)] == 0 &&
#endif
       bar_set[RD(0, n, r)] == 0 -> truth[n * MAXR + r] = 0
    :: else
    fi
#endif
}

/* Runs the layer of round r if it may run. */
inline bar_check(e, n, r) {
    if
    :: bar_set[RD(e, n, r)] != 0 && (bar_set[RD(e, n, r)] & ~bar_sent[RD(e, n, r)] & ~known[e]) == 0 ->
        lay = bar_layer[RD(e, n, r)];
        /* every member has sent, or really is dead; nobody else has sent */
        assert((truth[n * MAXR + r] & ~bar_sent[RD(e, n, r)] & ~dead) == 0);
        assert((bar_sent[RD(e, n, r)] & ~truth[n * MAXR + r]) == 0);
        if
        :: (bar_set[RD(e, n, r)] & ~known[e]) == 0 -> bar_forget(e, n, r) /* nobody is left */
        :: else ->
            assert(e != 0 || lay != LAST || closed == r);
            i_ = 0;
            do
            :: i_ < NA ->
                if
                :: (bar_sent[RD(e, n, r)] & BIT(i_)) && !(dead & BIT(i_)) && KNOWS(i_, e) ->
                    assert(nfull(DOWN(i_, e, n)));
#if EPOCHS
                    DOWNE(i_, e, n) = plan_at[e];
#endif
                    if
                    :: e == 0 && lay == LAST -> DOWN(i_, e, n)!REPLY, r + 1, next
                    :: else -> DOWN(i_, e, n)!REPLY, 0, 0
                    fi
                :: else
                fi;
                i_++
            :: else -> break
            od;
            i_ = 0;
            if
            :: lay == LAST -> bar_forget(e, n, r)
            :: else -> bar_sent[RD(e, n, r)] = 0; bar_layer[RD(e, n, r)] = lay + 1
            fi
        fi;
        lay = 0
    :: else
    fi
}

inline bar_arrive(e, n, a, r, l, s) {
#if LAYERS > 1
    if
    :: truth[n * MAXR + r] == 0 && IS_GONE(a, e, n) -> truth[n * MAXR + r] = s
    :: else
    fi;
#endif
    /* agreement: what members say is what this worker was told, and what the sequencer fixed */
    assert(s == truth[n * MAXR + r]);
    assert(s == bar_set[RD(e, n, r)]);
#ifdef COVER_OVERLAP
    assert(r < 2 || bar_set[RD(e, n, r - 1)] == 0); /* two rounds are open here */
#endif
#ifdef COVER_SKIP
    /* rows of the later round came first */
    assert(r + 1 >= MAXR || (bar_sent[RD(e, n, r + 1)] == 0 && bar_layer[RD(e, n, r + 1)] == 0) ||
           bar_sent[RD(e, n, r)] != 0 || l > 0);
#endif
    assert(bar_set[RD(e, n, r)] & BIT(a));
    assert(!(bar_sent[RD(e, n, r)] & BIT(a)));
    assert(bar_layer[RD(e, n, r)] == l);
    bar_sent[RD(e, n, r)] = bar_sent[RD(e, n, r)] | BIT(a)
}

/* ---- expert worker ---- */

inline on_message(a, n) {
    atomic {
        nempty(UP(a, e, n)) && (UPR(a, e, n) <= bar_opened[EL(e, n)] || IS_STALE(a, e, n)) ->
        UP(a, e, n)?kind, r, l, s, stay;
        UPR(a, e, n) = 0;
        closed = 0;
        if
#if EPOCHS
        :: IS_STALE(a, e, n) -> /* dropped: only who is gone sends such */
#ifdef COVER_STALE
            assert(false);
#endif
            assert(IS_GONE(a, e, n))
        :: kind == JOIN && !IS_STALE(a, e, n) -> seq_join(n, a)
#else
        :: kind == JOIN -> seq_join(n, a)
#endif
        :: else ->
#if EPOCHS
            assert(UPE(a, e, n) % NE != e || (hosts & BIT(e))); /* there are rows for it */
#ifdef COVER_RETURN
            assert(born[a] == 0); /* one that came back is in a round */
#endif
#endif
            bar_arrive(e, n, a, r, l, s);
            if
            :: e == 0 && l == LAST ->
                assert(r == seq_round[n] && (seq_set[n] & BIT(a)) && !(seq_voted[n] & BIT(a)));
                seq_voted[n] = seq_voted[n] | BIT(a);
                if
                :: stay -> seq_stayers[n] = seq_stayers[n] | BIT(a)
                :: else
                fi;
                seq_check(n)
            :: else
            fi;
            bar_check(e, n, r)
        fi;
        kind = 0; r = 0; l = 0; s = 0; stay = 0; closed = 0; next = 0
    }
}

/* The end of worker a is taken note of: it counts as a bare header; what it still has in flight to
 * this worker is dropped. */
inline on_dead(a) {
    known[e] = known[e] | BIT(a);
    n = 0;
    do
    :: n < NL ->
        if
        :: nempty(UP(a, e, n)) -> UP(a, e, n)?_, _, _, _, _; UPR(a, e, n) = 0
        :: empty(UP(a, e, n))
        fi;
        closed = 0;
        if
        :: e == 0 ->
            seq_joiners[n] = seq_joiners[n] & ~BIT(a);
#ifdef BUG_KEEP_DEAD
            skip;
#else
            seq_stayers[n] = seq_stayers[n] & ~BIT(a);
#endif
            seq_check(n)
        :: else
        fi;
        r = 1;
        do
        :: r < MAXR -> bar_check(e, n, r); r++
        :: else -> break
        od;
        r = 0;
        n++
    :: else -> break
    od;
    n = 0;
    closed = 0;
    next = 0
}

proctype expert(byte e) {
    byte r, l, s, a, n, i_, lay, next, closed;
    bit stay;
    mtype kind;

end_serve:
    do
    :: on_message(0, 0)
#if NA > 1
    :: on_message(1, 0)
#endif
#if NA > 2
    :: on_message(2, 0)
#endif
#if NL > 1
    :: on_message(0, 1)
#if NA > 1
    :: on_message(1, 1)
#endif
#if NA > 2
    :: on_message(2, 1)
#endif
#endif
    :: atomic {
        e == 0 && (dead & ~known[0]) != 0 ->
        if
        :: (dead & ~known[0]) & 1 -> a = 0
        :: (dead & ~known[0]) & 2 -> a = 1
        :: (dead & ~known[0]) & 4 -> a = 2
        fi;
        on_dead(a);
#ifndef BUG_NO_ANNOUNCE
        i_ = 1;
        do
        :: i_ < NE -> assert(nfull(word[i_])); TELL(i_, 0, a, 0, 0, born[a]); i_++
        :: else -> break
        od;
        i_ = 0;
#endif
        a = 0
       }
    :: atomic {
#if EPOCHS
        nempty(word[e]) -> word[e]?stay, a, r, s, l;
        if
        :: stay && l != plan_at[e] -> assert(l < plan_at[e])
#ifndef BUG_STALE_DEAD
        :: !stay && l != born[a] -> skip /* an earlier incarnation */
#endif
        :: stay && l == plan_at[e] ->
#else
        nempty(word[e]) -> word[e]?stay, a, r, s;
        if
        :: stay ->
#endif
            n = a;
            a = 0;
            assert((s & known[e]) == 0); /* a death is never told before the sets that it is in */
#ifdef COVER_EARLY
            assert(UPR(0, e, n) != r); /* rows came before the word */
#endif
            bar_open(e, n, r, s)
        :: else ->
            r = 0;
            s = 0;
            on_dead(a);
#ifdef BUG_FORGET_DEAD
            known[e] = known[e] & ~BIT(a);
#endif
        fi;
        a = 0; n = 0; r = 0; s = 0; stay = 0; l = 0
       }
    od
}

#if EPOCHS
/* ---- coordinator ---- */

/* Rounds begin anew; who came back is not dead any more. */
inline take_expert(e, x) {
    plan_at[e] = x;
    known[e] = known[e] & ~back;
    hosts = (x % NE == e -> hosts | BIT(e) : hosts & ~BIT(e));
    n_ = 0;
    do
    :: n_ < NL ->
#ifndef BUG_KEEP_ROUNDS
        bar_opened[EL(e, n_)] = 0;
#endif
        r_ = 0;
        do
        :: r_ < MAXR ->
            bar_set[RD(e, n_, r_)] = 0;
            bar_layer[RD(e, n_, r_)] = 0;
            bar_sent[RD(e, n_, r_)] = 0;
            r_++
        :: else -> break
        od;
        r_ = 0;
        if
        :: e == 0 ->
            seq_round[n_] = 0;
            seq_set[n_] = 0;
            seq_joiners[n_] = 0;
            seq_voted[n_] = 0;
            seq_stayers[n_] = 0
        :: else
        fi;
        n_++
    :: else -> break
    od;
    n_ = 0
}

/* The dead worker a is back: another process, which has sent and heard nothing. */
inline come_back(a, x) {
    dead = dead & ~BIT(a);
    back = back | BIT(a);
    returns++;
    born[a] = x;
    hold = hold | BIT(a);
    n_ = 0;
    do
    :: n_ < NL -> idle[n_] = idle[n_] | BIT(a); left[n_] = left[n_] & ~BIT(a); n_++
    :: else -> break
    od;
    n_ = 0
}

inline go_early(a) {
#ifdef BUG_GO_EARLY
    hold = hold & ~BIT(a)
#else
    skip
#endif
}

#ifdef BUG_HASTY_QUIET
#define QUIET hold
#elif NL == 1
#define QUIET (hold & idle[0])
#else
#define QUIET (hold & idle[0] & idle[1])
#endif
#if NL == 1
#define ENDED at_end[0]
#else
#define ENDED (at_end[0] & at_end[1])
#endif
#ifdef BUG_WAIT_DEAD
#define AWAITED ALL
#else
#define AWAITED (ALL & ~dead)
#endif

proctype coordinator() {
    byte epoch, tries, returns, back, i_, n_, r_;

end_rest:
    do
    :: atomic { tries < EPOCHS -> tries++; epoch++ };
        atomic {
            hosts = hosts | BIT(epoch % NE); /* mapped; what it does not give stays so far */
#ifdef BUG_DROP_EARLY
            hosts = BIT(epoch % NE)
#endif
        };
#ifndef BUG_NO_HOLD
        do
        :: atomic { !(hold & 1) && !(dead & 1) -> hold = hold | 1 }
#if NA > 1
        :: atomic { !(hold & 2) && !(dead & 2) -> hold = hold | 2 }
#endif
#if NA > 2
        :: atomic { !(hold & 4) && !(dead & 4) -> hold = hold | 4 }
#endif
        :: atomic { (ALL & ~hold & ~dead) == 0 -> break }
        od;
#else
        hold = ALL & ~dead;
        atomic { (AWAITED & ~QUIET) == 0 -> hold = 0 };
#endif
        if
        :: atomic { (AWAITED & ~QUIET) == 0 -> skip }
#ifdef BUG_NO_HOLD
        :: skip
#endif
#ifndef BUG_WAIT_DEAD /* which a deadline would end */
        :: atomic { epoch--; hosts = BIT(epoch % NE); goto go } /* given up */
#endif
        fi;
        atomic {
            i_ = 0;
            do
            :: i_ < NA && returns < RETURNS && (dead & ENDED & BIT(i_)) -> come_back(i_, epoch); i_++
            :: i_ < NA -> i_++
            :: else -> break
            od;
            i_ = 0
        };
        do
        :: atomic { plan_at[0] != epoch -> take_expert(0, epoch) }
#if NE > 1
        :: atomic { plan_at[1] != epoch -> take_expert(1, epoch) }
#endif
#if NE > 2
        :: atomic { plan_at[2] != epoch -> take_expert(2, epoch) }
#endif
        :: atomic { (ALL & ~dead) & 1 && plan_of[0] != epoch -> plan_of[0] = epoch; go_early(0) }
#if NA > 1
        :: atomic { (ALL & ~dead) & 2 && plan_of[1] != epoch -> plan_of[1] = epoch; go_early(1) }
#endif
#if NA > 2
        :: atomic { (ALL & ~dead) & 4 && plan_of[2] != epoch -> plan_of[2] = epoch; go_early(2) }
#endif
        :: atomic {
            plan_at[0] == epoch && plan_at[NE - 1] == epoch && plan_at[NE / 2] == epoch &&
            (plan_of[0] == epoch || (dead & 1)) && (plan_of[NA - 1] == epoch || (dead & BIT(NA - 1))) &&
            (plan_of[NA / 2] == epoch || (dead & BIT(NA / 2))) ->
#ifdef COVER_CHANGE
            assert(epoch < EPOCHS || (dead == 0 && returns == 0)); /* with somebody dead, or back */
#endif
            back = 0;
            i_ = 0;
            do
            :: i_ < NL * MAXR -> truth[i_] = 0; i_++
            :: else -> break
            od;
            i_ = 0;
            break
           }
        od;
go:
        do
        :: atomic { (hold & 1) -> hold = hold & ~1 }
#if NA > 1
        :: atomic { (hold & 2) -> hold = hold & ~2 }
#endif
#if NA > 2
        :: atomic { (hold & 4) -> hold = hold & ~4 }
#endif
        :: atomic { hold == 0 -> break }
        od
#ifdef BUG_REJOIN_NOW
    :: atomic { returns < RETURNS && (dead & ENDED & 1) -> come_back(0, 0); hold = 0; back = 0 }
#endif
    od
}
#endif

/* Any attention worker may die at any moment, or no more of them from some moment on: a death must
 * never be what gets a stuck run going again. */
proctype reaper() {
    byte i_, n_;
end_reap:
    do
    :: atomic { deaths < DEATHS && !(dead & BIT(0)) -> die(0) }
#if NA > 1
    :: atomic { deaths < DEATHS && !(dead & BIT(1)) -> die(1) }
#endif
#if NA > 2
    :: atomic { deaths < DEATHS && !(dead & BIT(2)) -> die(2) }
#endif
    :: atomic { deaths = DEATHS; break }
    od
}

init {
    byte i, n;
    atomic {
        for (n : 0 .. NL - 1) {
            for (i : 0 .. NA - 1) { run member(i, n) }
        }
        for (i : 0 .. NE - 1) { run expert(i) }
        run reaper();
#if EPOCHS
        for (n : 0 .. NL - 1) { idle[n] = ALL }
        run coordinator();
#endif
        i = 0;
        n = 0
    }
}

#ifdef LTL
/* A JOIN is answered: its sender gets into a round or dies. */
ltl no_lost_join { [] ((joining[0] & 1) -> <> !(joining[0] & 1)) }
#endif
