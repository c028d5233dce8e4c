"""`python -m sulina.cli` is the `sulina` script."""

from sulina.cli import main

main()
