"""The least that any way through Redis costs on this machine, measured beside the figures it stands for."""

import threading
import time
from collections.abc import Callable
from typing import Any

import redis


def publish_to_subscriber(socket_path: str, rounds: int = 500) -> list[float]:
    """Milliseconds from PUBLISH to a raw subscriber on another thread's connection, one message at a time."""
    publisher = redis.Redis(unix_socket_path=socket_path)
    client: Any = redis.Redis(unix_socket_path=socket_path)  # its pubsub has no types
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("portal-bench")
    listener.get_message(timeout=1)
    taken: list[float] = []
    for _ in range(rounds):
        sent = time.time_ns()
        publisher.publish("portal-bench", str(sent))
        message = None
        while message is None:
            message = listener.get_message(timeout=1)
        taken.append((time.time_ns() - int(message["data"])) / 1e6)
    listener.close()
    return taken


def cpu_of_paced_publish(socket_path: str, cpu_of_redis_s: Callable[[], float], rounds: int = 250) -> float:
    """CPU seconds of 1,000 messages, one every 20 ms: to publish each, of Redis, and to receive it on another thread.

    What wakes 50 times a second costs several times what it costs in a tight loop: no portal can be below this.
    """
    client: Any = redis.Redis(unix_socket_path=socket_path)
    listener = client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("portal-bench-paced")
    listener.get_message(timeout=1)

    def receive() -> None:
        left = rounds
        while left:
            left -= listener.get_message(timeout=5) is not None

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    before = cpu_of_redis_s() + time.process_time()
    for _ in range(rounds):
        client.publish("portal-bench-paced", "x" * 250)
        time.sleep(0.02)
    thread.join(5)
    spent = cpu_of_redis_s() + time.process_time() - before
    listener.close()
    return spent * 1000 / rounds


def push_to_pop(socket_path: str, rounds: int = 300) -> list[float]:
    """Milliseconds from LPUSH to a waiting BRPOP."""
    pusher, taken = redis.Redis(unix_socket_path=socket_path), []
    done = threading.Semaphore(0)

    def pop() -> None:
        popper = redis.Redis(unix_socket_path=socket_path)
        for _ in range(rounds):
            item = popper.brpop(["portal-bench-list"], timeout=5)
            if item is not None:
                taken.append((time.time_ns() - int(item[1])) / 1e6)
            done.release()

    thread = threading.Thread(target=pop, daemon=True)
    thread.start()
    for _ in range(rounds):
        time.sleep(0.001)
        pusher.lpush("portal-bench-list", str(time.time_ns()))
        done.acquire(timeout=6)
    thread.join(10)
    return taken


def ping(socket_path: str, rounds: int = 1000) -> list[float]:
    """Milliseconds of one PING."""
    client, taken = redis.Redis(unix_socket_path=socket_path), []
    for _ in range(rounds):
        sent = time.perf_counter_ns()
        client.ping()
        taken.append((time.perf_counter_ns() - sent) / 1e6)
    return taken
