"""The real things that tests run against: Redis, PostgreSQL, Hermes, Chromium, the portal itself."""
