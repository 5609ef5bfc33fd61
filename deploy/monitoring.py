"""Writes what watches a Sluice: a Grafana dashboard, Prometheus' alert rules, and their page.

    python -m deploy.monitoring

The metrics are those that the gateway really has; the panels and alerts are the tables below. A
test holds that the files are current, and that every expression names metrics that exist.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prometheus_client.core import Metric

from engine.client.fleet import Fleet
from engine.client.fleets import Fleets
from engine.client.router import D2lpm
from engine.messages import Stats, TenantStats
from gateway.metrics.engine import EngineCollector
from gateway.metrics.metrics import Metrics
from gateway.metrics.times import Times
from tenants.changes import ChangeListener
from tenants.types import UsageEvent
from tenants.usage import Ledger
from tenants.webhooks import Backlog
from tests.memory_store.store import MemoryStore

ROOT = Path(__file__).parent
DASHBOARD = ROOT / "chart" / "files" / "dashboard.json"
ALERTS = ROOT / "chart" / "files" / "alerts.yaml"
PAGE = ROOT.parent / "docs" / "metrics.md"


@dataclass(frozen=True, kw_only=True)
class Alert:
    name: str
    expr: str
    wait: str
    """How long the expression must hold."""
    severity: str
    summary: str
    runbook: str
    """What it means and what to do."""
    example: dict[str, str] = field(default_factory=dict)
    """Series, in promtool's notation, with one sample a minute, for which it fires."""


def _p(quantile: float, metric: str, by: str = "le") -> str:
    return f"histogram_quantile({quantile}, sum by ({by}) (rate({metric}_bucket[5m])))"


_UP = "1x60"
_LATE = {
    'sluice_time_to_first_token_seconds_bucket{le="10.0"}': "0+0x60",
    'sluice_time_to_first_token_seconds_bucket{le="30.0"}': "0+60x60",
    'sluice_time_to_first_token_seconds_bucket{le="+Inf"}': "0+60x60",
}

