"""One module for each noun of the command line; ``gateway.cli`` puts them together."""
