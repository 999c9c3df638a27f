"""Limits on how often something may be tried: counted in Redis for all processes, in memory while Redis is away.

Two kinds: `Throttle.guess` for passwords and tokens, whose pause grows with each failure (S5), and `Throttle.take`
for what is allowed so many times a minute (S36).
"""

import hashlib
import ipaddress
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

import redis

from shared import errors, logs
from shared.relay.connection import Client
from webapp.relay_breaker import RelayBreaker

log = logs.get("webapp.throttle")

FORGET_S = 3_600  # after so long without a failure all is forgotten
MAX_PAUSE_S = 900
MEMORY_KEYS = 10_000

_GUESS = """
local at = redis.call('TIME')
local now = tonumber(at[1]) + tonumber(at[2]) / 1000000
local waits = 0
for i, key in ipairs(KEYS) do
  local seen = redis.call('HMGET', key, 'count', 'last')
  local over = (tonumber(seen[1]) or 0) - tonumber(ARGV[i])
  if over >= 0 then
    local pause = math.min(2 ^ math.min(over, 20), tonumber(ARGV[#KEYS + 2]))
    waits = math.max(waits, (tonumber(seen[2]) or 0) + pause - now)
  end
end
if waits > 0 then return math.ceil(waits) end
for i, key in ipairs(KEYS) do
  redis.call('HINCRBY', key, 'count', 1)
  redis.call('HSET', key, 'last', tostring(now))
  redis.call('EXPIRE', key, ARGV[#KEYS + 1])
end
return 0
"""
_SUCCEEDED = """
redis.call('DEL', KEYS[1])
for i = 2, #KEYS do
  redis.call('HINCRBY', KEYS[i], 'count', -1)
  redis.call('EXPIRE', KEYS[i], ARGV[1])
end
return 0
"""
_TAKE = """
local used = redis.call('INCR', KEYS[1])
if used == 1 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return used
"""


@dataclass
class _Seen:
    count: int = 0
    last: float = 0.0


class Throttle:
    """One of a web process. `prefix` is that of all Redis keys of the portal."""

    def __init__(self, client: Client, prefix: str, breaker: RelayBreaker) -> None:
        self._client = client
        self._breaker = breaker
        self._prefix = f"{prefix}throttle:"
        self._lock = threading.Lock()
        self._memory: OrderedDict[str, _Seen] = OrderedDict()

    def guess(self, kind: str, *parts: tuple[str, int]) -> None:
        """Count one try under each key of `parts`: (key, failures that are free). The try counts as failed until
        `succeeded`; counting first means that parallel tries cannot slip through together.

        Raises TooManyRequests when one of the keys must still wait: 1, 2, 4 ... seconds, at most 15 minutes.
        """
        keys = [self._key(kind, key) for key, _ in parts]
        free = [allowed for _, allowed in parts]
        answer = self._ask(_GUESS, keys, [*free, FORGET_S, MAX_PAUSE_S])
        wait_s = self._guess_in_memory(keys, free) if answer is None else answer
        if wait_s > 0:
            raise errors.TooManyRequests(f"Too many tries. Wait {_in_words(wait_s)}.", retry_after_s=wait_s)

    def succeeded(self, kind: str, forget: str, *undo: str) -> None:
        """A counted try was right: forget the failures of one key, take one from each of the others."""
        keys = [self._key(kind, key) for key in undo]
        self._ask(_SUCCEEDED, [self._key(kind, forget), *keys], [FORGET_S])
        with self._lock:
            self._memory.pop(self._key(kind, forget), None)
            for key in keys:
                if key in self._memory:
                    self._memory[key].count -= 1

    def take(self, kind: str, key: str, *, limit: int, per_s: int = 60) -> None:
        """Use one of `limit` in a window of `per_s` seconds; 0 = no limit. Raises TooManyRequests."""
        if limit <= 0:
            return
        window = int(time.time()) // per_s
        name = self._key(kind, f"{key}:{window}")
        used = self._ask(_TAKE, [name], [per_s + 1])
        if used is None:
            with self._lock:
                seen = self._remember(name)
                seen.count += 1
                used = seen.count
        if used > limit:
            wait_s = max(1, math.ceil((window + 1) * per_s - time.time()))
            raise errors.TooManyRequests("Too many requests. Try again in a moment.", retry_after_s=wait_s)

    def _ask(self, script: str, keys: list[str], arguments: list[int]) -> int | None:
        """The answer of a script; None while Redis is away, when each process counts for itself."""
        if self._breaker.is_open:
            return None
        begun = time.monotonic()
        try:
            return int(self._client.eval(script, len(keys), *keys, *arguments))
        except (redis.RedisError, OSError) as error:
            self._breaker.failed(begun)
            log.warning("throttle.in_memory", error=type(error).__name__)
            return None

    def _guess_in_memory(self, keys: list[str], free: list[int]) -> int:
        now = time.monotonic()
        with self._lock:
            all_seen = [self._remember(key) for key in keys]
            waits = 0.0
            for seen, allowed in zip(all_seen, free, strict=True):
                if now - seen.last > FORGET_S:
                    seen.count = 0
                if seen.count >= allowed:
                    pause = min(2.0 ** min(seen.count - allowed, 20), MAX_PAUSE_S)
                    waits = max(waits, seen.last + pause - now)
            if waits > 0:
                return math.ceil(waits)
            for seen in all_seen:
                seen.count, seen.last = seen.count + 1, now
            return 0

    def _remember(self, key: str) -> _Seen:
        seen = self._memory.setdefault(key, _Seen())
        self._memory.move_to_end(key)
        while len(self._memory) > MEMORY_KEYS:
            self._memory.popitem(last=False)
        return seen

    def _key(self, kind: str, key: str) -> str:
        """Names and addresses are hashed: they may be long, and need not be readable in Redis."""
        return f"{self._prefix}{kind}:{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:32]}"


def network_of(address: str | None) -> str:
    """The key for an address: itself, or its /64 for IPv6, of which one person has many."""
    try:
        ip = ipaddress.ip_address((address or "").split("%", 1)[0])
    except ValueError:
        return address or "unknown"
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def _in_words(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{math.ceil(seconds / 60)} minutes"