ALERTS_TABLE: Sequence[Alert] = (
    Alert(
        name="SluiceAbsent",
        expr="absent(sluice_build_info)",
        wait="5m",
        severity="critical",
        summary="No Sluice is scraped.",
        runbook="All gateways are down, or Prometheus cannot reach them. Ask `/livez` and `/readyz`"
        " of a gateway. If it answers, check the scrape job: its port (`server.metrics_port`), or"
        " the admin key that it sends.",
        example={"other": _UP},
    ),
    Alert(
        name="SluiceEngineDown",
        expr="min by (instance) (sluice_engine_ready) == 0",
        wait="2m",
        severity="critical",
        summary="The engine behind {{ $labels.instance }} does not serve.",
        runbook="The engine loads its model, restarts again and again, or its GPU is gone. The log"
        " says `engine died, restarting` with the cause; a start that fails is tried again after"
        " at most 30 s. If it is out of memory, lower `engine.gpu_memory_utilization` or"
        " `engine.max_num_seqs`. `sluice doctor` checks driver, kernels and model files. A long"
        " load of a large model is no fault: the start-up probe must allow for it.",
        example={'sluice_engine_ready{instance="a"}': "0x60"},
    ),
    Alert(
        name="SluiceErrors",
        expr='sum(rate(sluice_http_responses_total{status=~"5.."}[5m]))'
        " / sum(rate(sluice_http_responses_total[5m])) > 0.01",
        wait="5m",
        severity="critical",
        summary="More than 1 % of the answers are errors of the server.",
        runbook="`sluice_refusals_total` by `code` says which. `engine_unavailable`: see"
        " SluiceEngineDown. `store_unavailable`: PostgreSQL is away and keys or limits cannot be"
        " checked. `overloaded`: see SluiceOverloaded. `internal_error`: the log has a traceback"
        " under the request's id.",
        example={
            'sluice_http_responses_total{status="200"}': "0+90x60",
            'sluice_http_responses_total{status="500"}': "0+10x60",
        },
    ),
    Alert(
        name="SluiceSlowFirstToken",
        expr=f"{_p(0.95, 'sluice_time_to_first_token_seconds')} > 10",
        wait="10m",
        severity="warning",
        summary="One request in twenty waits more than 10 s for its first token.",
        runbook="Look at queue and prefill time on the dashboard. If requests queue, the engine has"
        " too much work: add replicas, or lower the limits of the tenant with the most"
        " `sluice_tenant_queued_tokens`. If they do not, prompts are long and uncached: look at"
        " the hit rate of the prefix cache.",
        example=_LATE,
    ),
    Alert(
        name="SluiceOverloaded",
        expr='sum(rate(sluice_refusals_total{code="overloaded"}[5m])) > 0',
        wait="10m",
        severity="warning",
        summary="Requests are refused because too many wait already.",
        runbook="The queue of the engine (`engine.max_num_queued_reqs`) or of the ledger is full."
        " Tenants with their part of the queue are refused first. Add replicas, or lower the"
        " limits of the heaviest tenant; a longer queue only makes all wait longer.",
        example={'sluice_refusals_total{code="overloaded"}': "0+60x60"},
    ),
    Alert(
        name="SluiceKvCacheFull",
        expr="avg_over_time(sluice_kv_cache_usage_perc[10m]) > 0.95"
        " and rate(sluice_num_preemptions_total[10m]) > 0.1",
        wait="10m",
        severity="warning",
        summary="The KV cache is full, and requests are preempted for it.",
        runbook="Preempted requests are computed again, or swapped. Give the cache more memory"
        " (`engine.gpu_memory_utilization`, FP8 cache), lower `engine.max_num_seqs`, or set"
        " `engine.swap_space`. Sudden growth is often one tenant with very long prompts.",
        example={
            "sluice_kv_cache_usage_perc": "0.99x60",
            "sluice_num_preemptions_total": "0+60x60",
        },
    ),
    Alert(
        name="SluiceLedgerLag",
        expr="max by (instance) (sluice_ledger_lag_seconds) > 60",
        wait="5m",
        severity="critical",
        summary="Usage of {{ $labels.instance }} does not reach PostgreSQL.",
        runbook="PostgreSQL is away or too slow. Nothing is lost: usage waits in the journal beside"
        " `secrets.json`, which must stay on its disk until it is written. New requests are"
        " refused once 5,000 wait. Check the database, its disk and its locks; the log says what"
        " it answers.",
        example={'sluice_ledger_lag_seconds{instance="a"}': "90x60"},
    ),
    Alert(
        name="SluiceStaleKeys",
        expr="max by (instance) (sluice_changes_age_seconds) > 60",
        wait="2m",
        severity="critical",
        summary="{{ $labels.instance }} does not hear of revoked keys.",
        runbook="The connection for LISTEN is down. Known keys go on working for"
        " `tenants.key_grace_s`, also those that were revoked meanwhile. Check that"
        " `tenants.direct_dsn` leads to PostgreSQL itself and not to a pooler in transaction mode.",
        example={'sluice_changes_age_seconds{instance="a"}': "90x60"},
    ),
    Alert(
        name="SluiceBackgroundDies",
        expr="increase(sluice_background_deaths_total[30m]) > 3",
        wait="0m",
        severity="warning",
        summary="{{ $labels.work }} of {{ $labels.instance }} dies again and again.",
        runbook="Work beside the requests ended by itself, and was started again. The log has each"
        " cause once. While leases, changes or revocations are down for a minute, `/readyz` is"
        " 503.",
        example={'sluice_background_deaths_total{work="upkeep",instance="a"}': "0+1x60"},
    ),
    Alert(
        name="SluiceLoopLag",
        expr=f"{_p(0.99, 'sluice_event_loop_lag_seconds', 'le, instance')} > 0.25",
        wait="10m",
        severity="warning",
        summary="The event loop of {{ $labels.instance }} is late.",
        runbook="The gateway has too little CPU: streams stall for as long. Give it more workers"
        " (`server.workers`) and as many cores; check that the engine does not share them.",
        example={
            'sluice_event_loop_lag_seconds_bucket{le="0.25",instance="a"}': "0+0x60",
            'sluice_event_loop_lag_seconds_bucket{le="0.5",instance="a"}': "0+600x60",
            'sluice_event_loop_lag_seconds_bucket{le="+Inf",instance="a"}': "0+600x60",
        },
    ),
    Alert(
        name="SluiceWebhooksLate",
        expr="max(sluice_webhook_oldest_pending_seconds) > 1800",
        wait="5m",
        severity="warning",
        summary="An event has waited for half an hour to be taken by a webhook.",
        runbook="A receiver is away, refuses, or answers too slowly; others get their events"
        " meanwhile. The admin page and `sluice webhook deliveries` show what each webhook answered"
        " last. An address that is not public must be in `server.outbound_networks`. Events are"
        " given up after three days; then `sluice_webhook_attempts_total` counts them as `failed`."
        " If the receiver is gone for good, disable or delete its webhook. If all wait, no gateway"
        " reaches the Internet.",
        example={"sluice_webhook_oldest_pending_seconds": "3600x60"},
    ),
    Alert(
        name="SluiceOpenFiles",
        expr="process_open_fds / process_max_fds > 0.8 and on (instance) sluice_build_info",
        wait="10m",
        severity="warning",
        summary="{{ $labels.instance }} has nearly as many files open as it may.",
        runbook="Each connection needs one. Raise the limit of the service (`LimitNOFILE`), or"
        " lower `server.max_connections`; beyond it connections are answered 503.",
        example={
            'process_open_fds{instance="a"}': "900x60",
            'process_max_fds{instance="a"}': "1000x60",
            'sluice_build_info{instance="a"}': _UP,
        },
    ),
)


