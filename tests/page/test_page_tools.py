"""Calls of tools in the chat of the web page: of a model whose weights say them (tests/api/saying.py), and of answers that come piece
by piece when the test says so."""
import json
import pathlib
import re
import sys
import time

import pytest
from page_fixtures import ROOT, SLUICE, Server, chromium  # noqa: F401
from visit import axe_faults, fresh

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "api"))
import saying  # noqa: E402

pytest.importorskip("axe_core_python", reason="axe-core (PyPI: axe-core-python) is not installed")

TEMPLATE = ROOT / "tests" / "golden" / "chat" / "templates" / "Qwen3.jinja"
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}
ADD = {"type": "function", "function": {"name": "add"}}
PAIR = '{"a": [1, 2.50], "b": {}}'
OSLO = '{"city": "Oslo", "days": 3}'
FIELD = ".call-field:not([hidden]) textarea"
SEND = ".calls-foot:not([hidden]) [type=submit]"
IDLE = "document.querySelector('.send').getAttribute('aria-label') === 'Send'"
WAITS = f"[...document.querySelectorAll('.answer .stats')].at(-1)?.textContent.match(/waits for the tool(’s result|s’ results)$/) && {IDLE}"
ANSWER = "It is sunny in Oslo."
ANSWERED = f"[...document.querySelectorAll('.answer > .prose')].at(-1)?.textContent === {json.dumps(ANSWER)} && {IDLE}"


