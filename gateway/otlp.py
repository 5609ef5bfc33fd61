"""Sends spans to a collector, by OTLP over HTTP in JSON.

A span becomes text when it ends, and a batch is those texts in a row: OpenTelemetry's own spans,
queue and exporter take several times the CPU time, half of it in a thread that holds up the event
loop meanwhile.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Mapping, Sequence

import httpx2
import msgspec

from tenants.outage import OutageLog

logger = logging.getLogger(__name__)

HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
"""Variables with headers of the requests, as ``name=value,name=value``; the later one wins."""
INTERVAL_S = 2.0
"""How often spans are sent."""
MAX_WAITING = 8192
"""Spans that may wait to be sent, some 4 MB; half of them are sent at once."""
PAUSE_S = 0.2
Attributes = Mapping[str, str | bool | int | float | Sequence[str]]
_encode = msgspec.json.Encoder().encode


class Exporter:
    """Sends spans from a thread of its own. While the collector is away or too slow, spans beyond
    ``MAX_WAITING`` are dropped."""

    def __init__(
        self,
        endpoint: str,
        timeout_s: float,
        resource: Mapping[str, object],
        scope: Mapping[str, str],
    ) -> None:
        """timeout_s: for each try to send. resource, scope: what makes the spans."""
        from opentelemetry.util.re import parse_env_headers

        given = (parse_env_headers(os.environ.get(name, ""), liberal=True) for name in HEADERS)
        headers = {key: value for one in given for key, value in one.items()}
        headers["content-type"] = "application/json"
        self._endpoint = endpoint
        self._client = httpx2.Client(timeout=timeout_s, headers=headers)
        self._outage = OutageLog(logger)
        self._head = (
            f'{{"resourceSpans":[{{"resource":{{"attributes":[{_attributes(resource)}]}},'
            f'"scopeSpans":[{{"scope":{_encode(scope).decode()},"spans":['
        )
        self._waiting: list[str] = []
        self._is_due = threading.Event()
        self._closes = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def add(self, span: str) -> None:
        """Take a span as ``span`` writes it."""
        waiting = self._waiting
        if len(waiting) < MAX_WAITING:
            waiting.append(span)
        if len(waiting) == MAX_WAITING // 2:
            self._is_due.set()

    def close(self) -> None:
        """Send what waits, and end the thread. May block for some seconds."""
        self._closes.set()
        self._is_due.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._is_due.wait(INTERVAL_S)
            self._is_due.clear()
            is_last = self._closes.is_set()
            batch, self._waiting = self._waiting, []
            if batch:
                self._send(f"{self._head}{','.join(batch)}]}}]}}]}}".encode())

    def _send(self, body: bytes) -> None:
        """A batch that is not taken is sent once more, and then dropped."""
        failure = self._failure(body)
        if failure is not None:
            self._closes.wait(PAUSE_S)
            failure = self._failure(body)
        if failure is not None:
            self._outage.failed("Spans are lost: %s: %s", self._endpoint, failure)
        else:
            self._outage.succeeded("Spans are taken again")

    def _failure(self, body: bytes) -> str | None:
        try:
            answer = self._client.post(self._endpoint, content=body)
        except httpx2.HTTPError as error:
            return str(error) or type(error).__name__
        return None if answer.is_success else f"it answers {answer.status_code}"


def span(
    place: str,
    name: str,
    times: tuple[int, int],
    attributes: Attributes | None = None,
    error: str | None = None,
) -> str:
    """place: the members that say which span it is, of what kind and below which, each with a
    comma. times: of begin and end, in nanoseconds since the epoch. error: the type of what went
    wrong, if anything did."""
    rest = ""
    if error is not None:
        attributes = {**(attributes or {}), "error.type": error}
        rest = ',"status":{"code":2}'
    if attributes:
        rest += f',"attributes":[{_attributes(attributes)}]'
    return (
        f'{{{place}"name":{quoted(name)},"startTimeUnixNano":"{times[0]}",'
        f'"endTimeUnixNano":"{times[1]}"{rest}}}'
    )


@functools.lru_cache(1024)
def quoted(text: str) -> str:
    return _encode(text).decode()


def _attributes(attributes: Mapping[str, object]) -> str:
    return ",".join(
        [f'{{"key":"{key}","value":{_value(value)}}}' for key, value in attributes.items()]
    )


def _value(value: object) -> str:
    kind = type(value)
    if kind is str:
        return f'{{"stringValue":{_encode(value).decode()}}}'
    if kind is int:
        return f'{{"intValue":"{value}"}}'
    if kind is float:
        return f'{{"doubleValue":{value}}}'
    if kind is bool:
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    assert isinstance(value, Sequence)
    return f'{{"arrayValue":{{"values":[{",".join(map(_value, value))}]}}}}'
