"""The ordered, redis-backed path between a worker and the pages."""
