"""Every query and every write, as plain functions taking `db`."""
