"""Runs in Hermes' own interpreter, as the package `portal_bridge`: standard library and Hermes only.

The worker imports `wire` alone of it. Imports inside are relative, since the package has two names.
"""
