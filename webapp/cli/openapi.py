"""`portal openapi`."""
