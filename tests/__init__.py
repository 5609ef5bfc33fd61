"""The test suite mirrors the source tree; this file keeps ``tests.engine`` from shadowing ``engine``."""
