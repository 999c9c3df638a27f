"""Settings: read once at start from the environment, `*_FILE` secrets and `portal.toml`; one clear line a fault.

The environment wins over `portal.toml`, which is read from the working directory, else from the data directory
(DESIGN 9). A key in the file is the variable's name in lower case, without `PORTAL_`: `port = 8080`. Secrets are read
only from the environment or from a file that `<NAME>_FILE` names, never from `portal.toml`.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from shared.errors import SettingsError

SECRETS = ("PORTAL_SECRET_KEY", "HERMES_GATEWAY_KEY", "DATABASE_URL", "REDIS_URL", "PORTAL_METRICS_TOKEN")
PREFIX = "PORTAL_"
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class Settings(BaseSettings):
    """Every setting with its default. Units stand in the names; secrets are masked in `repr`."""

    model_config = SettingsConfigDict(extra="ignore", frozen=True, populate_by_name=True, validate_default=True)

    # where the portal lives and listens
    data_dir: Path = Field(default=Path("~/.local/share/hermes-portal"), validation_alias="PORTAL_DATA_DIR")
    host: str = Field(default="127.0.0.1", validation_alias="PORTAL_HOST")
    port: int = Field(default=8080, ge=0, le=65535, validation_alias="PORTAL_PORT")
    public_url: str | None = Field(default=None, validation_alias="PORTAL_PUBLIC_URL")
    trusted_proxies: int = Field(default=0, ge=0, le=10, validation_alias="PORTAL_TRUSTED_PROXIES")
    allow_http: bool = Field(default=False, validation_alias="PORTAL_ALLOW_HTTP")
    auth_disabled: bool = Field(default=False, validation_alias="AUTH_DISABLED")
    secret_key: SecretStr | None = Field(default=None, validation_alias="PORTAL_SECRET_KEY")
    metrics_token: SecretStr | None = Field(default=None, validation_alias="PORTAL_METRICS_TOKEN")
    database_url: SecretStr | None = Field(default=None, validation_alias="DATABASE_URL")
    redis_url: SecretStr | None = Field(default=None, validation_alias="REDIS_URL")
    redis_prefix: str = Field(default="portal:", max_length=40, validation_alias="PORTAL_REDIS_PREFIX")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", validation_alias="PORTAL_LOG_LEVEL")

    # the gateway
    hermes_gateway_url: str | None = Field(default=None, validation_alias="HERMES_GATEWAY_URL")
    hermes_gateway_key: SecretStr | None = Field(default=None, validation_alias="HERMES_GATEWAY_KEY")
    gateway_api: Literal["responses", "runs"] = Field(default="responses", validation_alias="PORTAL_GATEWAY_API")
    gateway_model: str | None = Field(default=None, validation_alias="PORTAL_GATEWAY_MODEL")
    allow_private_addresses: bool = Field(  # of gateways that were typed in a page (S37)
        default=False, validation_alias="PORTAL_ALLOW_PRIVATE_ADDRESSES"
    )
    demo_url: str | None = Field(default=None, validation_alias="PORTAL_DEMO_URL")  # set by `portal up`
    demo_key: SecretStr | None = Field(default=None, validation_alias="PORTAL_DEMO_KEY")
    context_budget_tokens: int = Field(default=48_000, ge=1_000, validation_alias="PORTAL_CONTEXT_BUDGET_TOKENS")

    # Hermes and the agent bridge (most names are of the source document)
    hermes_home: Path = Field(default=Path("~/.hermes"), validation_alias="HERMES_HOME")
    hermes_agent_root: Path | None = Field(default=None, validation_alias="HERMES_AGENT_ROOT")
    bridge_endpoint: str | None = Field(default=None, validation_alias="HERMES_AGENT_BRIDGE_ENDPOINT")
    bridge_timeout_ms: int = Field(default=120_000, ge=100, validation_alias="HERMES_AGENT_BRIDGE_TIMEOUT_MS")
    bridge_startup_timeout_ms: int = Field(
        default=120_000, ge=100, validation_alias="HERMES_AGENT_BRIDGE_STARTUP_TIMEOUT_MS"
    )
    bridge_python: str | None = Field(default=None, validation_alias="HERMES_AGENT_BRIDGE_PYTHON")
    bridge_uv: str | None = Field(default=None, validation_alias="HERMES_AGENT_BRIDGE_UV")
    uv: str | None = Field(default=None, validation_alias="UV")
    bridge_platform: str = Field(default="cli", min_length=1, validation_alias="HERMES_AGENT_BRIDGE_PLATFORM")
    bridge_provider: str | None = Field(default=None, validation_alias="HERMES_BRIDGE_PROVIDER")
    bridge_max_turns: int = Field(default=100, ge=1, validation_alias="HERMES_BRIDGE_MAX_TURNS")
    bridge_max_agents: int = Field(default=100, ge=1, validation_alias="PORTAL_BRIDGE_MAX_AGENTS")  # a profile's
    bridge_idle_minutes: float = Field(default=30, gt=0, validation_alias="PORTAL_BRIDGE_IDLE_MINUTES")

    # waiting for people
    approval_timeout_s: int = Field(default=60, ge=0, validation_alias="PORTAL_APPROVAL_TIMEOUT_S")
    background_approval_timeout_s: int = Field(
        default=86_400, ge=0, validation_alias="PORTAL_BACKGROUND_APPROVAL_TIMEOUT_S"
    )
    clarify_timeout_s: int = Field(default=0, ge=0, validation_alias="PORTAL_CLARIFY_TIMEOUT_S")

    # limits of a run
    run_time_limit_s: float = Field(default=43_200, gt=0, validation_alias="PORTAL_RUN_TIME_LIMIT_S")
    run_quiet_timeout_s: float = Field(default=600, gt=0, validation_alias="PORTAL_RUN_QUIET_TIMEOUT_S")
    run_keepalive_timeout_s: float = Field(default=7_200, gt=0, validation_alias="PORTAL_RUN_KEEPALIVE_TIMEOUT_S")
    connect_timeout_s: float = Field(default=10, gt=0, validation_alias="PORTAL_CONNECT_TIMEOUT_S")
    abort_grace_s: float = Field(default=10, gt=0, validation_alias="PORTAL_ABORT_GRACE_S")
    shutdown_grace_s: float = Field(default=60, ge=0, validation_alias="PORTAL_SHUTDOWN_GRACE_S")
    max_queue_per_session: int = Field(default=100, ge=1, validation_alias="PORTAL_MAX_QUEUE_PER_SESSION")
    max_message_kb: int = Field(default=512, ge=1, validation_alias="PORTAL_MAX_MESSAGE_KB")

    # leases and the janitor (RELIABILITY 2.2)
    lease_s: float = Field(default=90, gt=0, validation_alias="PORTAL_LEASE_S")
    lease_renew_s: float = Field(default=15, gt=0, validation_alias="PORTAL_LEASE_RENEW_S")
    lease_give_up_s: float = Field(default=75, gt=0, validation_alias="PORTAL_LEASE_GIVE_UP_S")
    janitor_every_s: float = Field(default=15, gt=0, validation_alias="PORTAL_JANITOR_EVERY_S")
    janitor_young_s: float = Field(default=30, ge=0, validation_alias="PORTAL_JANITOR_YOUNG_S")
    dispatch_again_s: float = Field(default=30, gt=0, validation_alias="PORTAL_DISPATCH_AGAIN_S")
    abort_force_s: float = Field(default=30, gt=0, validation_alias="PORTAL_ABORT_FORCE_S")
    database_look_s: float = Field(default=5, gt=0, validation_alias="PORTAL_DATABASE_LOOK_S")

    # the relay and the sockets (RELIABILITY 3)
    log_max_events: int = Field(default=5_000, ge=10, validation_alias="PORTAL_LOG_MAX_EVENTS")
    log_ttl_s: int = Field(default=86_400, ge=60, validation_alias="PORTAL_LOG_TTL_S")
    worker_concurrency: int = Field(default=50, ge=1, le=500, validation_alias="PORTAL_WORKER_CONCURRENCY")
    max_sockets: int = Field(default=1_000, ge=1, validation_alias="PORTAL_MAX_SOCKETS")
    max_sockets_per_user: int = Field(default=30, ge=0, validation_alias="PORTAL_MAX_SOCKETS_PER_USER")
    submits_per_minute: int = Field(default=3_000, ge=0, validation_alias="PORTAL_SUBMITS_PER_MINUTE")  # a user; 0: any
    keep_run_logs_days: int = Field(default=90, ge=1, validation_alias="PORTAL_KEEP_RUN_LOGS_DAYS")

    @field_validator("data_dir", "hermes_home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("hermes_agent_root")
    @classmethod
    def _absolute_if_given(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("bridge_endpoint")
    @classmethod
    def _is_private_endpoint(cls, value: str | None) -> str | None:
        """Nobody but this machine may reach the agents (RELIABILITY S39)."""
        if not value:
            return None
        parts = urlsplit(value)
        if parts.scheme == "ipc" and not parts.netloc and parts.path.startswith("/"):
            return value
        try:
            is_here = parts.scheme == "tcp" and parts.hostname in LOOPBACK_HOSTS and parts.port is not None
        except ValueError:
            is_here = False
        if not is_here:
            raise ValueError("must be ipc:///absolute/path or tcp://127.0.0.1:port")
        return value

    @field_validator("hermes_gateway_url", "demo_url", "public_url")
    @classmethod
    def _is_http_url(cls, value: str | None) -> str | None:
        if value is None or value == "":
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address with a host")
        return value.rstrip("/")

    @field_validator("database_url")
    @classmethod
    def _is_database_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        scheme = value.get_secret_value().split(":", 1)[0]
        if scheme not in ("sqlite", "postgresql", "postgresql+psycopg", "postgres"):
            raise ValueError("must begin with sqlite:/// or postgresql://")
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_redis_url(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        scheme = value.get_secret_value().split(":", 1)[0]
        if scheme not in ("redis", "rediss", "unix", "redis+socket"):
            raise ValueError("must begin with redis://, rediss:// or unix://")
        return value

    @model_validator(mode="after")
    def _together(self) -> "Settings":
        if self.auth_disabled and self.host not in LOOPBACK_HOSTS:
            raise ValueError(
                f"AUTH_DISABLED=1 is refused on {self.host}: it would let anybody in. "
                "Listen on 127.0.0.1, or unset AUTH_DISABLED"
            )
        if not self.lease_renew_s < self.lease_give_up_s < self.lease_s:
            raise ValueError("PORTAL_LEASE_RENEW_S < PORTAL_LEASE_GIVE_UP_S < PORTAL_LEASE_S must hold")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # load() gathers the sources itself, so that each fault can name its own

    @property
    def resolved_database_url(self) -> str:
        """For SQLAlchemy; SQLite in the data directory when none is given, psycopg for PostgreSQL."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'portal.db'}"
        url = self.database_url.get_secret_value()
        for prefix in ("postgresql://", "postgres://"):
            if url.startswith(prefix):
                return "postgresql+psycopg://" + url.removeprefix(prefix)
        return url

    @property
    def is_demo(self) -> bool:
        """True while no real agent is configured: the built-in demo agent answers."""
        return self.hermes_gateway_url is None and self.demo_url is not None


