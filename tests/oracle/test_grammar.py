"""Masks of src/grammar against recognisers of others: regular expressions against the package regex, which
can match a text's beginning; GBNF against a slow recogniser of its own here. For small vocabularies a token
must be allowed exactly when what was written and the token begin an allowed text."""

import contextlib
import itertools
import os
import random

import grammar_drive
import pytest
import regex

CASES = int(os.environ.get("SLUICE_GRAMMAR_CASES", "250"))


def texts_of(alphabet, longest):
    for n in range(1, longest + 1):
        yield from (b"".join(t) for t in itertools.product(alphabet, repeat=n))


@pytest.fixture(scope="module")
def letters():
    d = grammar_drive.Driver(list(texts_of([b"a", b"b", b"1", b"-"], 3)))
    yield d
    d.close()


def random_regex(rng, depth):
    kind = rng.randrange(9) if depth else rng.randrange(3)
    if kind == 0:
        return rng.choice("ab1")
    if kind == 1:
        return rng.choice(["[ab]", "[^a]", "[a-b1]", "\\d", "\\w", ".", "[^-b]", "\\x61", "\\-"])
    if kind == 2:
        return rng.choice(["a", "b", "ab", "1-"])
    inner = random_regex(rng, depth - 1)
    if kind in (3, 4):
        return inner + random_regex(rng, depth - 1)
    if kind == 5:
        return f"({inner}|{random_regex(rng, depth - 1)})"
    if kind == 6:
        return f"(?:{inner})" + rng.choice(["*", "+", "?", "*?"])
    if kind == 7:
        low = rng.randrange(3)
        return f"(?:{inner})" + rng.choice([f"{{{low}}}", f"{{{low},}}", f"{{{low},{low + rng.randrange(3)}}}"])
    return f"({inner}|)"


def test_regex(letters):
    rng = random.Random(1)
    for _ in range(CASES):
        pattern = random_regex(rng, 4)
        # lazy repetition is the same language; the package's partial matches err with it
        compiled = regex.compile(pattern.replace("*?", "*"))
        prefixes = [""] + ["".join(rng.choice("ab1-") for _ in range(rng.randrange(1, 5))) for _ in range(3)]
        try:
            answer = letters.ask(regex=pattern.encode().hex(), masks=[p.encode().hex() for p in prefixes])
        except grammar_drive.Refused as e:
            assert "anchor" in str(e) or compiled.fullmatch("", partial=True) is None, (pattern, str(e))
            continue
        for prefix, mask in zip(prefixes, answer["masks"]):
            begins = compiled.fullmatch(prefix, partial=True) is not None
            assert (mask is not None) == begins, (pattern, prefix)
            if mask is None:
                continue
            want = {i for i, t in enumerate(letters.tokens[:-1])
                    if compiled.fullmatch(prefix + t.decode(), partial=True) is not None}
            if compiled.fullmatch(prefix):
                want.add(letters.end)
            assert set(mask) == want, (pattern, prefix, [letters.tokens[i] for i in want ^ set(mask)])


def test_search_in_strings(letters):
    """pattern of JSON Schema matches anywhere, and stands for characters of the string."""
    d = grammar_drive.Driver([bytes([b]) for b in b'"ab1-\\u0{}:,'])
    rng = random.Random(2)
    try:
        for _ in range(CASES):
            inner = random_regex(rng, 3)
            pattern = rng.choice(["{}", "^{}", "{}$", "^{}$", "^(?:{}|a)$", "^a|{}$"]).format(inner)
            compiled = regex.compile(pattern)
            samples = ["".join(rng.choice("ab1-") for _ in range(rng.randrange(6))) for _ in range(12)]
            try:
                answer = d.ask(schema={"type": "string", "pattern": pattern},
                               accept=[f'"{s}"'.encode().hex() for s in samples])
            except grammar_drive.Refused as e:
                assert "anchor" in str(e) or "^ behind" in str(e) or "no value" in str(e), (pattern, str(e))
                continue
            for sample, got in zip(samples, answer["accept"]):
                assert (got == 1) == (compiled.search(sample) is not None), (pattern, sample)
    finally:
        d.close()


