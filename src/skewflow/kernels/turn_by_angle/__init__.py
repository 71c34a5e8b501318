"""Generators whose size is an angle: root mean square over the planes, or the same for each."""
