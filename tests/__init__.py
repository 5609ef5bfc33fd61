"""Tests mirror the source tree; this file keeps ``tests.engine`` from shadowing ``engine``."""
