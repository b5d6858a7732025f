"""What `make test` takes of a list of like cases, so that it takes its minutes: with SLUICE_WHOLE in the environment tests take
all of them (tests/long.py, part `whole`)."""
import os

WHOLE = bool(os.environ.get("SLUICE_WHOLE"))


def of(cases, *taken):
    """The cases of these places, or all of them."""
    cases = list(cases)
    return cases if WHOLE else [cases[i] for i in taken]
