"""`python -m isolet`."""

from isolet.cli.main import main

main(prog_name="isolet")
