"""`python -m space.cli`."""

from space.cli import main

main()
