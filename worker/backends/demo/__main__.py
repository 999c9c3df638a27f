"""`python -m worker.backends.demo --port 0 --key-env PORTAL_DEMO_KEY`: serves until it is told to stop.

When it listens it prints one line: `{"event": "ready", "url": "http://127.0.0.1:PORT"}`.
"""

import argparse
import json
import os
import signal
import sys
import threading

from worker.backends.demo.server import DemoGateway


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m worker.backends.demo", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--key-env", default="PORTAL_DEMO_KEY", help="the variable that holds the key")
    arguments = parser.parse_args()
    key = os.environ.get(arguments.key_env, "")
    if len(key) < 16:
        print(f"demo gateway: set {arguments.key_env} to a key of at least 16 characters", file=sys.stderr)  # noqa: T201
        return 2
    server = DemoGateway(arguments.port, key)
    # shutdown() waits for serve_forever to return, so a signal must not call it on the thread that serves
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's; it tells us by SIGTERM
    print(json.dumps({"event": "ready", "url": server.address}), flush=True)  # noqa: T201
    server.serve_forever(poll_interval=0.2)
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
