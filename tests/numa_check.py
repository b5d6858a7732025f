#!/usr/bin/env python3
"""Whether what the machine of tests/numa.sh has printed is as it has to be: numa_check.py LOG."""
import re
import sys


def read(path):
    """Name of a case -> its tokens, lines of its log, and (pages on node 0, on node 1) of each mapping of the model's file."""
    cases, case, ended = {}, None, False
    for line in open(path, errors="replace"):
        _, mark, text = line.rstrip().partition("numa: ")
        what, _, rest = text.partition(" ")
        if not mark:
            continue
        if what == "case":
            case = cases[rest.partition(":")[0]] = {"tokens": "", "log": [], "pages": []}
        elif what == "tokens":
            case["tokens"] = rest
        elif what == "log":
            case["log"].append(rest)
        elif what == "pages":
            case["pages"].append(tuple(int(n[1]) if (n := re.search(rf" N{node}=(\d+)", rest)) else 0 for node in (0, 1)))
        elif what == "end":
            ended = True
    return cases, ended


def shares(case):
    """Of each mapping the part of its pages that lies on node 1, in ascending order."""
    return sorted(n1 / (n0 + n1) for n0, n1 in case["pages"])


def ranks(case):
    """Rank -> node, MB there, of so many, moved."""
    found = {}
    for line in case["log"]:
        m = re.search(r"rank (\d) of 2: weights on memory node (\d): ([\d.]+) MB of ([\d.]+), ([\d.]+) of them moved", line)
        if m:
            found[int(m[1])] = int(m[2]), *map(float, m.groups()[2:])
    return found


def check(cases, ended):
    """What is not as it has to be."""
    def told(name, ok, what):
        if not ok:
            wrong.append(f"{name}: {what}: {cases.get(name)}")

    wrong = [] if ended else ["the machine did not come to its end"]
    names = ["off", "threads", "processes", "colocated", "numbers", "several"]
    if sorted(cases) != sorted(names):
        return wrong + [f"cases {list(cases)}"]
    for name in names:
        told(name, cases[name]["tokens"].count(",") == 3 and cases[name]["tokens"] == cases["off"]["tokens"], "tokens")
    told("off", len(cases["off"]["pages"]) == 2 and shares(cases["off"])[1] < 0.01, "all pages are on the first node")
    for name in ("threads", "processes"):
        case = cases[name]
        told(name, len(case["pages"]) == 2 and shares(case)[0] < 0.05 and shares(case)[1] > 0.95, "each rank's pages are on its node")
        rank = ranks(case)
        told(name, sorted(rank) == [0, 1] and all(rank[i][0] == i and rank[i][1] > 0.95 * rank[i][2] for i in rank), "what ranks say")
        told(name, rank.get(1, (0, 0, 0, 0))[3] > 25 and rank.get(0, (0, 0, 0, 99))[3] < 1, "what has moved")
    # Both have the same attention, a page of which lies with whoever comes to it first; experts are 0.77 of the weights of each.
    first, second = shares(cases["colocated"]) if len(cases["colocated"]["pages"]) == 2 else (1, 0)
    told("colocated", first < 0.27 and second > 0.73 and first + (1 - second) < 0.27, "each worker's experts are on its node")
    told("numbers", len(cases["numbers"]["pages"]) == 2 and shares(cases["numbers"])[1] > 0.95, "the experts are on the second node")
    told("several", any("several memory nodes" in line for line in cases["several"]["log"]), "a worker on both nodes says so")
    return wrong


def main():
    cases, ended = read(sys.argv[1])
    wrong = check(cases, ended)
    for name, case in cases.items():
        print(f"{name}: {', '.join(f'{n0} + {n1}' for n0, n1 in case['pages'])} pages on nodes 0 + 1")
        for line in case["log"]:
            print("   ", line.partition(" stage: ")[2] or line)
    print("\n".join(wrong) if wrong else "all as it has to be; the same tokens in every case")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
