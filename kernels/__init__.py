"""Compute kernels behind the engine.

Import-light and without ``__version__`` on purpose: ``transformers`` probes for a distribution of
the same name and must find nothing here that it could mistake for it.
"""