def is_portals(variable: str) -> bool:
    """Whether an environment variable of that name is the portal's own, and for no agent to see."""
    return variable.startswith(PREFIX) or variable.removesuffix("_FILE") in SECRETS


def load(environ: Mapping[str, str] | None = None, *, cwd: Path | None = None, **overrides: Any) -> Settings:
    """Read the settings. Raises SettingsError with one line a fault, each naming the setting and what to give.

    `overrides` are field names (`port=0`), as the command line gives them; they win over everything.
    """
    env = dict(os.environ if environ is None else environ)
    faults: list[str] = []
    values: dict[str, Any] = {}
    file_values, file_faults = _read_toml(env, cwd or Path.cwd(), overrides)
    faults += file_faults
    for name, field in Settings.model_fields.items():
        variable = str(field.validation_alias)
        if f"{variable}_FILE" in env and variable in SECRETS:
            try:
                values[name] = Path(env[f"{variable}_FILE"]).read_text(encoding="utf-8").strip()
            except OSError as error:
                faults.append(f"{variable}_FILE: cannot be read ({error.strerror})")
        elif env.get(variable, "") != "":
            values[name] = env[variable]
        elif name in file_values:
            values[name] = file_values[name]
    values.update({name: value for name, value in overrides.items() if value is not None})
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise SettingsError("\n".join(faults + [_fault_line(e) for e in error.errors()])) from None
    if faults:
        raise SettingsError("\n".join(faults))
    return settings


def _read_toml(env: Mapping[str, str], cwd: Path, overrides: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    data_dir = Path(str(overrides.get("data_dir") or env.get("PORTAL_DATA_DIR") or "~/.local/share/hermes-portal"))
    path = next((p for p in (cwd / "portal.toml", data_dir.expanduser() / "portal.toml") if p.is_file()), None)
    if path is None:
        return {}, []
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        return {}, [f"{path.name}: cannot be read: {error}"]
    faults = []
    for key in table:
        variable = str(Settings.model_fields[key].validation_alias) if key in Settings.model_fields else None
        if variable is None:
            faults.append(f"{path.name}: there is no setting {key!r}")
        elif variable in SECRETS:
            faults.append(f"{path.name}: {key} is a secret: give it as {variable} or {variable}_FILE")
    return {k: v for k, v in table.items() if k in Settings.model_fields}, faults


def _fault_line(error: Any) -> str:
    where = str(error["loc"][0]) if error["loc"] else ""
    field = Settings.model_fields.get(where)
    variable = str(field.validation_alias) if field is not None else where
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{variable}: {message}" if variable else message