@dataclass(frozen=True, kw_only=True)
class Panel:
    title: str
    unit: str
    exprs: dict[str, str]
    """Legend to expression."""


def _quantiles(metric: str) -> dict[str, str]:
    return {f"p{round(100 * q)}": _p(q, metric) for q in (0.5, 0.95, 0.99)}


PANELS: dict[str, Sequence[Panel]] = {
    "What clients see": (
        Panel(
            title="Answers by status",
            unit="reqps",
            exprs={"{{status}}": "sum by (status) (rate(sluice_http_responses_total[5m]))"},
        ),
        Panel(
            title="Refusals by cause",
            unit="reqps",
            exprs={"{{code}}": "sum by (code) (rate(sluice_refusals_total[5m]))"},
        ),
        Panel(
            title="Time to first token",
            unit="s",
            exprs=_quantiles("sluice_time_to_first_token_seconds"),
        ),
        Panel(
            title="Time per output token",
            unit="s",
            exprs=_quantiles("sluice_time_per_output_token_seconds"),
        ),
        Panel(
            title="Gap between tokens",
            unit="s",
            exprs=_quantiles("sluice_inter_token_latency_seconds"),
        ),
        Panel(
            title="Whole requests", unit="s", exprs=_quantiles("sluice_e2e_request_latency_seconds")
        ),
    ),
    "Work": (
        Panel(
            title="Tokens",
            unit="short",
            exprs={"{{kind}}": "sum by (kind) (rate(sluice_tokens_total[5m]))"},
        ),
        Panel(
            title="Requests by how they end",
            unit="reqps",
            exprs={"{{status}}": "sum by (status) (rate(sluice_generations_total[5m]))"},
        ),
        Panel(
            title="Requests in the engine",
            unit="short",
            exprs={
                "running": "sum(sluice_num_requests_running)",
                "waiting": "sum(sluice_num_requests_waiting)",
                "parked": "sum(sluice_num_requests_parked)",
            },
        ),
        Panel(title="Queue", unit="s", exprs=_quantiles("sluice_request_queue_time_seconds")),
    ),
    "Engine": (
        Panel(
            title="Ready",
            unit="short",
            exprs={"{{instance}}": "min by (instance) (sluice_engine_ready)"},
        ),
        Panel(
            title="KV cache in use",
            unit="percentunit",
            exprs={"{{instance}}": "max by (instance) (sluice_kv_cache_usage_perc)"},
        ),
        Panel(
            title="Hits of the prefix cache",
            unit="percentunit",
            exprs={
                "share": "sum(rate(sluice_prefix_cache_hits_total[5m]))"
                " / sum(rate(sluice_prefix_cache_queries_total[5m]))"
            },
        ),
        Panel(
            title="Preemptions and swaps",
            unit="short",
            exprs={
                "preemptions": "sum(rate(sluice_num_preemptions_total[5m]))",
                "blocks out": "sum(rate(sluice_swapped_out_blocks_total[5m]))",
            },
        ),
        Panel(
            title="Accepted drafts",
            unit="percentunit",
            exprs={
                "share": "sum(rate(sluice_spec_decode_num_accepted_tokens_total[5m]))"
                " / sum(rate(sluice_spec_decode_num_draft_tokens_total[5m]))"
            },
        ),
    ),
    "Tenants": (
        Panel(
            title="Service by tenant (the ten largest)",
            unit="short",
            exprs={
                "{{tenant}}": "topk(10, sum by (tenant) (rate(sluice_service_tokens_total[5m])))"
            },
        ),
        Panel(
            title="Queued by tenant (the ten largest)",
            unit="short",
            exprs={"{{tenant}}": "topk(10, sum by (tenant) (sluice_tenant_requests_queued))"},
        ),
        Panel(title="Fairness gap", unit="short", exprs={"gap": "max(sluice_fairness_gap)"}),
    ),
    "Gateway": (
        Panel(title="Event loop lag", unit="s", exprs=_quantiles("sluice_event_loop_lag_seconds")),
        Panel(
            title="CPU",
            unit="short",
            exprs={"{{instance}}": "rate(process_cpu_seconds_total[5m])"},
        ),
        Panel(
            title="Memory", unit="bytes", exprs={"{{instance}}": "process_resident_memory_bytes"}
        ),
        Panel(
            title="Open files and WebSockets",
            unit="short",
            exprs={"files": "sum(process_open_fds)", "WebSockets": "sum(sluice_websockets)"},
        ),
        Panel(
            title="Ledger",
            unit="s",
            exprs={
                "lag": "max(sluice_ledger_lag_seconds)",
                "keys": "max(sluice_changes_age_seconds)",
            },
        ),
        Panel(
            title="Webhooks",
            unit="short",
            exprs={
                "{{outcome}}": "sum by (outcome) (increase(sluice_webhook_attempts_total[1h]))",
                "pending": "max(sluice_webhook_events_pending)",
            },
        ),
        Panel(
            title="Work that died",
            unit="short",
            exprs={"{{work}}": "sum by (work) (increase(sluice_background_deaths_total[1h]))"},
        ),
    ),
}