def call_of(name, arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A model that calls get_weather; get_weather and add where #both was said; and knows the answer at #sunny."""
    if not SLUICE.exists():
        pytest.skip(f"{SLUICE} is not built")
    folder = tmp_path_factory.mktemp("saying")
    one = f"<think>\nThey ask for the weather.\n</think>\n\nI look.\n{call_of('get_weather', OSLO)}"
    both = f"<think>\n\n</think>\n\n{call_of('get_weather', '{}')}\n{call_of('add', PAIR)}"
    saying.make(folder, TEMPLATE.read_text(), ["<|im_start|>assistant\n"], [one, ("#both", both), ("#sunny", f"<think>\nNow I know.\n</think>\n\n{ANSWER}")])
    server = Server(folder, "--threads", "1")
    yield server
    assert server.stop() == 0


# Notes what is asked. With `held`, an answer is what the test puts: its events one by one.
WRAP = """{
    const real = window.fetch;
    window.asked = [];
    window.fetch = (url, options) => {
        if (!String(url).endsWith('chat/completions')) return real(url, options);
        window.asked.push(JSON.parse(options.body));
        if (!window.held) return real(url, options);
        const stream = new ReadableStream({ start(to) {
            const put = (text) => to.enqueue(new TextEncoder().encode(text));
            window.put_event = (event) => put(`data: ${JSON.stringify(event)}\\n\\n`);
            window.put = (delta, finish_reason = null) => window.put_event({ choices: [{ delta, finish_reason }] });
            window.done = () => { put('data: [DONE]\\n\\n'); to.close(); };
            options.signal.addEventListener('abort', () => to.error(options.signal.reason));
        } });
        return Promise.resolve(new Response(stream));
    }; }"""


def visit(browser, server, tools=(TOOL, ADD), held=False):
    fresh(browser, server)
    browser.js("""localStorage.setItem('sluice.sampling', '{"temperature": 0}')""")
    browser.js(f"localStorage.setItem('sluice.tools', JSON.stringify({json.dumps(json.dumps(list(tools)) if tools else '')}))")
    reload(browser, held)


def reload(browser, held=False):
    browser.reload()
    browser.wait("document.querySelector('#served')?.textContent === 'm'")
    browser.js(f"{WRAP}; window.held = {json.dumps(held)}")


def ask(browser, text="What is the weather?"):
    browser.type("#prompt", text)
    browser.enter()


def asked(browser):
    return browser.js("window.asked.at(-1)")


def shown(browser, what):
    return browser.js(f"[...document.querySelectorAll({json.dumps(what)})].filter((n) => n.checkVisibility()).map((n) => n.innerText)")


@pytest.fixture
def page(chromium, caller):
    visit(chromium, caller)
    yield chromium
    assert chromium.problems == []


def put(browser, delta, finish=None):
    browser.js(f"window.put({json.dumps(delta)}, {json.dumps(finish)})")


def piece(index, text, name=None):
    begins = {"id": f"call_{index}", "type": "function"} if name else {}
    return {"tool_calls": [{"index": index, **begins, "function": {**({"name": name} if name else {}), "arguments": text}}]}


def test_a_call_is_answered_by_its_reader(page):
    ask(page)
    page.wait(WAITS)
    assert asked(page)["tools"] == [TOOL, ADD]
    assert shown(page, ".call-name") == ["get_weather"]
    assert shown(page, ".call pre") == ['{\n  "city": "Oslo",\n  "days": 3\n}']
    assert shown(page, ".answer > .prose") == ["I look."]
    assert "get_weather and waits" in page.js("document.querySelector('#announcer').textContent")
    page.wait("document.activeElement.labels?.[0].textContent === 'Result of get_weather'")  # who typed the question goes on there
    page.type(FIELD, "#sunny")
    page.enter()
    page.wait(ANSWERED)
    messages = asked(page)["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool"]
    call = messages[1]["tool_calls"][0]
    assert call["type"] == "function" and call["function"] == {"name": "get_weather", "arguments": OSLO}
    assert messages[1]["content"] == "I look." and messages[1]["reasoning_content"] == "They ask for the weather."
    assert messages[2] == {"role": "tool", "tool_call_id": call["id"], "content": "#sunny"}
    assert "waits" not in page.js("document.querySelector('.answer .stats').textContent")
    assert shown(page, ".call pre") == [] and page.js("document.activeElement.id") == "prompt"
    page.click(".call summary")
    assert shown(page, ".call pre")[1] == "#sunny"


def test_results_are_kept_and_can_be_edited(page):
    ask(page)
    page.wait(WAITS)
    page.type(FIELD, "not yet")
    page.js("document.activeElement.blur()")  # kept when it is left
    page.wait("document.querySelector('.entry-name')")
    reload(page)
    page.click(".entry-name")
    page.wait("document.querySelector('.call-field:not([hidden]) textarea')?.value === 'not yet'")
    page.click(SEND)
    page.wait(f"document.querySelectorAll('.answer').length === 2 && {WAITS}")  # it calls again
    reload(page)
    page.click(".entry-name")
    page.wait("document.querySelectorAll('.answer').length === 2")
    page.click("[aria-label^='Edit the results']")
    page.wait("document.activeElement.value === 'not yet'")
    page.key("Escape")
    page.wait("document.activeElement.getAttribute('aria-label').startsWith('Edit the results')")
    page.click("[aria-label^='Edit the results']")
    page.js("document.activeElement.value = ''")
    page.type(FIELD, "#sunny")
    page.click(SEND)
    page.wait(ANSWERED)
    assert page.js("document.querySelectorAll('.answer').length") == 2
    page.js("[...document.querySelectorAll('.answer [aria-label=\"Answer again\"]')].at(-1).click()")
    page.wait(f"window.asked.length === 2 && {ANSWERED}")
    assert [m["role"] for m in asked(page)["messages"]] == ["user", "assistant", "tool"]
    page.js("document.querySelector('.answer [aria-label=\"Answer again\"]').click()")
    page.wait(f"window.asked.length === 3 && {WAITS}")
    assert asked(page)["messages"] == [{"role": "user", "content": "What is the weather?"}]
    assert shown(page, FIELD) == [""]


def test_several_calls_in_one_message(page):
    ask(page, "#both, please")
    page.wait(WAITS)
    assert shown(page, ".call-name") == ["get_weather", "add"]
    assert shown(page, ".call pre") == ["{}", '{\n  "a": [\n    1,\n    2.50\n  ],\n  "b": {}\n}']
    assert shown(page, ".call-field label") == ["Result of get_weather", "Result of add, call 2"]
    page.wait("document.activeElement === document.querySelector('.call-field textarea')")
    page.call("Input.insertText", text="rain")
    page.enter()  # to the next one
    page.wait("document.activeElement === document.querySelectorAll('.call-field textarea')[1]")
    page.call("Input.insertText", text="#sunny")
    page.enter()
    page.wait(ANSWERED)
    messages = asked(page)["messages"]
    ids = [c["id"] for c in messages[1]["tool_calls"]]
    assert messages[1]["content"] is None and len(set(ids)) == 2
    assert messages[2:] == [{"role": "tool", "tool_call_id": i, "content": text} for i, text in zip(ids, ("rain", "#sunny"))]


def test_a_message_instead_of_results_sends_what_there_is_of_them(page):
    ask(page, "#both, please")
    page.wait(WAITS)
    page.type(FIELD, "rain")
    ask(page, "#sunny, I hear")
    page.wait(ANSWERED)
    messages = asked(page)["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [m["content"] for m in messages[2:]] == ["rain", "", "#sunny, I hear"]


def test_probabilities_of_a_call_are_those_of_its_prompt(page):
    """The prompt has the tools, or the tokens were not as likely as these weights make them."""
    ask(page)
    page.wait(WAITS)
    page.js("{ const real = window.fetch; window.fetch = (url, o) => { if (String(url).endsWith('tokenize')) window.shown = JSON.parse(o.body); return real(url, o); }; }")
    page.click(".answer [aria-label='Token probabilities']")
    page.wait("document.querySelector('.tokens')")
    assert page.js("window.shown.tools") == [TOOL, ADD]
    assert "<tool_call>" in page.js("document.querySelector('.tokens').textContent")


def test_a_call_is_shown_as_it_comes(chromium, caller):
    page = chromium
    visit(page, caller, held=True)
    ask(page)
    page.wait("window.put")
    put(page, piece(0, '{"city": "O', "get_weather"))
    page.wait("document.querySelector('.call pre')?.textContent === '{\\n  \"city\": \"O'")
    assert page.js("document.querySelector('.call').open") and shown(page, ".call-field") == []
    put(page, piece(0, 'slo", "at": [1, {"x": 12345678901234567890}]}'))
    want = '{\n  "city": "Oslo",\n  "at": [\n    1,\n    {\n      "x": 12345678901234567890\n    }\n  ]\n}'
    page.wait(f"document.querySelector('.call pre').textContent === {json.dumps(want)}")
    page.click(".call summary")  # folded by the reader: stays so
    put(page, piece(1, "", "add"))
    put(page, piece(1, '<img src=x onerror="alert(1)">'))
    page.wait("document.querySelectorAll('.call').length === 2")
    assert not page.js("document.querySelector('.call').open") and shown(page, ".call-brief")[0].startswith('{"city": "Oslo"')
    put(page, {}, "tool_calls")
    page.js("window.done()")
    page.wait(WAITS)
    assert shown(page, ".call pre") == ['<img src=x onerror="alert(1)">'] and page.js("document.querySelectorAll('.calls img').length") == 0
    assert chromium.problems == []


def test_reasoning_is_folded_above_the_answer(chromium, caller):
    page = chromium
    visit(page, caller, tools=(), held=True)
    ask(page)
    page.wait("window.put")
    assert not page.js("document.querySelector('.reasoning').checkVisibility()")  # there is none
    put(page, {"reasoning_content": "They ask for "})
    page.wait("document.querySelector('.reasoning').checkVisibility()")
    assert shown(page, ".reasoning summary") == ["Reasoning …"] and shown(page, ".reasoning .prose") == []
    page.click(".reasoning summary")
    put(page, {"reasoning_content": "the weather."})
    page.wait("document.querySelector('.reasoning .prose').innerText === 'They ask for the weather.'")
    assert shown(page, ".reasoning .prose") == ["They ask for the weather."]
    put(page, {"content": "Sun."})
    page.wait("document.querySelector('.reasoning summary').textContent === 'Reasoning'")
    put(page, {}, "stop")
    page.js("window.done()")
    page.wait(IDLE)
    assert shown(page, ".answer > .prose") == ["Sun."] and shown(page, ".reasoning .prose") == ["They ask for the weather."]  # stays open
    page.click(".reasoning summary")
    assert shown(page, ".reasoning .prose") == []
    assert chromium.problems == []


def tokens(browser, ids, n, text="a"):
    """An event with tokens, and how many there are so far."""
    browser.js(f"""(() => {{ const choice = {{ delta: {{ content: {json.dumps(text)} }}, finish_reason: null, token_ids: {json.dumps(ids)} }};
        window.put_event({{ choices: [choice], usage: {{ completion_tokens: {n}, prompt_tokens: 3 }} }}); }})()""")


def test_rate_and_first_token_are_those_that_were_seen(chromium, caller):
    """From sending to the first token, and tokens a second from there to the last one."""
    page = chromium
    visit(page, caller, tools=(), held=True)
    begun = page.js("performance.now()")
    ask(page)
    page.wait("window.put")
    time.sleep(0.4)
    tokens(page, [5], 1)
    page.wait("document.querySelector('.answer .stats').textContent.includes('first after')")
    first_by = page.js("performance.now()")
    time.sleep(0.5)
    tokens(page, [6, 7, 8, 9], 5)
    page.wait("document.querySelector('.answer .stats').textContent.includes('tokens/s')")
    last_by = page.js("performance.now()")
    put(page, {}, "stop")
    page.js("window.done()")
    page.wait(IDLE)
    found = re.fullmatch(r"5 tokens · ([\d.]+) tokens/s · first after ([\d.]+) (ms|s)", page.js("document.querySelector('.answer .stats').textContent"))
    assert found, page.js("document.querySelector('.answer .stats').textContent")
    first = float(found[2]) * (1000 if found[3] == "s" else 1)
    assert 390 <= first <= first_by - begun + 51  # shown in tenths of seconds
    assert 4 / ((last_by - begun) / 1000 - 0.4) <= float(found[1]) <= 4 / 0.49
    assert chromium.problems == []


def test_an_answer_that_ends_inside_its_calls(chromium, caller):
    """Stopped, cut, broken off: what there is of a call stays, asks for nothing, and does not go back to the model."""
    page = chromium
    visit(page, caller, held=True)
    ask(page)
    page.wait("window.put")
    put(page, piece(0, '{"city": "O', "get_weather"))
    page.wait("document.querySelector('.call')")
    page.click(".send")
    page.wait(f"document.querySelector('.stats').textContent.startsWith('stopped · its calls may be broken') && {IDLE}")
    assert shown(page, ".call-field") == [] and shown(page, ".call-name") == ["get_weather"]
    ask(page, "Go on")
    page.wait("window.asked.length === 2")
    assert [m["role"] for m in asked(page)["messages"]] == ["user", "assistant", "user"]
    assert "tool_calls" not in asked(page)["messages"][1]
    put(page, piece(0, '{"a": 1', "add"), "length")
    page.js("window.done()")
    page.wait(f"[...document.querySelectorAll('.stats')].at(-1).textContent.startsWith('cut at the length limit · its calls') && {IDLE}")
    assert chromium.problems == []


def test_conversations_of_before_still_open_and_calls_are_saved_as_text(chromium, caller):
    page = chromium
    visit(page, caller)
    old = {"id": "a", "title": "Old", "system": "", "created": 1, "updated": 1,
           "messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two", "ids": [], "stats": {}}]}
    page.js(f"import(new URL('page/store.js', document.baseURI)).then(async (m) => {{ await m.openStore(); await m.saveConversation({json.dumps(old)}); }})")
    reload(page)
    page.click(".entry-name")
    page.wait("document.querySelectorAll('.message').length === 2")
    ask(page)
    page.wait(WAITS)
    assert [m["role"] for m in asked(page)["messages"]] == ["user", "assistant", "user"]
    page.type(FIELD, "```\n#sunny")
    page.click(SEND)
    page.wait(ANSWERED)
    text = page.js("import(new URL('page/store.js', document.baseURI)).then(async (m) => { await m.openStore(); return m.asMarkdown((await m.allConversations())[0]); })")
    assert text.startswith("# Old\n\n**You**\n\none\n\n**Model**\n\ntwo\n\n**You**")
    assert f"I look.\n\nCall of `get_weather`:\n\n```\n{OSLO}\n```\n\nResult:\n\n````\n```\n#sunny\n````\n\n**Model**\n\n{ANSWER}\n" in text
    assert chromium.problems == []


