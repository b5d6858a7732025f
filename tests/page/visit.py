"""What tests of the page do with a browser before and after."""
import importlib.util
import json
import pathlib

API_KEY = "a key of the tests"


def fresh(browser, server, view="chat"):
    """The page as a stranger opens it."""
    browser.size(1280, 800)
    browser.scheme("light")
    browser.network(None)
    browser.open(f"{server.url}/page/icon.svg")  # of the same origin, and without a script
    browser.js("""(async () => {
        localStorage.clear(); sessionStorage.clear();
        await new Promise((done) => { const r = indexedDB.deleteDatabase("sluice"); r.onsuccess = r.onerror = r.onblocked = done; });
    })()""")
    browser.problems.clear()
    browser.open(f"{server.url}/#{view}")


def axe_faults(browser):
    """What axe-core finds wrong with the page as it is, one line a rule and place."""
    folder = pathlib.Path(importlib.util.find_spec("axe_core_python").origin).parent
    browser.js((folder / "axe.min.js").read_text() + "\n;true")
    found = browser.js("axe.run(document, {resultTypes: ['violations']}).then((r) => r.violations.map((v) => "
                       "({id: v.id, nodes: v.nodes.map((n) => [n.target.join(' '), n.failureSummary])})))")
    return [f"{v['id']}: {json.dumps(n)}" for v in found for n in v["nodes"]]
