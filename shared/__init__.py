"""What the web and the worker processes must agree on; imports neither of them."""
