"""The agent bridge: Hermes' own AIAgent, in a child process in Hermes' own interpreter (DESIGN 8)."""