class Grammar:
    """A random grammar, and a recogniser that knows no automata: it follows every way through a text."""

    def __init__(self, rng):
        self.rng = rng
        self.names = ["root", "r1", "r2", "r3"][: rng.randrange(1, 5)]
        self.rules = {n: self.node(3) for n in self.names}

    def node(self, depth):
        kind = self.rng.randrange(8) if depth else self.rng.randrange(3)
        if kind == 0:
            return ("char", self.rng.choice([b"a", b"b", b"ab", "é".encode(), b""]))
        if kind == 1:
            return ("class", self.rng.choice([("[ab]", [b"a", b"b"]), ("[aé]", [b"a", "é".encode()]),
                                              ("[^aé]", None)]))
        if kind == 2:
            return ("rule", self.rng.choice(self.names))
        if kind in (3, 4, 5):
            return ("seq", [self.node(depth - 1) for _ in range(self.rng.randrange(1, 4))])
        if kind == 6:
            return ("alt", [self.node(depth - 1) for _ in range(self.rng.randrange(2, 4))])
        low = self.rng.randrange(3)
        return ("rep", self.node(depth - 1), low, self.rng.choice([None, low, low + 1, low + 2]))

    def text(self, node):
        kind = node[0]
        if kind == "char":
            return '"' + node[1].decode() + '"'
        if kind == "class":
            return node[1][0]
        if kind == "rule":
            return node[1]
        if kind == "seq":
            return "(" + " ".join(self.text(n) for n in node[1]) + ")"
        if kind == "alt":
            return "(" + " | ".join(self.text(n) for n in node[1]) + ")"
        counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node[2], node[3]))
        if counts is None:
            counts = f"{{{node[2]},}}" if node[3] is None else f"{{{node[2]},{node[3]}}}"
        return self.text(node[1]) + counts

    def source(self):
        return "".join(f"{n} ::= {self.text(self.rules[n])}  # {n}\n" for n in self.names)

    def find(self, check):
        """Names of rules for which `check`, asked again and again, comes out true."""
        good = set()
        while True:
            more = {n for n in self.names if n not in good and check(self.rules[n], good)}
            if not more:
                return good
            good |= more

    def ends(self, node, good):
        kind = node[0]
        if kind == "rule":
            return node[1] in good
        if kind == "seq":
            return all(self.ends(n, good) for n in node[1])
        if kind == "alt":
            return any(self.ends(n, good) for n in node[1])
        return kind in ("char", "class") or node[2] == 0 or self.ends(node[1], good)

    def match(self, node, text, at):
        """(places behind a match, whether the end of the text came first on a way that can be finished)."""
        kind = node[0]
        if kind == "char":
            piece = node[1]
            if text.startswith(piece, at):
                return {at + len(piece)}, False
            return set(), piece.startswith(text[at:])
        if kind == "class":
            allowed = node[1][1]
            if allowed is None:
                left = text[at:]
                if not left:
                    return set(), True
                if left[:1] == "é".encode()[:1]:  # the first byte of é and è
                    return (set(), True) if len(left) == 1 else ({at + 2} if left[1] == 0xA8 else set(), False)
                return ({at + 1} if left[0] < 0x80 and left[:1] != b"a" else set()), False
            results = [self.match(("char", p), text, at) for p in allowed]
            return set().union(*(r[0] for r in results)), any(r[1] for r in results)
        if kind == "rule":
            if node[1] not in self.good:
                return set(), False
            return self.match(self.rules[node[1]], text, at)
        if kind == "alt":
            results = [self.match(n, text, at) for n in node[1]]
            return set().union(*(r[0] for r in results)), any(r[1] for r in results)
        if kind == "seq":
            here, short = {at}, False
            for i, n in enumerate(node[1]):
                results = [self.match(n, text, a) for a in here]
                rest = all(self.ends(m, self.good) for m in node[1][i + 1:])
                here = set().union(*(r[0] for r in results)) if results else set()
                short |= rest and any(r[1] for r in results)
            return here, short
        inner, low, high = node[1:]
        here, done, short, seen = {at}, set(), False, set()
        for n in range(low + len(text) + 2 if high is None else high):
            if n >= low:
                done |= here
            results = [self.match(inner, text, a) for a in here]
            short |= any(r[1] for r in results)
            here = set().union(*(r[0] for r in results)) if results else set()
            if n >= low and frozenset(here) in seen:
                break
            seen.add(frozenset(here))
        return done | here, short

    def judge(self, text):
        """(begins an allowed text, is one)"""
        places, short = self.match(self.rules["root"], text, 0)
        return short or len(text) in places, len(text) in places


def loops(g):
    """Rules that may come back to themselves before a byte; the room refuses them, this would not end."""
    empty = set()

    def can_empty(node, good):
        kind = node[0]
        if kind == "char":
            return not node[1]
        if kind == "class":
            return False
        if kind == "rule":
            return node[1] in good
        if kind == "seq":
            return all(can_empty(n, good) for n in node[1])
        if kind == "alt":
            return any(can_empty(n, good) for n in node[1])
        return node[2] == 0 or can_empty(node[1], good)

    empty = g.find(can_empty)

    def first(node):
        kind = node[0]
        if kind == "rule":
            return {node[1]}
        if kind == "alt":
            return set().union(*(first(n) for n in node[1]))
        if kind == "rep":
            return first(node[1])
        out = set()
        for n in node[1] if kind == "seq" else []:
            out |= first(n)
            if not can_empty(n, empty):
                break
        return out

    reach = {n: first(g.rules[n]) for n in g.names}
    for _ in g.names:
        for n in g.names:
            reach[n] |= set().union(*(reach[m] for m in reach[n])) if reach[n] else set()
    return any(n in reach[n] for n in g.names)


