"""A stand-in for the bridge child, for what Hermes cannot be made to show. Run as the real one:
`python bridge_child.py --endpoint E --agent-root R --hermes-home H [--profile NAME] [--parent-pid N]`.

What it does stands in `<home>/script.json`, read anew for each start and each turn:

    {"start": [step, ...], "chat": [answer, ...], "turn": [step, ...]}

`start` before it listens and is ready, each turn's `turn` after its `stream` was answered. `chat`: an error code for
each chat that is not to be taken, in order; null for one that is; "die" for one that is taken with the last breath: no
request gets through any more. Steps: {"event": name, ...} (a line of the protocol,
in a turn), {"line": text}, {"bytes": hex, "times": n}, {"stdout": text}, {"stderr": text}, {"sleep": s},
{"hang": true}, {"exit": code}, {"kill": true} (itself, -9), {"close": true} (the connection), {"tool": command} (in a
group of its own), {"wait": action} (until such a request came), {"wait_either": [action, ...]} (one of
this run; an interrupt ends it), {"ready": {...}} (a ready line, with these fields
changed), {"stay": true} (deaf to SIGTERM), {"deaf": true} (never answers again). It ends the run by itself with
run.completed where no step did.

Each request is added to `<home>/requests.jsonl`, without the secret.
"""

