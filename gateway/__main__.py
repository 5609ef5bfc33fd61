"""``python -m gateway`` is ``sluice``."""

from gateway.cli import main

main()
