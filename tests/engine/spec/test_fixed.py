from __future__ import annotations

from engine.spec.fixed import FixedLength
from engine.spec.planned_step import PlannedStep
from engine.spec.rest import LONGEST
from tests.engine.scheduler.making import make_request


def test_every_draft_pays_whatever_was_right() -> None:
    length = FixedLength()
    first, second = make_request(1), make_request(2)
    for _ in range(20):
        step = PlannedStep(2, 3, 6, 0.0)
        length.planned(step)
        length.observe(step, 100.0, [(first.request_id, 3, 0), (second.request_id, 3, 0)])
    length.observe_rest({2: [0.1] * 8}, {2: 16})
    length.drop(first)
    assert length.lengths({first: 3, second: 1}, 2) == {first: 3, second: 1}
    assert length.uniform_length(500, 3) == 3
    assert length.may_pay([first], 500)
    assert length.may_wait()


def test_nothing_is_tried_and_nobody_rests() -> None:
    length = FixedLength()
    assert length.probe_length(2, 3) == 0
    assert length.probed({make_request(1): 3}) == {}
    assert length.rest_length(2, overlaps=True) == 0
    assert length.hopeless_length(2) == 0
    assert length.steady_length(2, 3) == 3
    assert length.num_steps_to_probe(2, 3) == LONGEST
    assert not length.overlaps
