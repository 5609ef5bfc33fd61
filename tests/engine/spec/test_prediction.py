from __future__ import annotations

import pytest

from engine.request import Request
from engine.spec.ngram import NgramProposer
from engine.spec.prediction import PredictedProposer
from tests.engine.scheduler.making import make_request


def request_of(output: list[int], prediction: list[int]) -> Request:
    request = make_request(0, num_prompt_tokens=2)
    request.token_ids[:] = [90, 91, *output]
    request.prediction_token_ids = prediction
    return request


@pytest.mark.parametrize(
    ("output", "prediction", "drafts"),
    [
        ([], [1, 2, 3, 4], [1, 2, 3]),  # it begins as expected
        ([1], [1, 2, 3, 4], [2, 3, 4]),
        ([2], [1, 2, 3, 4], []),  # it does not; one token alone says nothing
        ([1, 2, 3], [1, 2, 3, 4, 5], [4, 5]),
        ([1, 2, 3, 4], [1, 2, 3, 4], []),  # at its end
        ([1, 2, 9, 9, 4, 5], [1, 2, 3, 4, 5, 6, 7], [6, 7]),  # taken up behind a change
        ([7, 1, 2], [8, 1, 2, 3, 7, 1, 2, 4], [4]),  # where more is the same
        ([7, 1, 2, 3], [7, 1, 2, 4, 1, 2, 3, 5], [5]),
        ([1, 2, 9, 9], [1, 2, 3], []),
    ],
)
def test_it_drafts(output: list[int], prediction: list[int], drafts: list[int]) -> None:
    proposer = PredictedProposer(NgramProposer(2, 3))
    request = request_of(output, prediction)
    assert proposer.continue_text(request, 3) == drafts
    assert proposer.foresees(request) == (len(drafts) >= 2)
    proposer.drop(request)
    proposer.drop(request)


def test_without_a_prediction_the_other_drafts() -> None:
    for prediction in ([], [5, 6]):
        request = request_of([1, 2, 3, 1, 2], prediction)
        assert PredictedProposer(NgramProposer(2, 3)).continue_text(request, 2) == [3, 1]


def test_it_follows_an_output_as_it_grows() -> None:
    """Nearly all of an output that is its prediction with a few changes is drafted."""
    prediction = list(range(1, 401))
    target = [*prediction[:100], 999, *prediction[101:250], *prediction[260:]]
    request, proposer = request_of([], prediction), PredictedProposer(NgramProposer(5, 5))
    num_steps = 0
    while len(request.token_ids) - 2 < len(target):
        place = len(request.token_ids) - 2
        drafts = proposer.continue_text(request, 7)
        right = 0
        while right < len(drafts) and target[place + right : place + right + 1] == [drafts[right]]:
            right += 1
        request.token_ids += target[place : place + right + 1]
        num_steps += 1
    assert num_steps < len(target) / 6
