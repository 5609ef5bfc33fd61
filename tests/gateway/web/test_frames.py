"""How evenly the page draws while an answer streams into a long conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.gateway.web.conftest import OpenPage
from tests.gateway.web.conversation import ask, ended
from tests.gateway.web.scripted_server import Done, Say, ScriptedServer, Wait

pytestmark = [pytest.mark.browser, pytest.mark.nightly]

PARAGRAPH = "The fox **Ada** looked at the `river` and at the mill behind it. " * 8 + "\n\n"
EARLIER = 50
"""Answers of 2,000 characters each, so that the conversation has 100,000."""
TOKENS_PER_S = 200
SECONDS = 5

SOCKETS = """window.sockets = []; const Real = WebSocket;
window.WebSocket = class extends Real {
  constructor(...given) { super(...given); sockets.push(this); }
};"""
# Tokens come from within the page: what a server and a test would add is not the page's.
TOKENS = """([text, perSecond, seconds]) => new Promise((resolve) => {
  const id = JSON.parse(sessionStorage["sluice.conversation"]).nodes.at(-1).place.id;
  const words = text.split(/(?<= )/), socket = window.sockets.at(-1), began = performance.now();
  const gaps = [];
  let sent = 0, last = began, timer = setInterval(() => {
    const due = Math.min(perSecond * seconds, ((performance.now() - began) / 1000) * perSecond);
    for (; sent < due; sent += 1) {
      const frame = { type: "delta", id, seq: sent + 1, content: words[sent % words.length] };
      socket.dispatchEvent(new MessageEvent("message", { data: JSON.stringify(frame) }));
    }
    if (sent < perSecond * seconds) return;
    clearInterval(timer);
    timer = null;
    resolve(gaps.slice(2));
  }, 2);
  requestAnimationFrame(function draw(now) {
    gaps.push(now - last);
    last = now;
    if (timer !== null) requestAnimationFrame(draw);
  });
})"""


def conversation() -> str:
    """A long conversation as the page keeps it in its tab."""
    nodes: list[dict[str, object]] = []
    parent = None
    for place in range(EARLIER):
        nodes.append({"key": f"q{place}", "parent": parent, "role": "user", "content": "More"})
        answer = {"key": f"a{place}", "parent": f"q{place}", "role": "assistant"}
        text = PARAGRAPH * 4
        assert len(text) >= 2_000
        nodes.append({**answer, "content": text, "toolCalls": [], "finishReason": "stop"})
        parent = f"a{place}"
    return json.dumps({"nodes": nodes, "leaf": parent, "metadata": {}})


def test_frames_are_even_while_an_answer_streams(
    open_page: OpenPage, server: ScriptedServer
) -> None:
    page = open_page()
    stored = json.dumps(conversation())
    page.add_init_script(f"{SOCKETS} sessionStorage.setItem('sluice.conversation', {stored})")
    page.reload()
    page.wait_for_selector("#link-state[data-state=open]")
    server.say(Wait(), Say("."), Done())
    ask(page, "Go on")
    page.wait_for_selector(".turn.pending")
    expect(page.locator("#stop")).to_be_visible()
    page.wait_for_timeout(700)  # The place in the stream is stored within half a second.
    metrics = page.context.new_cdp_session(page)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = durations(metrics)
    gaps = sorted(page.evaluate(TOKENS, [PARAGRAPH, TOKENS_PER_S, SECONDS]))
    work = durations(metrics) - before
    page.click("#stop")
    ended(page)
    median, late = gaps[len(gaps) // 2], gaps[len(gaps) * 95 // 100]
    print(f"{len(gaps)} frames, {median:.1f} ms p50, {late:.1f} ms p95, {work:.2f} s of CPU")
    assert median < 1.2 * 1000 / 60
    assert work / SECONDS < 0.5


def durations(metrics: Any) -> float:
    """The seconds of CPU that the page's main thread has taken."""
    found = metrics.send("Performance.getMetrics")["metrics"]
    (value,) = [one["value"] for one in found if one["name"] == "TaskDuration"]
    assert isinstance(value, float)
    return value
