"""``python -m engine.bench``: the offline engine's throughput."""

from engine.bench.throughput import main

if __name__ == "__main__":
    raise SystemExit(main())
