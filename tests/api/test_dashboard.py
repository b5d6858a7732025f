"""docs/grafana/sluice.json asks only for metrics, labels and label values that a real server exports."""
import json
import re

from conftest import ROOT

BOARD = json.loads((ROOT / "docs" / "grafana" / "sluice.json").read_text())
SELECTOR = re.compile(r"sluice:(\w+)(?:\{([^}]*)\})?")
KNOWN_LATER = {"le"}  # labels of the query language, not of a selector


def scrape(server):
    """name -> list of label dicts"""
    samples = {}
    for line in server.get("/metrics").text.splitlines():
        found = re.fullmatch(r"sluice:(\w+)(?:\{(.*)\})? (\S+)", line)
        if found:
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found.group(2) or ""))
            samples.setdefault(found.group(1), []).append(labels)
    return samples


def queries():
    for panel in BOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]


def test_every_metric_is_exported(server):
    samples = scrape(server)
    seen = set()
    for title, expr, legend in queries():
        for name, selector in SELECTOR.findall(expr):
            seen.add(name)
            assert name in samples, f"{title}: sluice:{name} is not exported"
            for label, operator, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
                have = {labels.get(label) for labels in samples[name]}
                assert None not in have, f"{title}: sluice:{name} has no label {label}"
                if not value.startswith("$"):
                    assert set(value.split("|")) <= have, f"{title}: {label} is one of {have}"
        for group in re.findall(r"by \(([^)]*)\)", expr):
            for label in group.split(", "):
                names = [name for name, _ in SELECTOR.findall(expr)]
                assert all(label in samples[name][0] for name in names), f"{title}: {label}"
                if label not in KNOWN_LATER:
                    assert "{{" + label + "}}" in legend, f"{title}: legend lacks {label}"
    assert {"num_preemptions_total", "time_to_first_token_seconds_bucket",
            "inter_token_latency_seconds_bucket", "worker_ledger_rows_total"} <= seen
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\(sluice:(\w+), (\w+)\)",
                                       variable["definition"]).groups()
            assert label in samples[name][0]


def test_every_metric_has_a_panel(server):
    shown = {re.sub(r"_(bucket|sum|count)$", "", name)
             for _, expr, _ in queries() for name, _ in SELECTOR.findall(expr)}
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in scrape(server)}
    assert exported - shown == set()


def test_panels_do_not_overlap():
    taken = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
