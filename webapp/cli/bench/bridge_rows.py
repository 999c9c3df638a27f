"""The rows of DESIGN 11 that the bridge has. Each takes a BridgeStage and gives a Row; the floor is the same agent
without a portal, in the same run."""

import time
from collections.abc import Callable
from datetime import datetime

from webapp.cli.bench.bridge_stage import BridgeStage
from webapp.cli.bench.client import JsonSocket
from webapp.cli.bench.row import Row, check_whole, collect, spread
from webapp.cli.bench.stage import BenchError

SOURCE = "cli"
SPARE_S = 3.0  # until the next agent is made in advance
TURN_LIMIT_S = 60.0
BEHIND_S = 0.5  # a stream that ends so much later than its model has not kept up


def few_streams(stage: BridgeStage, *, streams: int = 10, deltas: int = 300) -> Row:
    """10 streams of 50 tokens/s at once."""
    return _streams(stage, streams=streams, deltas=deltas, every_ms=20, p95_ms=30.0)


def many_streams(stage: BridgeStage) -> Row:
    """50 streams of 10 tokens/s at once."""
    return _streams(stage, streams=50, deltas=100, every_ms=100, p95_ms=250.0)


def _streams(stage: BridgeStage, *, streams: int, deltas: int, every_ms: int, p95_ms: float) -> Row:
    straight = stage.straight(streams=streams, deltas=deltas, every_ms=every_ms)
    with JsonSocket(stage) as socket:
        sessions = [socket.new_session(SOURCE) for _ in range(streams)]
        for session in sessions:  # the agents are made, and their first turns pay for imports and connections
            socket.run(session, "stream 1 every 1 ms")
        collect(socket, set(sessions), limit_s=TURN_LIMIT_S + 2 * streams)
        time.sleep(SPARE_S)
        before, began = stage.cpu_s_by_role(), time.monotonic()
        for session in sessions:
            socket.run(session, f"stream {deltas} every {every_ms} ms")
        late, texts = collect(socket, set(sessions), limit_s=TURN_LIMIT_S + 10 * deltas * every_ms / 1000)
        lasted = time.monotonic() - began
        spent = {role: after - before[role] for role, after in stage.cpu_s_by_role().items()}
    check_whole(texts, deltas)
    per_1000 = 1000 / (deltas * streams)
    figures = {
        **spread(late, 50, 95, 99),
        "streams_behind": float(sum(_is_behind(text, every_ms) for text in texts.values())),
        "lasted_s": lasted,
        "cpu_s_per_1000_deltas": sum(spent.values()) * per_1000,
        **{f"of_it_{role}_s": seconds * per_1000 for role, seconds in spent.items() if role != "supervisor"},
    }
    floor = {**spread(straight["late_ms"], 50, 95, 99), "cpu_s_per_1000_deltas": straight["cpu_s"] * per_1000}
    title = f"bridge, real agent: {streams} streams at {every_ms} ms"
    return Row(
        title, figures, {"p95_ms": p95_ms, "streams_behind": 0.0}, {**floor, "lasted_s": deltas * every_ms / 1e3}
    )


def _is_behind(text: str, every_ms: int) -> bool:
    """Whether the model had to wait for who reads the stream."""
    stamps = [int(piece.split(":")[1]) for piece in text.split()]
    return (stamps[-1] - stamps[0]) / 1e9 > (len(stamps) - 1) * every_ms / 1000 + BEHIND_S


