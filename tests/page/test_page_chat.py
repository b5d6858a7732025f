"""The chat of the web page, as a person uses it in a browser."""
import json

import httpx
import pytest
from page_fixtures import chromium, locked, page, served  # noqa: F401
from visit import API_KEY, axe_faults, fresh

pytest.importorskip("axe_core_python", reason="axe-core (PyPI: axe-core-python) is not installed")

QUESTION = "Where did the river go?"
IDLE = "document.querySelector('.send').getAttribute('aria-label') === 'Send'"
ANSWERED = f"document.querySelector('.answer:not(.running) .stats')?.textContent.includes('token') && {IDLE}"


def short_answers(page, tokens=24):
    """The likeliest tokens, and not many."""
    page.js(f"""localStorage.setItem('sluice.sampling', '{{"temperature": 0, "ignore_eos": true, "max_tokens": {tokens}}}')""")
    page.reload()
    page.wait("document.querySelector('#served')?.textContent === 'm'")


def ask(page, text=QUESTION):
    page.type("#prompt", text)
    page.enter()
    page.wait(ANSWERED)


def answer_of(served, messages, tokens=24):
    body = {"model": "m", "messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    return httpx.post(served.url + "/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]["content"]


def shown_answer(page):
    return page.js("[...document.querySelectorAll('.answer .prose')].at(-1).textContent")


def same_words(a, b):
    return a.split() == b.split()


def test_a_question_is_answered_and_kept(page, served):
    short_answers(page)
    ask(page)
    want = answer_of(served, [{"role": "user", "content": QUESTION}])
    raw = "new Promise((f) => { const r = indexedDB.open('sluice', 1); r.onsuccess = () => { const g = r.result.transaction('conversations').objectStore('conversations').getAll(); g.onsuccess = () => { r.result.close(); f(g.result[0].messages[1].content); }; }; })"
    assert page.js(raw) == want
    assert "24 tokens" in page.js("document.querySelector('.answer .stats').textContent")
    page.reload()
    page.click(".entry-name")
    page.wait("document.querySelectorAll('.message').length === 2")
    assert page.js("document.querySelector('.bubble').textContent") == QUESTION


def test_a_question_is_edited_and_an_answer_made_again(page, served):
    short_answers(page)
    ask(page)
    first = shown_answer(page)
    page.click(".answer [aria-label='Answer again']")
    page.wait(ANSWERED)
    assert shown_answer(page) == first  # the likeliest tokens are the same
    page.click("[aria-label='Edit and send again']")
    page.js("document.querySelector('.editor textarea').value = ''")
    page.type(".editor textarea", "And the sea?")
    page.enter()
    page.wait(f"document.querySelector('.bubble').textContent === 'And the sea?' && {ANSWERED}")
    assert page.js("document.querySelectorAll('.message').length") == 2


def test_the_system_prompt_is_sent(page, served):
    short_answers(page)
    page.click(".float-settings")
    page.type("#system-prompt", "You speak of rivers alone.")
    ask(page)
    want = answer_of(served, [{"role": "system", "content": "You speak of rivers alone."}, {"role": "user", "content": QUESTION}])
    page.click(".answer [aria-label='Token probabilities']")
    page.wait("document.querySelectorAll('.tokens .token').length === 24")
    assert same_words(page.js("document.querySelector('.tokens').textContent"), want)
    page.key("Tab")
    page.click(".tokens .token:nth-child(3)")
    assert page.js("document.querySelectorAll('.chance-detail li').length") == 5
    assert page.js("document.querySelector('.chance-detail meter').value") > 0


SAMPLING = {"temperature": "0.7", "top_p": "0.9", "top_k": "40", "min_p": "0.05", "presence_penalty": "0.5", "frequency_penalty": "-0.5", "repetition_penalty": "1.1", "seed": "7", "max_tokens": "6"}


