"""The dashboard, the alerts and their page are what the tables say, of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy import monitoring
from deploy.monitoring import ALERTS_TABLE, PANELS

EXPRESSIONS = [alert.expr for alert in ALERTS_TABLE] + [
    expr for panels in PANELS.values() for panel in panels for expr in panel.exprs.values()
]


@pytest.fixture(scope="module")
def samples() -> set[str]:
    """The names of all samples that a gateway gives to Prometheus."""
    families = monitoring.metrics()
    names = {sample.name for family in families for sample in family.samples}
    histograms = {family.name for family in families if family.type == "histogram"}
    return names | {f"{name}_bucket" for name in histograms}


def test_the_files_are_current() -> None:
    for path, text in monitoring.files().items():
        assert path.read_text() == text, f"run python -m deploy.monitoring for {path.name}"


def test_expressions_name_metrics_that_exist(samples: set[str]) -> None:
    for expr in EXPRESSIONS:
        used = set(re.findall(r"\b(?:sluice|process)_\w+", expr))
        assert used, expr
        assert used <= samples, used - samples


def test_every_alert_has_a_runbook() -> None:
    headings = re.findall(r"^### (\w+)$", monitoring.PAGE.read_text(), re.MULTILINE)
    assert headings == [alert.name for alert in ALERTS_TABLE]
    assert all(len(alert.runbook) > 100 for alert in ALERTS_TABLE)


def test_codes_and_settings_that_alerts_name_exist() -> None:
    from gateway.config import settings

    known = {f"{one.section}.{one.key}" for one in settings()}
    errors = Path(monitoring.ROOT.parent, "gateway", "errors.py").read_text()
    for alert in ALERTS_TABLE:
        named = re.findall(r"`((?:server|engine|tenants)\.\w+)`", alert.runbook)
        assert set(named) <= known, alert.name
        for code in re.findall(r'code="(\w+)"', alert.expr):
            assert f'code="{code}"' in errors


def test_the_dashboard_is_whole() -> None:
    panels = json.loads(monitoring.DASHBOARD.read_text())["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert all(panel["type"] == "row" or panel["targets"] for panel in panels)


@pytest.mark.nightly
def test_each_alert_fires_by_promtool(tmp_path: Path) -> None:
    """Prometheus' own tool parses the rules, and each fires on its example and not before."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: Debian has it in the package prometheus")
    rules = tmp_path / "alerts.yaml"
    rules.write_text(monitoring.ALERTS.read_text())
    tests = [
        {
            "interval": "1m",
            "name": alert.name,
            "input_series": [
                {"series": series, "values": values} for series, values in alert.example.items()
            ],
            "alert_rule_test": [
                {"eval_time": "0m", "alertname": alert.name, "exp_alerts": []},
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"}})',
                    "eval_time": "45m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for alert in ALERTS_TABLE
    ]
    document = {"rule_files": [rules.name], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))
    for command in (["check", "rules", rules.name], ["test", "rules", "test.yaml"]):
        ran = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
