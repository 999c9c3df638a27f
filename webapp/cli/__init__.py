"""The `portal` command, one module per sub-command."""
