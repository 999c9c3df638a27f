"""The floor of the bridge: the same streams, taken straight from `AIAgent` in a process of its own.

Runs in the interpreter of a hermes-agent: standard library and Hermes only, Python 3.10 or newer. The one argument is
JSON: `base_url, model, streams, deltas, every_ms, turns`. It makes `streams` agents, has them stream at the same time,
and then plays `turns` short turns with one of them; the last line it prints is JSON: `late_ms` (of each delta, from
when the model said it), `cpu_s` (of this process, while they streamed), `sent_ns` (when each short turn began).
"""

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any


def main(asked: dict[str, Any]) -> dict[str, Any]:
    from run_agent import AIAgent

    def make(number: int) -> Any:
        agent = AIAgent(
            base_url=asked["base_url"],
            api_key="no-key",
            provider="custom",
            model=asked["model"],
            quiet_mode=True,
            platform="cli",
            session_id=f"floor-{number}",
            enabled_toolsets=_toolsets(),
        )
        agent._print_fn = lambda *_, **__: None
        return agent

    agents = [make(number) for number in range(asked["streams"])]
    histories = [play(agent, "stream 1 every 1 ms", []) for agent in agents]  # the first turn of each pays for imports
    late_ms: list[float] = []

    def on_delta(text: Any) -> None:
        came = time.time_ns()
        for stamp in (text or "").split():
            late_ms.append((came - int(stamp.split(":")[1])) / 1e6)

    wish = f"stream {asked['deltas']} every {asked['every_ms']} ms"
    threads = []
    for agent, history in zip(agents, histories, strict=True):
        agent.stream_delta_callback = on_delta
        threads.append(threading.Thread(target=play, args=(agent, wish, history)))
    before = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu_s = time.process_time() - before
    sent_ns = []
    agents[0].stream_delta_callback = None
    for _ in range(asked["turns"]):
        time.sleep(0.05)
        sent_ns.append(time.time_ns())
        histories[0] = play(agents[0], "stream 1 every 1 ms, floor", histories[0])
    return {"late_ms": late_ms, "cpu_s": cpu_s, "sent_ns": sent_ns}


def play(agent: Any, text: str, history: list[Any]) -> list[Any]:
    """One turn; the conversation after it."""
    result = agent.run_conversation(text, conversation_history=history)
    messages: list[Any] = result["messages"]
    return messages


def _toolsets() -> list[str] | None:
    """Those of the command line, as the bridge gives them."""
    with contextlib.suppress(ImportError, AttributeError):
        from hermes_cli.config import load_config
        from hermes_cli.tools_config import _get_platform_tools

        return sorted(_get_platform_tools(load_config(), "cli"))
    return None


if __name__ == "__main__":
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Hermes prints is not our answer
    told.write("\n" + json.dumps(main(json.loads(sys.argv[1]))) + "\n")
    told.flush()
    os._exit(0)  # threads of Hermes may still wait for something
