"""`python -m sluice_moe` is the program."""

from ._program import main

main()
