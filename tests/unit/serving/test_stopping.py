"""The order of a stop: refuse, wait for what is under way, give up after the grace or at a second signal."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from deploy.serving.stopping import StopSignals, ended_by_sigterm, let_finish


class Said:
    """A call's future."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout_s: float) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Handle:
    """An entrance's handle whose answers under way are these numbers, one per question; the last one stays."""

    def __init__(self, *numbers: int, fails: Exception | None = None) -> None:
        self._numbers, self._fails = list(numbers), fails
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        handle = self

        class Method:
            def remote(self) -> Said:
                handle.calls.append(name)
                if handle._fails is not None or name != "ongoing":
                    return Said(handle._fails)
                return Said(handle._numbers.pop(0) if len(handle._numbers) > 1 else handle._numbers[0])

        return Method()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_either_signal_stops_and_what_is_under_way_is_waited_for(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    handle = Handle(4, 2, 0)
    with StopSignals() as signals:
        signal.raise_signal(number)
        signals.wait()
        assert let_finish(handle, signals, grace_s=60) == 0
    assert handle.calls == ["stop_accepting", "ongoing", "ongoing", "ongoing"]
    assert signal.getsignal(number) is before


def test_after_the_grace_or_at_a_second_signal_nobody_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        assert let_finish(Handle(3), signals, grace_s=-1) == 3
        signal.raise_signal(signal.SIGINT)
        assert let_finish(Handle(3), signals, grace_s=600) == 3
    assert capsys.readouterr().out == "stopped with 3 answers under way\n" * 2


def test_an_entrance_that_does_not_answer_holds_nobody_up() -> None:
    with StopSignals() as signals:
        assert let_finish(Handle(fails=RuntimeError("the actor died")), signals, grace_s=600) == 0


def test_sigterm_ends_an_endpoint_that_starts_with_a_shells_code() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ended_by_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
