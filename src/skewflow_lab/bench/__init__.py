"""Benchmarks: what a step costs, measured against everything a user could take instead."""
