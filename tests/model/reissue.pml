/* Rows that go again: expert workers are lost while a step runs, and others, who host the same experts, stand
 * in for them, as in src/sched/again.h, calls.h and sl_rounds_on_leaderless (rounds.h).
 *
 * NA attention workers, members of one round, pass LAYERS layers; NE expert workers, each of whom hosts all
 * experts; worker 0 is the sequencer. A row has two positions at each owner, which are one group: its owner
 * answers them together, an attempt asks one or two others. At most LOSSES expert workers are lost. How
 * rounds are agreed on is in membership.pml, what comes after the step in recovery.pml.
 *
 * At most SLOW expert workers are done without although they live (src/sched/hedge.h): everybody is told, each
 * at its time; others are asked for what they owe, and they go on answering. Their own answer counts if it comes
 * before that of an attempt, which is late then; what they owed as those who stand in is late.
 *
 * Channels are per pair and as long as the credit that calls.h gives: more is an error. When a worker is lost
 * what it had sent has come, or is lost.
 *
 * Checked: no position counts twice, none is left out, what counts for a group is of one attempt; and at the
 * end everybody who began is through, unless nobody is left to compute.
 *
 * BUG_x plants a fault that a check must find; COVER_x fails when a situation is reached. */
#ifndef NA
#define NA 1
#endif
#ifndef NE
#define NE 3
#endif
#ifndef LAYERS
#define LAYERS 2
#endif
#ifndef LOSSES
#define LOSSES 2
#endif

#ifndef SLOW
#define SLOW 0
#endif

#define BIT(i) (1 << (i))
#define UP(a, e) up[(a) * NE + (e)]
#define DOWN(a, e) down[(a) * NE + (e)]
#define AT(g, w) ((g) * NE + (w))
#define BOTH 3

mtype = {OPEN, ROWS, AGAIN, REPLY, ANSWER};
mtype = {REST, AWAY, DUE, TRIED, HERE};
chan up[NA * NE] = [NE] of {mtype, byte /*layer*/, byte /*group*/, byte /*attempt*/, byte /*positions*/};
chan down[NA * NE] = [NE + 1] of {mtype, byte, byte, byte, byte};
chan word[NE] = [1] of {bit}; /* ROUND_SET */

byte e_dead = 0;
byte e_slow = 0; /* of whom it was said; also of the dead */
#define NOBODY_LEFT ((BIT(NE) - 1 & ~(e_dead | e_slow)) == 0)
byte begun = 0, ended = 0; /* attention workers */

/* ---- attention worker ---- */

#define OPEN_DEBT 1 /* its answer counts if it is first */
#define LATE_DEBT 2 /* another one has counted */

/* The attempt at group g, if there is one, counts no more. */
inline make_late(g) {
    i = 0;
    do
    :: i < NE ->
        late[AT(g, i)] = (owes[AT(g, i)] != 0 -> attempt[g] : late[AT(g, i)]);
        owes[AT(g, i)] = 0;
        i++
    :: i == NE -> break
    od;
    i = 0;
#ifndef BUG_MIX
    got[g] = 0;
    by[g] = 0;
#endif
    skip
}

inline make_void(g) {
    make_late(g);
    phase[g] = DUE
}

inline lose_of(g, w) {
    late[AT(g, w)] = 0;
    if
    :: owes[AT(g, w)] != 0 ->
        owes[AT(g, w)] = 0;
#ifndef BUG_FORGET
        make_void(g)
#endif
    :: else
    fi
}

inline spare_of(g, w) {
    if
    :: owes[AT(g, w)] != 0 -> make_void(g)
    :: else
    fi
}

inline note_slow(w) {
    atomic {
        (e_slow & ~lost & BIT(w)) ->
        lost = lost | BIT(w);
        spared = spared | BIT(w);
        debt[w] = (phase[w] == AWAY -> OPEN_DEBT : debt[w]);
        phase[w] = (phase[w] == AWAY -> DUE : phase[w]);
        spare_of(0, w);
        spare_of(1, w);
#if NE > 2
        spare_of(2, w);
#endif
        skip
    }
}

inline note_loss(w) {
    atomic {
        (e_dead & (~lost | spared) & BIT(w)) && empty(DOWN(a, w)) ->
        lost = lost | BIT(w);
        spared = spared & ~BIT(w);
        debt[w] = 0;
        phase[w] = (phase[w] == AWAY -> DUE : phase[w]);
        lose_of(0, w);
        lose_of(1, w);
#if NE > 2
        lose_of(2, w);
#endif
        skip
    }
}

inline take(g, w, p) {
    assert(!(got[g] & p));                       /* nothing counts twice */
    assert(got[g] == 0 || by[g] == t);           /* nor parts of two attempts */
    got[g] = got[g] | p;
    by[g] = t;
    owes[AT(g, w)] = 0;
    debt[g] = (got[g] == BOTH && debt[g] == OPEN_DEBT -> LATE_DEBT : debt[g]);
    phase[g] = (got[g] == BOTH -> HERE : phase[g])
}