_EVENT = UsageEvent(
    request_id=UUID(int=0),
    tenant_id=UUID(int=0),
    key_id=UUID(int=0),
    model="model",
    status="stop",
    prompt_tokens=0,
    cached_tokens=0,
    completion_tokens=0,
    created_at=datetime.now(UTC),
)


def metrics() -> list[Metric]:
    """All metrics of a gateway, each with a sample of each of its labels."""
    found = Metrics()
    stats = Stats(
        tenants=[TenantStats("t", num_accepted_tokens_per_pos=[0])],
        spec_decode_num_accepted_tokens_per_pos=[0],
    )
    found.watch(running=lambda: 0, engines=lambda: {("model", "0"): EngineCollector(stats)})
    router = D2lpm()
    router.num_found[True] = 0
    fleet = Fleet([], router=router)
    fleet.num_sent["0"] = 0
    found.watch_moves(Fleets({"model": fleet}), {"key": 0})
    found.watch_background(lambda: {"work": 0})
    found.watch_changes(ChangeListener("postgresql://localhost/none", lambda change: None))
    found.watch_ledger(Ledger(MemoryStore()))
    found.watch_batches(lambda: 0, lambda: 0)
    found.watch_webhooks({"delivered": 0}, Backlog)
    found.count_batch_line("completed")
    found.count_response("/", 200)
    found.count_refusal("code")
    found.count_usage(_EVENT)
    found.observe_first_token(0, "model", "/")
    found.observe_request(Times(0, 0, 0), 2, "model", "/")
    return [one for registry in found.registries for one in registry.collect()]