def test_gbnf():
    pieces = [b"a", b"b", b"\xc3", b"\xa9", b"\xa8", b"\xff"]
    d = grammar_drive.Driver(list(texts_of(pieces, 3)))
    rng = random.Random(3)
    judged = 0
    try:
        while judged < CASES:
            g = Grammar(rng)
            g.good = g.find(g.ends)
            if loops(g):
                # where the loop is in a rule that is never reached, nothing is refused
                with contextlib.suppress(grammar_drive.Refused):
                    d.ask(gbnf=g.source().encode().hex(), masks=[""])
                continue
            prefixes = [b""] + [b"".join(rng.choice(pieces[:4]) for _ in range(rng.randrange(1, 5))) for _ in range(4)]
            if "root" not in g.good:
                with pytest.raises(grammar_drive.Refused, match="nothing satisfies"):
                    d.ask(gbnf=g.source().encode().hex(), masks=[""])
                continue
            try:
                answer = d.ask(gbnf=g.source().encode().hex(), masks=[p.hex() for p in prefixes])
            except grammar_drive.Refused as e:
                assert "may be empty" in str(e), (g.source(), str(e))
                continue
            judged += 1
            for prefix, mask in zip(prefixes, answer["masks"]):
                begins, whole = g.judge(prefix)
                assert (mask is not None) == begins, (g.source(), prefix)
                if mask is None:
                    continue
                want = {i for i, t in enumerate(d.tokens[:-1]) if g.judge(prefix + t)[0]}
                if whole:
                    want.add(d.end)
                assert set(mask) == want, (g.source(), prefix, [d.tokens[i] for i in want ^ set(mask)])
    finally:
        d.close()


def test_choice(letters):
    texts = ["a", "ab", "ab-1", "b11"]
    prefixes = ["", "a", "ab", "ab-", "b"]
    answer = letters.ask(choice=[t.encode().hex() for t in texts], masks=[p.encode().hex() for p in prefixes])
    for prefix, mask in zip(prefixes, answer["masks"]):
        want = {i for i, t in enumerate(letters.tokens[:-1])
                if any(x.startswith(prefix + t.decode()) for x in texts)}
        assert set(mask) == want | ({letters.end} if prefix in texts else set())


@pytest.mark.parametrize(("job", "words"), [
    ({"regex": "(a)\\1"}, "backreference"), ({"regex": "a(?=b)"}, "lookaround"), ({"regex": "\\bq"}, "word boundary"),
    ({"regex": "\\p{L}"}, "properties of Unicode"), ({"regex": "a{0,1000000}"}, "limit 100000"),
    ({"regex": "(" * 300 + ")" * 300}, "nested deeper"), ({"regex": "[a"}, "without ]"), ({"regex": "(a"}, "without )"),
    ({"regex": "a**"}, "repetition of a repetition"), ({"regex": "[[:alpha:]]"}, "named class"),
    ({"gbnf": "root ::= root \"a\" | \"b\""}, "left recursion"), ({"gbnf": "root ::= other"}, "no rule other"),
    ({"gbnf": "a ::= \"x\""}, "no rule root"), ({"gbnf": "root ::= \"a"}, "without its end"),
    ({"gbnf": "root ::= \"a\" root"}, "nothing satisfies"), ({"gbnf": "root ::= <think>"}, "tokens"),
    ({"gbnf": "root ::= \"a\"{0,1000000}"}, "limit 100000"),
])
def test_refused_by_name(letters, job, words):
    with pytest.raises(grammar_drive.Refused) as e:
        letters.ask(**{k: v.encode().hex() for k, v in job.items()}, masks=[""])
    assert words in str(e.value)


@pytest.mark.parametrize("pattern", ["(a|aa){0,100000}b", "(a?){1000}b", "(a*)*b", "(a|b|ab)*-{0,100000}", "((a{1,100}){1,100}){1,100}b"])
def test_hostile_regex_is_bounded(letters, pattern):
    """They are walked, or end with the name of a limit; the driver's answer comes either way."""
    try:
        letters.ask(regex=pattern.encode().hex(), masks=["", ("a" * 400).encode().hex()])
    except grammar_drive.Refused as e:
        assert "limit" in str(e)
