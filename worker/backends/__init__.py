"""The things that answer, behind one seam."""