#ifdef BUG_DOUBLE
#define IS_LATE(g, w, t) 0
#else
#define IS_LATE(g, w, t) (late[AT(g, w)] == t)
#endif

#ifdef BUG_LATE
#define DEBT_IS_LATE(w) 0
#else
#define DEBT_IS_LATE(w) (debt[w] == LATE_DEBT)
#endif

inline hear(w) {
    atomic {
        nempty(DOWN(a, w)) ->
        DOWN(a, w)?kind, l, g, t, p;
        if
        /* of one that is done without it is not heeded: no round begins */
        :: kind == OPEN -> begun = (lost & BIT(w) -> begun : begun | BIT(a))
        :: kind == REPLY && DEBT_IS_LATE(w) ->
#ifdef COVER_DROPPED
            assert(false);
#endif
            debt[w] = 0
        :: kind == REPLY && !DEBT_IS_LATE(w) ->
            assert(g == w && l == layer);
            assert(phase[g] == AWAY || (debt[w] == OPEN_DEBT && (phase[g] == DUE || phase[g] == TRIED)));
#ifdef COVER_FIRST
            assert(phase[g] != TRIED);
#endif
            debt[w] = 0;
            if
#ifndef BUG_BOTH
            :: phase[g] != AWAY -> make_late(g)
#endif
            :: else
            fi;
            take(g, w, BOTH)
        :: kind == ANSWER && IS_LATE(g, w, t) ->
#ifdef COVER_LATE
            assert(false);
#endif
            late[AT(g, w)] = 0
        :: kind == ANSWER && !IS_LATE(g, w, t) ->
            late[AT(g, w)] = (late[AT(g, w)] == t -> 0 : late[AT(g, w)]); /* the bug's */
            take(g, w, p)
        fi;
        kind = 0; l = 0; g = 0; t = 0; p = 0
    }
}

#ifdef BUG_CREDIT
#define OWES_LATE(g) 0
#else
#define OWES_LATE_AT(g, w) (late[AT(g, w)] && !(spared & BIT(w)))
#if NE > 2
#define OWES_LATE(g) (OWES_LATE_AT(g, 0) || OWES_LATE_AT(g, 1) || OWES_LATE_AT(g, 2))
#else
#define OWES_LATE(g) (OWES_LATE_AT(g, 0) || OWES_LATE_AT(g, 1))
#endif
#endif

/* To worker w, of whom nobody knows that it is lost; who it is tells in time. */
inline ask(g, w, what) {
    if
    :: e_dead & BIT(w)
    :: !(e_dead & BIT(w)) ->
        assert(nfull(UP(a, w)));
        UP(a, w)!AGAIN, layer, g, attempt[g], what
    fi;
    owes[AT(g, w)] = what
}

/* To one other, or to two. */
inline again(g) {
    atomic {
        phase[g] == DUE && !OWES_LATE(g) && (BIT(NE) - 1 & ~lost) != 0 ->
        attempts++;
        attempt[g] = attempts;
        phase[g] = TRIED;
        if
        :: !(lost & 1) -> ask(g, 0, BOTH)
        :: !(lost & 2) -> ask(g, 1, BOTH)
        :: !(lost & 3) -> ask(g, 0, 1); ask(g, 1, 2)
#if NE > 2
        :: !(lost & 4) -> ask(g, 2, BOTH)
        :: !(lost & 5) -> ask(g, 0, 1); ask(g, 2, 2)
        :: !(lost & 6) -> ask(g, 1, 1); ask(g, 2, 2)
#endif
        fi
    }
}

inline send(w) {
    if
    :: lost & BIT(w) -> phase[w] = HERE; got[w] = BOTH /* nothing goes there */
    :: !(lost & BIT(w)) ->
        phase[w] = AWAY;
        if
        :: e_dead & BIT(w)
        :: !(e_dead & BIT(w)) -> assert(nfull(UP(a, w))); UP(a, w)!ROWS, layer, w, 0, BOTH
        fi
    fi
}

inline merge(g) {
    assert(got[g] == BOTH);
    got[g] = 0;
    by[g] = 0;
    phase[g] = REST
}

#if NE > 2
#define ALL(x) (phase[0] == x && phase[1] == x && phase[2] == x)
#else
#define ALL(x) (phase[0] == x && phase[1] == x)
#endif

