"""Generators scaled to an angle: the root mean square over the planes, or the angle of each."""