def _rules() -> dict[str, Any]:
    rules = [
        {
            "alert": one.name,
            "expr": one.expr,
            "for": one.wait,
            "labels": {"severity": one.severity},
            "annotations": {
                "summary": one.summary,
                "runbook": f"docs/metrics.md#{one.name.lower()}",
            },
        }
        for one in ALERTS_TABLE
    ]
    return {"groups": [{"name": "sluice", "rules": rules}]}


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for row, panels in PANELS.items():
        number += 1
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": row, "gridPos": place, "panels": []}
        top += 1
        for index, panel in enumerate(panels):
            number += 1
            yield {
                "id": number,
                "type": "timeseries",
                "title": panel.title,
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "gridPos": {"x": 8 * (index % 3), "y": top + 8 * (index // 3), "w": 8, "h": 8},
                "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
                "targets": [
                    {"refId": chr(ord("A") + place), "expr": expr, "legendFormat": legend}
                    for place, (legend, expr) in enumerate(panel.exprs.items())
                ],
            }
        top += 8 * -(-len(panels) // 3)


def _dashboard() -> dict[str, Any]:
    return {
        "uid": "sluice",
        "title": "Sluice",
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": list(_panels()),
    }


def _page() -> str:
    lines = [
        "# Metrics and alerts",
        "",
        "Written by `python -m deploy.monitoring`. The alert rules are in"
        " [alerts.yaml](../deploy/chart/files/alerts.yaml), a dashboard for Grafana in"
        " [dashboard.json](../deploy/chart/files/dashboard.json); the chart installs both.",
        "",
        "## Metrics",
        "",
        "| metric | kind | labels | tells |",
        "|---|---|---|---|",
    ]
    for one in metrics():
        labels = sorted({label for sample in one.samples for label in sample.labels} - {"le"})
        name = f"{one.name}_total" if one.type == "counter" else one.name
        lines.append(f"| `{name}` | {one.type} | {', '.join(labels)} | {one.documentation} |")
    lines += [
        "",
        "Histograms are classic ones, with buckets for what a server of language models does:"
        " the text format has no place for native ones, and `prometheus_client` makes none."
        " Prometheus 3 keeps them as native histograms with these buckets if the scrape job says"
        " `convert_classic_histograms_to_nhcb: true`; with `always_scrape_classic_histograms: true`"
        " beside it the dashboard and the alerts, which read the classic ones, go on.",
        "",
        "## Alerts",
        "",
    ]
    for alert in ALERTS_TABLE:
        lines += [
            f"### {alert.name}",
            "",
            f"{alert.severity}, after {alert.wait} of `{alert.expr}`",
            "",
            alert.runbook,
            "",
        ]
    return "\n".join(lines)


def files() -> dict[Path, str]:
    """What each generated file must contain."""
    return {
        DASHBOARD: json.dumps(_dashboard(), indent=1) + "\n",
        ALERTS: "# Written by python -m deploy.monitoring.\n"
        + yaml.safe_dump(_rules(), sort_keys=False, width=1000),
        PAGE: _page(),
    }


def main() -> None:
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
