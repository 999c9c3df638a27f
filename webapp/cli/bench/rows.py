"""The rows of DESIGN 11 that the gateway path has. Each takes a Stage and gives a Row."""

import time
from collections.abc import Callable

from webapp.cli.bench import floors
from webapp.cli.bench.client import JsonSocket, PageSocket
from webapp.cli.bench.row import Row, check_whole, collect, one_turn, spread
from webapp.cli.bench.stage import BenchError, Stage


def one_stream(stage: Stage, *, deltas: int = 500) -> Row:
    """One stream of 50 tokens/s: delta to JSON frame, and the CPU of the portal's processes per 1,000 deltas."""
    with JsonSocket(stage) as socket:
        session = socket.new_session()
        one_turn(socket, session, "stream 20 every 20 ms")  # the first turn pays for imports and connections
        floor = floors.publish_to_subscriber(stage.redis_socket)
        cpu_floor = floors.cpu_of_paced_publish(stage.redis_socket, lambda: stage.cpu_s_by_role()["redis"])
        before = stage.cpu_s_by_role()
        late = one_turn(socket, session, f"stream {deltas} every 20 ms")
        spent = {role: after - before[role] for role, after in stage.cpu_s_by_role().items()}
    by_role = {f"of_it_{role}_s": seconds * 1000 / deltas for role, seconds in spent.items() if role != "supervisor"}
    figures = {**spread(late), "cpu_s_per_1000_deltas": sum(spent.values()) * 1000 / deltas, **by_role}
    reach = {"p50_ms": 8.0, "p99_ms": 50.0, "cpu_s_per_1000_deltas": 0.4}
    beside = {**spread(floor), "cpu_s_per_1000_deltas": cpu_floor}
    return Row("delta to JSON client, one stream of 50 tokens/s", figures, reach, beside)


def many_streams(stage: Stage, *, streams: int = 50, deltas: int = 300) -> Row:
    """50 streams at once, 2,500 tokens/s: every delta once and in order."""
    with JsonSocket(stage) as socket:
        sessions = [socket.new_session() for _ in range(streams)]
        floor = floors.publish_to_subscriber(stage.redis_socket)
        before = stage.cpu_s()
        began = time.monotonic()
        for session in sessions:
            socket.run(session, f"stream {deltas} every 20 ms")
        late, texts = collect(socket, set(sessions), limit_s=120)
        spent, lasted = stage.cpu_s() - before, time.monotonic() - began
    check_whole(texts, deltas)
    figures = {
        **spread(late),
        "cpu_s_per_1000_deltas": spent * 1000 / (deltas * streams),
        "deltas_per_s": deltas * streams / lasted,
    }
    return Row(f"the same with {streams} streams at once", figures, {"p50_ms": 40.0, "p99_ms": 250.0}, spread(floor))


def submit(stage: Stage, *, turns: int = 60) -> Row:
    """From the command on the socket to the gateway being asked, idle, one queued turn."""
    with JsonSocket(stage) as socket:
        session = socket.new_session()
        one_turn(socket, session, "stream 1 every 1 ms")
        known = len(stage.plays())
        sent = []
        for _ in range(turns):
            sent.append(socket.run(session, "stream 1 every 1 ms"))
            socket.wait_for("run.completed", session)
            time.sleep(0.05)
        asked = [play["asked_at_ns"] for play in stage.plays()[known:]]
        floor = floors.push_to_pop(stage.redis_socket)
    if len(asked) != turns:
        raise BenchError(f"the gateway was asked {len(asked)} times for {turns} turns")
    taken = [(a - s) / 1e6 for a, s in zip(asked, sent, strict=True)]
    return Row("submit to gateway asked, idle", spread(taken), {"p50_ms": 15.0}, spread(floor))


def abort(stage: Stage, *, turns: int = 60) -> Row:
    """From the abort on the socket to the gateway being told."""
    with JsonSocket(stage) as socket:
        session = socket.new_session()
        known = len(stage.plays())
        pressed = []
        for _ in range(turns):
            socket.run(session, "stream 2000 every 20 ms")
            socket.wait_for("message.delta", session)
            pressed.append(socket.send({"event": "abort", "session_id": session}))
            socket.wait_for("abort.completed", session)
        told = [play["stopped_at_ns"] for play in stage.plays()[known:]]
        floor = floors.push_to_pop(stage.redis_socket)
    if len(told) != turns or None in told:
        raise BenchError(f"{told.count(None) + turns - len(told)} of {turns} aborts never reached the gateway")
    taken = [(t - p) / 1e6 for t, p in zip(told, pressed, strict=True)]
    return Row("abort to gateway told", spread(taken), {"p50_ms": 10.0, "p99_ms": 50.0}, spread(floor))


def long_answer(stage: Stage) -> Row:
    """200 KB in 20,480 deltas, a page watching: the server's CPU per delta in the last fifth against the first."""
    kilobytes, every_ms = 200, 1
    with JsonSocket(stage) as socket:
        session = socket.new_session()
        page = PageSocket(stage, session)
        socket.run(session, f"{kilobytes} KB of text every {every_ms} ms")
        total, marks, length = kilobytes * 1024, [], 0
        steps = iter((0.0, 0.2, 0.8, 0.999))
        due = next(steps)
        while True:
            _, frame = socket.receive()
            if frame["event"] == "message.delta":
                length = frame["data"]["offset"] + len(frame["data"]["text"])
                if length >= due * total:
                    marks.append((length, stage.cpu_s()))
                    due = next(steps, 2.0)
            elif frame["event"] == "run.completed":
                break
        page.close()
    if length != total:
        raise BenchError(f"{length} of {total} characters came")
    (l0, c0), (l1, c1), (l2, c2), (l3, c3) = marks
    first, last = (c1 - c0) / (l1 - l0), (c3 - c2) / (l3 - l2)
    figures = {
        "end_to_start_ratio": last / first,
        "cpu_ms_per_kb_at_start": first * 1024e3,
        "cpu_ms_per_kb_at_end": last * 1024e3,
        "page_frames": page.frames,
        "page_kb": page.characters / 1024,
    }
    return Row("answer of 200 KB in 20,480 deltas", figures, {"end_to_start_ratio": 1.5})


def start(stage: Stage) -> Row:
    """`portal up` to the first page, and the memory of the idle whole."""
    time.sleep(2)
    figures = {"first_page_s": stage.start_s, "idle_pss_mb": stage.memory_mb()}
    taken = spread(floors.ping(stage.redis_socket))
    return Row(
        "portal up to the first page; memory when idle", figures, {"first_page_s": 5.0, "idle_pss_mb": 350.0}, taken
    )


ROWS: dict[str, Callable[[Stage], Row]] = {
    "start": start,
    "one-stream": one_stream,
    "submit": submit,
    "abort": abort,
    "many-streams": many_streams,
    "long-answer": long_answer,
}