proctype attention(byte a) {
    mtype kind, phase[NE];
    byte lost, layer, l, g, t, p, i, attempts, next;
    byte got[NE], by[NE], attempt[NE], owes[NE * NE], late[NE * NE];
    byte spared, debt[NE]; /* of those lost: who lives; what owners owe whom others are asked for */

    atomic { phase[0] = REST; phase[1] = REST; phase[NE - 1] = REST };
end_step:
    do
    :: hear(0)
    :: hear(1)
    :: note_loss(0)
    :: note_loss(1)
    :: note_slow(0)
    :: note_slow(1)
    :: again(0)
    :: again(1)
#if NE > 2
    :: hear(2)
    :: note_loss(2)
    :: note_slow(2)
    :: again(2)
#endif
    :: atomic { (begun & BIT(a)) && layer < LAYERS && next < NE && phase[next] == REST -> send(next); next++ }
    :: atomic {
        next == NE && ALL(HERE) ->
        merge(0);
        merge(1);
#if NE > 2
        merge(2);
#endif
        layer++;
        next = 0;
        if
        :: layer == LAYERS -> ended = ended | BIT(a)
        :: else
        fi
      }
    od
}

/* ---- expert worker ---- */

inline reply(a) {
    if
    :: here & BIT(a) -> here = here & ~BIT(a); DOWN(a, e)!REPLY, at[a], e, 0, BOTH
    :: else
    fi
}

inline receive(a) {
    atomic {
        nempty(UP(a, e)) && !(e_dead & BIT(e)) && nfull(DOWN(a, e)) ->
        UP(a, e)?kind, l, g, t, p;
        if
        :: kind == AGAIN -> DOWN(a, e)!ANSWER, l, g, t, p
        :: kind == ROWS -> assert(!(here & BIT(a))); here = here | BIT(a); at[a] = l
        fi;
        kind = 0; l = 0; g = 0; t = 0; p = 0
    }
}

proctype expert(byte e) {
    mtype kind;
    byte l, g, t, p, here, i, at[NA];
    bit told, leaderless;
end_serve:
    do
    :: atomic { (e_dead & BIT(e)) -> here = 0; break }
    :: receive(0)
#if NA > 1
    :: receive(1)
#endif
    :: atomic { nempty(word[e]) && !(e_dead & BIT(e)) -> word[e]?told }
#ifndef BUG_WAIT
    :: atomic { e > 0 && (((e_dead & 1) && empty(word[e])) || (e_slow & 1)) && !leaderless -> leaderless = 1 }
#endif
    /* all members have sent, or nobody is waited for */
    :: atomic {
        !(e_dead & BIT(e)) && ((here == BIT(NA) - 1 && (told || e == 0)) || (leaderless && here)) ->
#ifdef COVER_ALONE
        assert(NA == 1 || here == BIT(NA) - 1);
#endif
        reply(0);
#if NA > 1
        reply(1);
#endif
        skip
      }
    od
}

/* The sequencer's words on the round, one after the other; it may be lost between them. */
proctype opening() {
    byte i;
end_open:
    do
    :: atomic { i < NA && !(e_dead & 1) -> DOWN(i, 0)!OPEN, 0, 0, 0, 0; i++ }
    :: atomic {
        i >= NA && i < NA + NE - 1 && !(e_dead & 1) ->
        i++;
        if
        :: e_dead & BIT(i - NA)
        :: !(e_dead & BIT(i - NA)) -> word[i - NA]!1
        fi
      }
    :: atomic { i == NA + NE - 1 || (e_dead & 1) -> break }
    od
}

/* ---- what happens to them ---- */

inline cut(a, e) {
    do
    :: nempty(UP(a, e)) -> UP(a, e)?_, _, _, _, _
    :: empty(UP(a, e)) -> break
    od;
    if
    :: true -> skip
    :: true ->
        do
        :: nempty(DOWN(a, e)) -> DOWN(a, e)?_, _, _, _, _
        :: empty(DOWN(a, e)) -> break
        od
    fi
}

inline lose(e) {
    atomic {
        losses < LOSSES && !(e_dead & BIT(e)) ->
        losses++;
        e_dead = e_dead | BIT(e);
        if
        :: nempty(word[e]) -> word[e]?_
        :: empty(word[e])
        fi;
        cut(0, e);
#if NA > 1
        cut(1, e);
#endif
        skip
    }
}

/* Only while others are left. */
inline do_without(e) {
    atomic {
        slows < SLOW && !((e_dead | e_slow) & BIT(e)) && (BIT(NE) - 1 & ~(e_dead | e_slow | BIT(e))) != 0 ->
        slows++;
        e_slow = e_slow | BIT(e)
    }
}

proctype fate() {
    byte losses, slows;
end_fate:
    do
    :: lose(0)
    :: lose(1)
    :: do_without(0)
    :: do_without(1)
#if NE > 2
    :: lose(2)
    :: do_without(2)
#endif
    :: break
    od
}

/* When nothing can happen any more. */
proctype judge() {
    timeout -> assert(ended == begun || NOBODY_LEFT)
}

init {
    byte i;
    atomic {
        for (i : 0 .. NA - 1) { run attention(i) }
        for (i : 0 .. NE - 1) { run expert(i) }
        run opening();
        run fate();
        run judge();
        i = 0
    }
}
