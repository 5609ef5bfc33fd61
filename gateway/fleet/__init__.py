"""Engines of other hosts: how they are found, known and trusted."""
