"""One run, from claim to final state."""
