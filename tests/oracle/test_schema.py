"""JSON Schema in src/grammar against others: the official JSON-Schema-Test-Suite (it lies in the source package
of PyPI's jsonschema, which is fetched into a cache), documents from random walks through masks, and drawn schemas of all
keywords, judged by the package jsonschema. SLUICE_SUITE names a folder with the suite, in which case nothing is fetched.
SLUICE_SCHEMAS="FIRST N" draws others."""

import collections
import fractions
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile

import grammar_drive
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = "4.26.0"
CACHE = ROOT / "build" / "suite"
FIRST, DRAWN = (int(n) for n in os.environ.get("SLUICE_SCHEMAS", "1 250").split())
WALKS = int(os.environ.get("SLUICE_SCHEMA_WALKS", "30"))
jsonschema = pytest.importorskip("jsonschema", reason="the package jsonschema is not there (tests/requirements.txt)")

BYTES = [bytes([b]) for b in range(256)]
WORDS = [b'{"', b'":', b'",', b'":"', b'", "', b"}}", b"]}", b'"}', b"true", b"false", b"null", b"name", b"foo", b"bar", b"the ",
         b"12", b"2026", b"-0", b"0.5", b"\\u00", b"\\n", "é".encode(), "日本".encode(), b"\n  ", b", ", b": ", b"[]", b"{}", b"[{",
         b"a@b", b".com", b"10:", b"-01-", b"e+"]


@pytest.fixture(scope="module")
def driver():
    d = grammar_drive.Driver(BYTES + WORDS)
    yield d
    d.close()


