from __future__ import annotations

import msgspec
import pytest

from gateway.admission import unsupported
from gateway.errors import UnsupportedParameter


class Request(msgspec.Struct):
    store: object = None


def test_what_changes_nothing_passes() -> None:
    unsupported.refuse(Request(), {"store": (False,)})
    unsupported.refuse(Request(False), {"store": (False,)})


@pytest.mark.parametrize("value", [True, 0, "", {}])
def test_anything_else_is_refused_by_name(value: object) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        unsupported.refuse(Request(value), {"store": (False,)})
    assert caught.value.param == "store"