def submit(stage: BridgeStage, *, turns: int = 30, sessions: int = 12) -> Row:
    """From the command on the socket to the model being asked, idle: in a warm session, and in a new one."""
    straight = stage.straight(streams=1, deltas=1, every_ms=1, turns=turns)
    with JsonSocket(stage) as socket:
        session = socket.new_session(SOURCE)
        _play(socket, session, "stream 1 every 1 ms")
        warm, new = [], []
        for n in range(turns):
            time.sleep(0.05)
            warm.append(_play(socket, session, f"stream 1 every 1 ms, warm {n}."))
        for n in range(sessions):
            fresh = socket.new_session(SOURCE)
            time.sleep(SPARE_S)
            new.append(_play(socket, fresh, f"stream 1 every 1 ms, new {n}."))
    warm_ms = [_asked_ms(stage, f"warm {n}.", sent) for n, sent in enumerate(warm)]
    new_ms = [_asked_ms(stage, f"new {n}.", sent) for n, sent in enumerate(new)]
    floor_ms = [
        (each["asked_at_ns"] - sent) / 1e6 for each, sent in zip(stage.asked("floor"), straight["sent_ns"], strict=True)
    ]
    figures = {
        **{f"warm_{name}": value for name, value in spread(warm_ms, 50, 95).items()},
        **{f"new_{name}": value for name, value in spread(new_ms, 50, 95).items()},
    }
    floor = {f"warm_{name}": value for name, value in spread(floor_ms, 50, 95).items()}
    reach = {"warm_p50_ms": 60.0, "new_p50_ms": 150.0}
    return Row("bridge: submit to first model request, idle", figures, reach, floor)


def abort(stage: BridgeStage, *, turns: int = 40) -> Row:
    """From the abort on the socket to the agent having been interrupted (by the worker's clock, in whole milliseconds),
    to the client being told so, to the model being left, to the end."""
    told, shown, left, ended = [], [], [], []
    with JsonSocket(stage) as socket:
        session = socket.new_session(SOURCE)
        for n in range(turns):
            wish = f"stream 2000 every 20 ms, abort {n}."
            socket.run(session, wish)
            socket.wait_for("message.delta", session)
            pressed = socket.send({"event": "abort", "session_id": session})
            while True:
                came, frame = socket.receive(TURN_LIMIT_S)
                if frame["event"] == "abort.started" and frame["data"]["stage"] == "acknowledged":
                    told.append(datetime.fromisoformat(frame["at"]).timestamp() * 1e3 - pressed / 1e6)
                    shown.append((came - pressed) / 1e6)
                elif frame["event"] == "abort.completed":
                    ended.append((came - pressed) / 1e6)
                    break
            left.append(_left_ms(stage, f"abort {n}.", pressed))
    if len(told) != turns:
        raise BenchError(f"{turns - len(told)} of {turns} aborts were not taken by the agent")
    figures = {
        **spread(told),
        **{f"shown_{name}": value for name, value in spread(shown).items()},
        **{f"model_left_{name}": value for name, value in spread(left).items()},
        **{f"ended_{name}": value for name, value in spread(ended).items()},
    }
    return Row("bridge: abort to agent interrupted", figures, {"p50_ms": 10.0, "p99_ms": 50.0})


ROWS: dict[str, Callable[[BridgeStage], Row]] = {
    "bridge-submit": submit,
    "bridge-abort": abort,
    "bridge-streams": few_streams,
    "bridge-many-streams": many_streams,
}


def _play(socket: JsonSocket, session: str, text: str) -> int:
    """One turn to its end; when it was sent, in nanoseconds."""
    sent = socket.run(session, text)
    collect(socket, {session}, limit_s=TURN_LIMIT_S)
    return sent


def _asked_ms(stage: BridgeStage, text: str, sent_ns: int) -> float:
    asked = stage.asked(text)
    if len(asked) != 1:
        raise BenchError(f"the model was asked {len(asked)} times for one turn")
    return (int(asked[0]["asked_at_ns"]) - sent_ns) / 1e6


def _left_ms(stage: BridgeStage, text: str, pressed_ns: int) -> float:
    deadline = time.monotonic() + TURN_LIMIT_S
    while time.monotonic() < deadline:
        (asked,) = stage.asked(text)
        if asked["left_at_ns"] is not None:
            return (int(asked["left_at_ns"]) - pressed_ns) / 1e6
        time.sleep(0.02)
    raise BenchError("the model was never told that nobody listens any more")
