"""`portal bench`: the figures of DESIGN 11, each beside its floor measured in the same run."""
