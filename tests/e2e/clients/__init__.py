"""Real clients against the demo: ``versions.toml`` pins them, ``programs`` has what each tries, and
``docs/clients.md`` what came of it. ``python -m tests.e2e.clients`` writes that anew.
"""
