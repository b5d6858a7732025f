"""What `make test` takes of a list of like cases, so that it takes its minutes: with SLUICE_WHOLE in the environment tests take
all of them (tests/long.py, part `whole`)."""
import itertools
import os

WHOLE = bool(os.environ.get("SLUICE_WHOLE"))


def of(cases, *taken):
    """The cases of these places, or all of them."""
    cases = list(cases)
    return cases if WHOLE else [cases[i] for i in taken]


def pairs(ones, others):
    """Every one of these with every one of those; of a sample each of these once, with those in turn."""
    ones, others = list(ones), list(others)
    return list(itertools.product(ones, others)) if WHOLE else [(one, others[i % len(others)]) for i, one in enumerate(ones)]
