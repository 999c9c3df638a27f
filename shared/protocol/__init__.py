"""The events clients hear and the commands they send: one typed union each."""
