"""`python -m space`."""

from space.cli import main

main()