import argparse
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[2] / "worker/backends/bridge/process/wire.py"
_SPEC = importlib.util.spec_from_file_location("wire", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
wire: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(wire)

USAGE = {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 0, "reasoning_tokens": 0}


class Child:
    def __init__(self, endpoint: str, home: Path) -> None:
        self.endpoint = endpoint
        self.home = home
        self.secret = sys.stdin.readline().rstrip("\n")
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.requests: list[dict[str, Any]] = []
        self.runs: dict[str, str] = {}  # run id: session id, while they run
        self.chats = 0
        self.is_deaf = False

    def script(self) -> dict[str, Any]:
        return dict(json.loads((self.home / "script.json").read_text()))

    def ready(self, **changed: Any) -> None:
        line = {"event": "ready", "endpoint": self.endpoint, "pid": os.getpid(), "protocol": wire.PROTOCOL, **changed}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def serve(self) -> None:
        place = wire.place_of(self.endpoint)
        if isinstance(place, str):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            os.umask(0o177)
            server.bind(place)
            os.umask(0o077)
        else:
            server = socket.create_server(place)
        server.listen(64)
        for step in self.script().get("start", []):
            self.do(step, None, "")
        self.ready()
        while True:
            connection, _ = server.accept()
            threading.Thread(target=self.connection, args=(connection,), daemon=True).start()

    def connection(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    self.request(wire.decode(line), connection)
        except OSError:
            return

    def request(self, request: dict[str, Any], connection: socket.socket) -> None:
        if request.pop("secret", None) != self.secret:
            self.refuse(connection, "wrong_secret")
            connection.shutdown(socket.SHUT_RDWR)
            return
        with self.changed:
            self.requests.append(request)
            with (self.home / "requests.jsonl").open("a") as file:
                file.write(json.dumps(request) + "\n")
            self.changed.notify_all()
        if self.is_deaf:
            threading.Event().wait()
        action = request["action"]
        if action == "chat":
            self.chat(request, connection)
        elif action == "stream":
            self.send(connection, ok=True, run_id=request["run_id"], status="running")
            self.turn(request["run_id"], connection)
        elif action == "list":
            sessions = [{"session_id": session, "run_id": run} for run, session in list(self.runs.items())]
            self.send(connection, ok=True, sessions=sessions, spare=False, max_agents=1)
        elif action == "ping":
            self.send(connection, ok=True, hermes_version="0.0-scripted", pid=os.getpid())
        elif action == "destroy":
            self.send(connection, ok=True, destroyed=1, deferred=0)
        else:
            self.send(connection, ok=True)

    def chat(self, request: dict[str, Any], connection: socket.socket) -> None:
        codes = self.script().get("chat", [])
        code = codes[self.chats] if self.chats < len(codes) else None
        self.chats += 1
        if code is not None and code != "die":
            self.refuse(connection, code)
            return
        self.runs[request["run_id"]] = request["session_id"]
        if code == "die":
            connection.shutdown(socket.SHUT_RD)
        self.send(connection, ok=True, run_id=request["run_id"], session_id=request["session_id"], status="running")
        if code == "die":
            os.kill(os.getpid(), signal.SIGKILL)

    def turn(self, run_id: str, connection: socket.socket) -> None:
        self.event(connection, "run.begun", model="scripted-1", warm=False)
        for step in self.script().get("turn", []):
            self.do(step, connection, run_id)
            if step.get("event") in wire.LAST_EVENTS:
                self.runs.pop(run_id, None)
                return
            if "wait_either" in step and self.was_asked(run_id, ["interrupt"]):
                self.runs.pop(run_id, None)
                self.event(connection, "run.interrupted", usage=USAGE)
                return
        self.runs.pop(run_id, None)
        self.event(connection, "run.completed", text="", finish_reason="stop", usage=USAGE)

    def do(self, step: dict[str, Any], connection: socket.socket | None, run_id: str) -> None:
        if "event" in step:
            assert connection is not None
            self.event(connection, **step)
        elif "line" in step or "bytes" in step:
            assert connection is not None
            whole = step["line"].encode() + b"\n" if "line" in step else bytes.fromhex(step["bytes"])
            for _ in range(step.get("times", 1)):
                connection.sendall(whole)
        elif "stdout" in step or "stderr" in step:
            out = sys.stdout if "stdout" in step else sys.stderr
            out.write(step.get("stdout", step.get("stderr")))
            out.flush()
        elif "sleep" in step:
            time.sleep(step["sleep"])
        elif "hang" in step:
            threading.Event().wait()
        elif "exit" in step:
            os._exit(step["exit"])
        elif "kill" in step:
            os.kill(os.getpid(), signal.SIGKILL)
        elif "close" in step:
            assert connection is not None
            connection.shutdown(socket.SHUT_RDWR)
            threading.Event().wait()
        elif "tool" in step:
            subprocess.Popen(["sh", "-c", step["tool"]], start_new_session=True)
        elif "wait" in step:
            with self.changed:
                self.changed.wait_for(lambda: any(each["action"] == step["wait"] for each in self.requests), 60)
        elif "wait_either" in step:
            with self.changed:
                self.changed.wait_for(lambda: self.was_asked(run_id, step["wait_either"]), 60)
        elif "ready" in step:
            self.ready(**step["ready"])
        elif "stay" in step:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif "deaf" in step:
            self.is_deaf = True

    def was_asked(self, run_id: str, actions: list[str]) -> bool:
        return any(each["action"] in actions and each.get("run_id") == run_id for each in self.requests)

    def event(self, connection: socket.socket, event: str, **fields: Any) -> None:
        self.send(connection, n=1, event=event, **fields)

    def refuse(self, connection: socket.socket, code: str) -> None:
        self.send(connection, ok=False, error={"code": code, "message": f"Refused as {code}."})

    def send(self, connection: socket.socket, **shape: Any) -> None:
        connection.sendall(wire.encode(shape))


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--endpoint", "--agent-root", "--hermes-home", "--profile", "--parent-pid"):
        parser.add_argument(name)
    arguments = parser.parse_args()
    home = Path(arguments.hermes_home)
    facts = {"argv": sys.argv[1:], "environ": dict(os.environ), "parent": os.getppid(), "folder": str(Path.cwd())}
    facts |= {"files": sorted(os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1])}
    (home / "facts.json").write_text(json.dumps(facts))
    Child(arguments.endpoint, home).serve()


if __name__ == "__main__":
    main()