FAULTS = [("[", "This is not JSON: "), (json.dumps(TOOL), "This is no list"), ("[1]", "Tool 1 is no object"),
          (json.dumps([TOOL, {"name": "add"}]), 'Tool 2 has no "type": "function"'), ('[{"type": "function"}]', 'Tool 1 has no object "function"'),
          ('[{"type": "function", "function": {"description": "x"}}]', "Tool 1 has no name"), (json.dumps([TOOL, TOOL]), "Tool 2 has a name that is taken: get_weather"),
          ('[{"type": "function", "function": {"name": "f", "parameters": []}}]', 'Tool 1 (f): "parameters" is no object'),
          ('[{"type": "function", "function": {"name": "f", "description": 1}}]', 'Tool 1 (f): "description" is no text')]


def test_tools_are_checked_and_kept(chromium, caller):
    page = chromium
    visit(page, caller, tools=())
    said = "document.querySelector('#t-tools').textContent"
    assert shown(page, ".composer-tools") == []
    page.click(".float-settings")
    page.click(".tools-field .link")
    page.wait(f"{said} === 'One tool: get_weather'")
    assert page.js("document.querySelector('.composer-tools').textContent") == "1"
    for text, fault in FAULTS:
        page.js("document.querySelector('#s-tools').value = ''")
        page.type("#s-tools", text)
        page.js("document.activeElement.blur()")  # said at once then
        page.wait(f"{said}.startsWith({json.dumps(fault)})")
        assert page.js("document.querySelector('#s-tools').getAttribute('aria-invalid')") == "true"
    page.click("#settings [aria-label='Close settings']")
    ask(page)  # nothing is sent: the fault is shown
    page.wait("document.activeElement.id === 's-tools'")
    assert page.js("document.querySelector('#prompt').value") == "What is the weather?" and page.js("window.asked.length") == 0
    reload(page)
    page.click(".float-settings")
    assert page.js("document.querySelector('#s-tools').value") == FAULTS[-1][0] and fault in page.js(said)
    page.js("document.querySelector('#s-tools').value = ''")
    page.type("#s-tools", " ")
    ask(page, "hello")
    page.wait(f"document.querySelector('.stats')?.textContent.includes('token') && {IDLE}")
    assert "tools" not in asked(page) and shown(page, ".call") == []
    assert chromium.problems == []


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_in_calls(page, width, scheme):
    page.size(width, 800)
    page.scheme(scheme)
    ask(page, "#both, please")
    page.wait(WAITS)
    assert axe_faults(page) == []
    assert page.js("document.querySelector('.scroller').scrollWidth <= document.querySelector('.scroller').clientWidth")
    page.type(FIELD, "#sunny")
    page.click(SEND)
    page.wait(ANSWERED)
    page.click("[aria-label^='Edit the results']")
    page.click(".composer-tools")
    assert axe_faults(page) == []