def test_sampling_is_what_the_settings_say(page):
    """Each field goes into the request as a number, wrong and empty ones do not; the button empties all."""
    page.js("""{ const real = window.fetch; window.asked = [];
        window.fetch = (url, o) => { if (String(url).endsWith('chat/completions')) window.asked.push(JSON.parse(o.body)); return real(url, o); }; }""")
    page.click(".float-settings")
    for field, value in SAMPLING.items():
        page.type(f"#s-{field}", value)
    page.type("#s-stop", "one\ntwo\n")
    page.type("#s-variables", '{"enable_thinking": false}')
    ask(page)
    sent = page.js("window.asked.at(-1)")
    assert {field: sent[field] for field in SAMPLING} == {field: float(value) for field, value in SAMPLING.items()}
    assert sent["stop"] == ["one", "two"] and sent["chat_template_kwargs"] == {"enable_thinking": False}
    assert page.js("document.querySelector('.answer .stats').textContent").startswith("6 tokens")
    page.reload()  # kept
    page.wait("document.querySelector('#served')?.textContent === 'm'")
    page.click(".float-settings")
    assert {field: page.js(f"document.querySelector('#s-{field}').value") for field in SAMPLING} == SAMPLING
    page.js("document.querySelector('#s-temperature').value = ''")
    page.type("#s-temperature", "3")
    assert page.js("document.querySelector('#s-temperature').getAttribute('aria-invalid')") == "true"
    assert "temperature" not in page.js("JSON.parse(localStorage.getItem('sluice.sampling'))")
    page.click("#settings > .plain")
    assert page.js("localStorage.getItem('sluice.sampling')") == "{}"
    assert page.js("[...document.querySelectorAll('#settings .fields input, #s-stop, #s-variables')].map((n) => n.value).join('')") == ""


def test_an_answer_is_stopped(page):
    page.js("""localStorage.setItem('sluice.sampling', '{"ignore_eos": true}')""")
    page.reload()
    page.wait("document.querySelector('#served')?.textContent === 'm'")
    page.network(20_000)
    page.js('''{ const timer = setInterval(() => {  // sooner than the answer ends
        if (!document.querySelector('.answer.running .stats')?.textContent) return;
        clearInterval(timer);
        document.querySelector('.send').click(); }, 1); }''')
    page.type("#prompt", QUESTION)
    page.enter()
    page.wait(f"document.querySelector('.answer .stats')?.textContent.includes('stopped') && {IDLE}")


def test_conversations_are_renamed_and_deleted(page):
    short_answers(page, 2)
    ask(page, "one")
    page.click(".entry-more")
    page.wait("document.activeElement.textContent === 'Rename'")
    page.js("document.activeElement.click()")
    page.js("document.querySelector('.entry-rename').value = 'Rivers'")
    page.enter()
    page.wait("document.querySelector('.entry-name')?.textContent === 'Rivers'")
    ask(page, "two")
    assert page.js("document.querySelector('.entry-name').textContent") == "Rivers"  # the next answer does not undo it
    page.click(".entry-more")
    page.js("document.querySelector('.entry-menu').lastChild.click()")
    page.wait("document.querySelectorAll('.entry').length === 0")
    page.click(".toast button")
    page.wait("document.querySelector('.entry-name')?.textContent === 'Rivers'")


def test_what_is_deleted_while_its_answer_comes_stays_deleted(page):
    page.js("""localStorage.setItem('sluice.sampling', '{"ignore_eos": true}')""")
    page.reload()
    page.wait("document.querySelector('#served')?.textContent === 'm'")
    page.network(20_000)
    page.js('''{ const timer = setInterval(() => {  // sooner than the answer ends
        if (!document.querySelector('.answer.running .stats')?.textContent) return;
        clearInterval(timer);
        document.querySelector('.entry-more').click();
        document.querySelector('.entry-menu').lastChild.click(); }, 1); }''')
    page.type("#prompt", QUESTION)
    page.enter()
    page.wait(f"document.querySelectorAll('.toast button').length === 1 && document.querySelectorAll('.entry').length === 0 && {IDLE}")
    page.network(None)
    page.reload()
    page.wait("document.querySelector('#served')?.textContent === 'm'")
    assert page.js("document.querySelectorAll('.entry').length") == 0


MARKDOWN = r"""# Title
**bold** *em* ~~gone~~ `a<b` [safe](https://example.org/a_(b)) [bad](javascript:alert(1)) <img src=x onerror="alert(1)"> ![pic](https://example.org/p.png)

- one
  1. inner
- two \*not em\*

| a | b |
|--:|:--|
| 1 | x\|y |

```html
<script>alert(1)</script>
```
> quote **in** it

snake_case_stays 2 * 3 * 4"""