@pytest.fixture(scope="module")
def suite():
    folder = pathlib.Path(os.environ.get("SLUICE_SUITE", CACHE / f"jsonschema-{VERSION}" / "json" / "tests" / "draft2020-12"))
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--retries", "1", "--timeout", "15", "--no-deps", "--no-binary", "jsonschema",
                 "-d", CACHE, f"jsonschema=={VERSION}"]
        try:
            done = subprocess.run(fetch, capture_output=True, text=True, timeout=180, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip("the source package of jsonschema does not come within 180 s")
        if done.returncode:
            pytest.skip("the source package of jsonschema cannot be fetched: " + done.stderr.strip()[-200:])
        with tarfile.open(CACHE / f"jsonschema-{VERSION}.tar.gz") as tar:
            tar.extractall(CACHE, filter="data")
    return folder


def whole(value):
    """1.0 is an integer to JSON Schema; the room writes it as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**63:
        return int(value)
    if isinstance(value, list):
        return [whole(v) for v in value]
    return {k: whole(v) for k, v in value.items()} if isinstance(value, dict) else value


def orders(value):
    """The value with the keys of its objects in every order: a grammar allows one of them."""
    if isinstance(value, list):
        for items in itertools.product(*(list(orders(v)) for v in value)):
            yield list(items)
    elif isinstance(value, dict) and len(value) <= 4:
        for keys in itertools.permutations(value):
            for values in itertools.product(*(list(orders(value[k])) for k in keys)):
                yield dict(zip(keys, values, strict=True))
    else:
        yield value


def texts(value):
    for v in itertools.islice(orders(whole(value)), 400):
        yield json.dumps(v, ensure_ascii=False, separators=(",", ":"))
        yield json.dumps(v, ensure_ascii=False)
        yield json.dumps(v, ensure_ascii=False, indent=2)


def accepted(driver, schema, values):
    """For each value whether some text of it is accepted."""
    lists = [list(dict.fromkeys(texts(v))) for v in values]
    flat = [t.encode("utf-8", "surrogatepass").hex() for ts in lists for t in ts]
    got = iter(driver.ask(schema=schema, accept=flat)["accept"])
    return [sum(next(got) == 1 for _ in ts) > 0 for ts in lists]


def keyword_of(message):
    return message.split(": ", 2)[1].rsplit(".", 1)[-1] if message.count(": ") >= 2 else message


def run_file(driver, path, count, wrong):
    for group in json.loads(path.read_text()):
        schema = group["schema"]
        values = [t["data"] for t in group["tests"]]
        try:
            got = accepted(driver, schema, values)
        except grammar_drive.Refused as e:
            if "no value satisfies" in str(e):
                got = [False] * len(values)
            else:
                count["refused"] += 1
                count[f"refused for {keyword_of(str(e))}"] += 1
                continue
        count["schemas"] += 1
        for test, ok in zip(group["tests"], got, strict=True):
            count["instances"] += 1
            if ok != test["valid"]:
                wrong.append((path.name, group["description"], test["description"], "accepted" if ok else "refused"))


# The suite's files that ask for something else, with the reason.
EXCUSED = {"format.json": "formats are enforced; there they are words that say nothing"}


def test_official_suite(driver, suite, capsys):
    count, wrong = collections.Counter(), []
    for path in sorted(suite.glob("*.json")):
        if path.name not in EXCUSED:
            run_file(driver, path, count, wrong)
    with capsys.disabled():
        print(f"\nsuite: {count['schemas']} schemas, {count['instances']} instances; refused {count['refused']}: "
              + ", ".join(f"{k.removeprefix('refused for ')} {n}" for k, n in count.most_common() if k.startswith("refused for")))
    assert not wrong, "\n".join(map(str, wrong))
    assert count["schemas"] >= 210 and count["instances"] >= 740


FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference", "json-pointer", "relative-json-pointer"]


# A second that is inserted is written in UTC alone: elsewhere it depends on the offset which minute has one.
LEAP = ("leap second, positive time-offset", "leap second, large positive", "leap second, negative time-offset",
        "leap second, large negative", "leap second, with minus offset")


def test_official_formats(driver, suite, capsys):
    count, wrong = collections.Counter(), []
    for name in FORMATS:
        run_file(driver, suite / "optional" / "format" / f"{name}.json", count, wrong)
    with capsys.disabled():
        print(f"\nformats: {count['instances']} instances, {count['refused']} schemas refused")
    wrong = [w for w in wrong if not (w[3] == "refused" and any(words in w[2] for words in LEAP))]
    assert not wrong, "\n".join(map(str, wrong))


def schemas():
    return json.loads((ROOT / "bench" / "schemas.json").read_text())


def exact(text):
    """Numbers as they are written: the package divides floats, where 0.58 is no multiple of 0.01."""
    def number(word):
        exponent = word.lower().partition("e")[2]
        return float(word) if len(exponent) > 4 else fractions.Fraction(word)

    return json.loads(text, parse_float=number)


def test_walks_validate(driver):
    """Whatever a mask allows is valid; and whole, as soon as the end is allowed."""
    checked = 0
    for case in schemas():
        schema = case["schema"]
        validator = jsonschema.Draft202012Validator(exact(json.dumps(schema)))
        for compact in (False, True):
            walked = driver.ask(schema=schema, walks=list(range(WALKS)), most=400, compact=compact)["walks"]
            for text in walked:
                value = exact(bytes.fromhex(text).decode())
                errors = [e.message for e in validator.iter_errors(value)]
                assert not errors, (case["name"], bytes.fromhex(text).decode(), errors)
                checked += 1
    assert checked > 100


def test_examples_are_accepted(driver):
    for case in schemas():
        for example in case["examples"]:
            jsonschema.validate(example, case["schema"])
            text = json.dumps(example, ensure_ascii=False)
            for form in (text, json.dumps(example, ensure_ascii=False, indent=1), json.dumps(example, ensure_ascii=False, separators=(",", ":"))):
                assert driver.ask(schema=case["schema"], accept=[form.encode().hex()])["accept"] == [1], (case["name"], form)


def test_any_json_object(driver):
    rng = random.Random(4)

    def value(depth):
        kind = rng.randrange(7 if depth else 5)
        if kind < 5:
            return [None, True, rng.randrange(-99, 99) / rng.choice([1, 4]), "é\"\\\n\u2028😀", 1e30][kind]
        items = [value(depth - 1) for _ in range(rng.randrange(3))]
        return items if kind == 5 else {f"k{i}": v for i, v in enumerate(items)}

    for _ in range(100):
        v = {"a": value(3)}
        for ascii_only in (False, True):
            assert driver.ask(json=True, accept=[json.dumps(v, ensure_ascii=ascii_only).encode().hex()])["accept"] == [1], v
    for text in ["{", "[]", '{"a":01}', '{"a":"\t"}', '{"a":"\\ud800"}', '{"a":1,}', "{'a':1}", '{"a":\n\n1}', '{"a":"\\x41"}', "nul"]:
        assert driver.ask(json=True, accept=[text.encode().hex()])["accept"] != [1], text
    for text in [b'{"a":"\xff"}', b'{"a":"\xc0\x80"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xf4\x90\x80\x80"}']:
        assert driver.ask(json=True, accept=[text.hex()])["accept"] == [-1], text
    for text in ['{"a":"\\ud83d\\ude00"}', '{"a":"\\u00e9\\/"}']:
        assert driver.ask(json=True, accept=[text.encode().hex()])["accept"] == [1], text


def test_every_mask_is_what_bytes_say(driver):
    """Masks of long tokens against reading them byte by byte, along the examples."""
    for case in schemas()[::4]:
        for example in case["examples"][:1]:
            text = json.dumps(example, ensure_ascii=False).encode()
            prefixes = [text[:n] for n in range(len(text))]
            masks = driver.ask(schema=case["schema"], masks=[p.hex() for p in prefixes])["masks"]
            flat = [(p + t).hex() for p in prefixes for t in driver.tokens[:-1]]
            said = driver.ask(schema=case["schema"], accept=flat)["accept"]
            n = len(driver.tokens) - 1
            for i, mask in enumerate(masks):
                want = {k for k in range(n) if said[i * n + k] >= 0}
                assert set(mask) - {driver.end} == want, (case["name"], prefixes[i])


@pytest.mark.parametrize(("schema", "words"), [
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties: this keyword is not enforced"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems: is not enforced for more than one item"),
    ({"properties": {"a": {"contentEncoding": "base64"}}}, "properties.a.contentEncoding"),
    ({"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]}, "contains: is enforced once"),
    ({"type": "string", "format": "iri"}, '"iri" is not enforced'), ({"$ref": "http://x/y"}, "only references within"),
    ({"propertis": {}}, '"properties" is'), ({"anyof": []}, '"anyOf" is'), ({"properties": {"a": {"emum": [1]}}}, 'a.emum: is no keyword, "enum" is'),
    ({"properties": {"a": {"$id": "http://x/a", "items": {"$ref": "#/b"}}}}, "a.$id: is not supported inside"),
    ({"not": {"type": "array", "uniqueItems": True}}, "not.uniqueItems: is not enforced in what must not hold"),
    ({"dependentRequired": {"a": 1}}, "dependentRequired"),
    ({"$ref": "#/nowhere"}, "is not in the schema"), ({"pattern": "(a)\\1"}, "pattern: regex: a backreference"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, "no value satisfies"), (False, "no value satisfies"),
    ({"type": "object", "required": ["a"], "additionalProperties": False}, "no value satisfies"),
    ({"type": "strnig"}, "is no type"), ({"minProperties": 2}, "minProperties: above 1"),
    ({"anyOf": []}, "is no list"), ({"nullable": True}, "nullable: this keyword is not enforced"), (3, "is no schema"),
])
def test_refused_by_name(driver, schema, words):
    with pytest.raises(grammar_drive.Refused) as e:
        driver.ask(schema=schema, masks=[""])
    assert words in str(e.value)


# Texts that are not values of their schemas, each nearly one.
@pytest.mark.parametrize(("schema", "texts"), [
    ({"type": "object", "not": {"additionalProperties": {"type": "string"}}}, ['{"a":1,"a":"x"}', '{"a":"x"}']),  # the last one counts
    ({"type": "object", "if": {"additionalProperties": {"type": "string"}}, "then": {"required": ["k"]}}, ['{"b":1,"b":"y"}']),
    ({"enum": [2**53 + 1], "type": "integer", "not": {"const": 3}}, [str(2**53)]), ({"type": "integer", "minimum": 2**53 + 1}, [str(2**53)]),
    ({"type": "object", "properties": {"a": True}, "required": ["a\0b"], "minProperties": 1}, ['{"a":1}']),
    ({"type": "string", "not": {"enum": ["a"]}}, ['"a"', '"\\u0061"']), ({"type": "string", "not": {"pattern": "^a"}}, ['"ab"', '"\\u0061b"']),
    ({"type": "number", "not": {"type": "integer"}}, ["1", "1.0", "10e-1", "-0"]), ({"type": "number", "not": {"const": 1}}, ["1", "1.0", "1.00"]),
])
def test_what_is_nearly_valid(driver, schema, texts):
    assert all(a != 1 for a in driver.ask(schema=schema, accept=[t.encode().hex() for t in texts])["accept"])


@pytest.mark.parametrize(("schema", "words"), [
    ({"type": "string", "not": {"format": "time"}}, '"time" is not enforced in what must not hold'), ({"not": {"const": 2**53 + 1}}, "2^53"),
    ({"oneOf": [{"enum": [{"a": 1, "b": 2}, *([i] for i in range(40))]}, {"enum": [{"b": 2, "a": 1}, *([100 + i] for i in range(40))]}]}, "more than 32 arrays"),
    ({"allOf": [[{"type": "string"}]]}, "allOf[0]: is no schema"), ({"anyOf": [[{"type": "string"}]]}, "anyOf[0]: is no schema"), ({"not": {"required": ["a\0b"]}}, "not.required"),
])
def test_refused_where_it_cannot_be_told(driver, schema, words):
    with pytest.raises(grammar_drive.Refused) as e:
        driver.ask(schema=schema, masks=[""])
    assert words in str(e.value)


# Words that say nothing, as all drafts have it; those that begin with a letter are no keyword's neighbours.
@pytest.mark.parametrize("word", ["x-pattern", "id", "self", "readonly", "propertyOrder", "markdownDescription", "_enum", "dependsOn", "@type", "$tsType", "errorMessage"])
def test_words_that_say_nothing(driver, word):
    assert driver.ask(schema={"type": "integer", word: {"a": [1]}}, accept=[b"1".hex(), b'"a"'.hex()])["accept"] == [1, -1]


class Draw:
    """Schemas of all keywords that are enforced, and values that some of them may hold of."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def value(self, depth=2):
        rng = self.rng
        kind = rng.randrange(7 if depth else 5)
        if kind < 5:
            return [None, rng.random() < 0.5, rng.choice([0, 1, 2, 3, -1, 6]), rng.choice([0.5, 1.5, -2.5]), rng.choice(["", "a", "b", "ab", "aa", "bab"])][kind]
        if kind == 5:
            return [self.value(depth - 1) for _ in range(rng.randrange(4))]
        return {k: self.value(depth - 1) for k in rng.sample("abc", rng.randrange(4))}

    def several(self, depth):
        return [self.schema(depth - 1) for _ in range(self.rng.randrange(1, 4))]

    def names(self):
        return self.rng.sample("abc", self.rng.randrange(1, 3))

    def schema(self, depth):
        rng = self.rng
        if rng.random() < 0.08:
            return rng.random() < 0.6
        small = lambda: rng.randrange(4)
        scalar = {
            "type": lambda: rng.choice(["null", "boolean", "integer", "number", "string", "array", "object", ["string", "array"], ["integer", "object", "null"]]),
            "enum": lambda: [self.value(1) for _ in range(rng.randrange(1, 5))], "const": lambda: self.value(1),
            "minLength": small, "maxLength": small, "pattern": lambda: rng.choice(["^a", "b$", "^(a|b)*$", "a"]),
            "minimum": small, "maximum": small, "exclusiveMinimum": small, "exclusiveMaximum": small, "multipleOf": lambda: rng.choice([1, 2, 0.5]),
            "required": self.names, "minProperties": lambda: rng.randrange(2), "maxProperties": small, "minItems": small, "maxItems": small,
            "dependentRequired": lambda: {k: self.names() for k in self.names()},
        }
        inner = {
            "allOf": lambda: self.several(depth), "anyOf": lambda: self.several(depth), "oneOf": lambda: self.several(depth),
            "not": lambda: self.schema(depth - 1), "properties": lambda: {k: self.schema(depth - 1) for k in self.names()},
            "additionalProperties": lambda: rng.random() < 0.3 and self.schema(depth - 1), "items": lambda: self.schema(depth - 1),
            "prefixItems": lambda: self.several(depth), "contains": lambda: self.schema(depth - 1),
            "dependentSchemas": lambda: {k: self.schema(depth - 1) for k in self.names()}, "propertyNames": lambda: {"enum": ["a", "b", "d"]},
            "patternProperties": lambda: {rng.choice(["^a", "[bc]"]): self.schema(depth - 1)},
        }
        words = {**scalar, **(inner if depth else {})}
        out = {k: words[k]() for k in rng.sample(list(words), rng.randrange(1, 4))}
        if depth and rng.random() < 0.15:
            out |= {"if": self.schema(depth - 1), rng.choice(["then", "else"]): self.schema(depth - 1)}
        if "contains" in out and rng.random() < 0.3:
            out |= {rng.choice(["minContains", "maxContains"]): rng.randrange(3)}
        return out


def test_drawn_schemas_as_the_package_has_them(driver, capsys):
    """What is accepted is what the package jsonschema finds valid, of values that are drawn and of what masks allow."""
    count = collections.Counter()
    sys.set_int_max_str_digits(0)  # the package writes numbers of walks into its errors
    for seed in range(FIRST, FIRST + DRAWN):
        draw = Draw(seed)
        schema = draw.schema(3)
        validator = jsonschema.Draft202012Validator(schema)
        precise = jsonschema.Draft202012Validator(exact(json.dumps(schema)))
        values = [draw.value() for _ in range(12)]
        valid = [validator.is_valid(v) for v in values]
        try:
            got = accepted(driver, schema, values)
            walked = driver.ask(schema=schema, walks=[1, 2, 3], most=60)["walks"]
            walked += driver.ask(shape=json.dumps({"listed": schema}), walks=[1, 2], most=60)["walks"]
        except grammar_drive.Refused as e:
            assert "no" in str(e) or "limit" in str(e) or "is enforced once" in str(e), (seed, str(e))
            if "no value satisfies" in str(e):
                assert not any(valid), (seed, schema, values)
            count["refused"] += 1
            continue
        assert got == valid, (seed, schema, [(v, g, w) for v, g, w in zip(values, got, valid, strict=True) if g != w])
        for text in walked:
            try:
                value = exact(bytes.fromhex(text).decode())
            except ValueError:
                continue  # cut at `most`
            assert precise.is_valid(value), (seed, schema, bytes.fromhex(text).decode())
        count["schemas"] += 1
        count["valid"] += sum(valid)
    with capsys.disabled():
        print(f"\ndrawn: {count['schemas']} schemas, {count['valid']} of {12 * count['schemas']} values valid, {count['refused']} refused")
    assert count["schemas"] > 2 * count["refused"]


LISTS = {"properties": {"a": {"type": "integer"}}}
OTHER = {"a": 1, "z": 2}


@pytest.mark.parametrize(("schema", "open_"), [
    (LISTS, False), ({**LISTS, "required": ["a"], "maxProperties": 3}, False), ({"properties": {}}, False), ({"type": "object"}, True), ({}, True),
    ({**LISTS, "additionalProperties": True}, True), ({**LISTS, "additionalProperties": {"type": "integer"}}, True), ({**LISTS, "patternProperties": {"^x": True}}, True),
    ({"properties": {"a": {}, "z": {}}, "minProperties": 2}, True), ({**LISTS, "minProperties": 1}, False), ({**LISTS, "required": ["z"]}, True),
    ({"allOf": [LISTS, {"properties": {"z": True}}]}, True), ({**LISTS, "$ref": "#/$defs/n", "$defs": {"n": {"properties": {"b": True}}}}, False),
    ({**LISTS, "anyOf": [{"properties": {"z": True}}, {"required": ["b"]}]}, True), ({"not": {"required": ["b"]}}, True), ({"const": OTHER, "properties": {"a": True}}, True),
    # told apart by what they leave open: both hold of `OTHER` as they are written
    ({"oneOf": [LISTS, {"properties": {"z": {"type": "integer"}}}]}, False), ({"oneOf": [{**LISTS, "required": ["a"]}, {"properties": {"b": {}}, "required": ["b"]}]}, False),
    ({"if": LISTS, "then": {"required": ["z"]}}, True), ({"if": {**LISTS, "required": ["z"]}, "else": False}, True),
])
def test_objects_that_list_their_properties(driver, schema, open_):
    """As requests have them: no others where the schema is silent, and nothing that the schema as it is written does not allow."""
    for value in (OTHER, {"a": 1}, {"z": 2}, {}, {"b": 1}, {"a": "x"}):
        text = json.dumps(value).encode().hex()
        listed = driver.ask(shape=json.dumps({"listed": schema}), accept=[text])["accept"] == [1]
        assert not listed or jsonschema.Draft202012Validator(schema).is_valid(value), value
        if value == OTHER:
            assert listed == open_
    inside = json.dumps([OTHER]).encode().hex()
    assert (driver.ask(shape=json.dumps({"listed": {"type": "array", "items": schema, "$defs": schema.get("$defs", {})}}), accept=[inside])["accept"] == [1]) == open_


def deep(n):
    return {"type": "array", "items": deep(n - 1)} if n else {"type": "null"}


HOSTILE = {
    "itself": {"$ref": "#"},
    "round": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "all of itself": {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"},
    "enum": {"enum": [f"value {i}" for i in range(30000)]},
    "alternatives": {"allOf": [{"anyOf": [{"minLength": i}, {"minLength": i + 1}, {"type": "null"}]} for i in range(30)]},
    "length": {"type": "string", "maxLength": 2000000},
    "items": {"type": "array", "maxItems": 100000},
    "counted": {"properties": {f"p{i}": {} for i in range(2000)}, "maxProperties": 1500},
    "doubling": {"$ref": "#/$defs/d0", "$defs": {
        **{f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(60)}, "d60": {}}},
    "regex": {"type": "string", "pattern": "((a{1,100}){1,100}){1,100}b"},
    "patterns": {"patternProperties": {f"a{i}.*b{i}.*c": {} for i in range(6)}},
    "lengths": {"type": "string", "pattern": "(x+x+)+y", "minLength": 900000},
    "deep": deep(50),
    "names that must not be": {"not": {"required": [f"n{i}" for i in range(49999)]},
                               "oneOf": [{"type": ["object", "string"], "required": ["a"], "properties": {"a": {"const": i}}} for i in (1, 2)]},
    "compared": {"$defs": {"s": {"anyOf": [{"type": "string"}] * 3900}, "n": {"anyOf": [{"type": "number"}] * 3900}},
                 "oneOf": [{"$ref": "#/$defs/s"}] * 4 + [{"$ref": "#/$defs/n"}] * 4},
    "that die": {"$defs": {"x": {"allOf": [*({"title": f"t{i}"} for i in range(200)), *({"anyOf": [{"title": f"a{i}"}, {"title": f"b{i}"}]} for i in range(11)),
                                           {"type": "string"}, {"type": "number"}]}}, "properties": {f"p{i}": {"$ref": "#/$defs/x", "title": f"{i}"} for i in range(300)}},
    "required": {"oneOf": [{"type": "object", "required": [f"{c}{i}" for i in range(6000)]} for c in "nm"]},
    "long names": {"oneOf": [{"required": ["n" * 1000000]}, *({"title": f"t{i}", "type": "object"} for i in range(240))]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_bounded(driver, name):
    """Compiled or refused by the name of a limit, with what was taken bounded; the driver lives."""
    try:
        answer = driver.ask(schema=HOSTILE[name], masks=["", b'"aaaa'.hex()], walks=[1], most=50)
        assert answer["bytes"] < 160 << 20
    except grammar_drive.Refused as e:
        assert "limit" in str(e) or "no value satisfies" in str(e), str(e)
