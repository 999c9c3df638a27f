"""`portal bench`: the measurements of DESIGN 11, each beside its floor."""
