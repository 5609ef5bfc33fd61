"""Looks for examples that fail: ``python -m tests.gateway.departures FIRST COUNT``.

Prints each seed that fails, and why; with one seed it says all that it knows.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.gateway import tiny_model
from tests.gateway.departures.example import run_example
from tests.gateway.departures.plan import plan_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--only", type=int, nargs="*", help="visits by their numbers")
    parser.add_argument("--repeat", type=int, default=1)
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    num_run = num_failed = 0
    with tempfile.TemporaryDirectory() as folder:
        model_dir = tiny_model.build(Path(folder))
        for seed in range(args.first, args.first + args.count):
            plan = plan_of(seed)
            if args.only is not None:
                plan = plan.only(set(args.only))
            for _ in range(args.repeat):
                if time.monotonic() > until:
                    break
                num_run += 1
                faulthandler.dump_traceback_later(120)
                try:
                    run_example(plan, model_dir)
                except BaseException as error:
                    num_failed += 1
                    print(f"=== seed {seed} failed", flush=True)
                    print("".join(traceback.format_exception(error))[-6000:], flush=True)
                    if isinstance(error, KeyboardInterrupt):
                        raise
                finally:
                    faulthandler.cancel_dump_traceback_later()
    print(f"{num_failed} of {num_run} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