def test_markdown_becomes_nodes_and_never_html(page):
    page.js(f"""import(new URL('page/markdown.js', document.baseURI)).then((m) => {{
        const place = document.createElement('div'); place.id = 'md'; place.className = 'prose';
        document.querySelector('.log').append(place); m.renderInto(place, {json.dumps(MARKDOWN)}); }})""")
    tree = page.js("document.querySelector('#md').innerHTML")
    for part in ("<strong>bold</strong>", "<em>em</em>", "<s>gone</s>", "<code>a&lt;b</code>", 'href="https://example.org/a_(b)"', "<li>one<ol><li>inner</li></ol></li>",
                 "<li>two *not em*</li>", '<th class="to-right" scope="col">a</th>', "x|y", "&lt;script&gt;alert(1)&lt;/script&gt;", "<blockquote><p>quote <strong>in</strong> it</p></blockquote>",
                 "snake_case_stays 2 * 3 * 4", 'href="https://example.org/p.png"'):
        assert part in tree, part
    assert page.js("document.querySelectorAll('#md script, #md img, #md [href^=javascript]').length") == 0


def test_markdown_that_is_not_finished_or_hostile_ends_soon(page):
    hostile = ["*" * 3000, "[" * 3000, "`" * 3001, "> " * 500 + "x", "\n".join(" " * i + "- x" for i in range(300)), "|" * 2000 + "\n" + "|-" * 1000, "```\nopen", "**a", "_" * 2000 + "a"]
    took = page.js(f"""import(new URL('page/markdown.js', document.baseURI)).then((m) => {{
        const begun = performance.now();
        for (const text of {json.dumps(hostile)}) m.renderInto(document.createElement('div'), text);
        return performance.now() - begun; }})""")
    assert took < 5000


@pytest.mark.parametrize("width, scheme", [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_axe_finds_nothing(page, width, scheme):
    short_answers(page, 8)
    page.size(width, 800)
    page.scheme(scheme)
    ask(page)
    page.js("document.querySelector('.answer [aria-label=\"Token probabilities\"]').click()")
    page.wait("document.querySelector('.tokens')")
    assert axe_faults(page) == []
    page.click(".float-settings" if width > 600 else "#open-settings-top")
    assert axe_faults(page) == []
    if width < 600:
        page.click("[aria-label='Close settings']")
        page.click("#open-rail")
        page.wait("document.querySelector('#rail').contains(document.activeElement)")
    else:
        page.click("#open-key")
    assert axe_faults(page) == []


def test_a_key_is_asked_for(chromium, locked):
    fresh(chromium, locked)
    chromium.wait("document.querySelector('#key-dialog').open")
    chromium.type("#api-key", "wrong")
    chromium.click("#key-form [type=submit]")
    chromium.wait("document.querySelector('#key-dialog').open && document.querySelector('#api-key').value === 'wrong'")
    chromium.js("document.querySelector('#api-key').value = ''")
    chromium.type("#api-key", API_KEY)
    chromium.click("#key-form [type=submit]")
    chromium.wait("document.querySelector('#served').textContent === 'm'")
    assert chromium.js("sessionStorage.getItem('sluice.key.api')") == API_KEY
    assert chromium.js("localStorage.getItem('sluice.key.api')") is None
    chromium.js("""localStorage.setItem('sluice.sampling', '{"max_tokens": 4}')""")
    chromium.reload()
    chromium.wait("document.querySelector('#served')?.textContent === 'm'")
    ask(chromium)


def test_files_have_types_tags_and_a_policy(served, locked):
    for server in (served, locked):  # they need no key
        index = httpx.get(server.url + "/")
        assert index.status_code == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        again = httpx.get(server.url + "/", headers={"If-None-Match": index.headers["etag"]})
        assert again.status_code == 304 and again.content == b"" and again.headers["content-security-policy"] == policy
    script = httpx.get(served.url + "/page/main.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8" and script.headers["x-content-type-options"] == "nosniff"
    assert httpx.head(served.url + "/page/base.css").headers["content-type"] == "text/css; charset=utf-8"
    assert httpx.get(served.url + "/page/none.js").json()["error"]["code"] == "unknown_url"
    assert httpx.get(served.url + "/page/..%2froutes.c").status_code == 404
    assert httpx.post(served.url + "/", content=b"").status_code == 405
    assert httpx.get(served.url + "/nothing").status_code == 404
