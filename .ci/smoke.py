"""Start a demo, chat with it once over HTTP, and stop it: ``python .ci/smoke.py COMMAND...``.

The command gets the demo's options in place of ``{options}``.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

START_TIMEOUT_S = 120


def ask(ready: dict[str, Any]) -> str:
    body = {"model": "demo", "messages": [{"role": "user", "content": "What is 7 times 8?"}]}
    request = urllib.request.Request(
        f"{ready['url']}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {ready['api_key']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    assert "56" in answer, answer
    return str(answer)


def main(command: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-smoke-") as folder:
        ready_file = Path(folder, "ready.json")
        options = f"--port 0 --data-dir {folder}/data --ready-file {ready_file}"
        program: list[str] = []
        for word in command:
            program += options.split() if word == "{options}" else [word.format(options=options)]
        process = subprocess.Popen(program)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not ready_file.exists():
                assert process.poll() is None, f"{program} ended"
                assert time.monotonic() < deadline, f"{program} is not ready"
                time.sleep(0.1)
            ready = json.loads(ready_file.read_text())
            print("smoke:", ask(ready), flush=True)
            os.kill(ready["pid"], signal.SIGTERM)
            assert process.wait(60) == 0, f"{program} ended with {process.returncode}"
        finally:
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
