"""One run from claim to final state, with a backend that follows a script."""

from tests.worker.conftest import Desk


def test_a_turn_is_answered_told_and_kept(desk: Desk) -> None:
    run_id = desk.run([{"text": "word # ", "times": 20, "every_s": 0.002}])
    text = "".join(f"word {n} " for n in range(20))
    assert desk.state(run_id) == "completed"
    assert desk.answer(run_id).content == text
    assert desk.answer(run_id).status == "SUCCESS"
    assert desk.seen_text(run_id) == text
    assert desk.names(run_id) == ["run.dequeued", "run.started", "message.delta", "run.completed"]
    assert desk.turns(run_id) == 1
