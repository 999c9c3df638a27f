"""Does the work; the only place that knows a backend."""
