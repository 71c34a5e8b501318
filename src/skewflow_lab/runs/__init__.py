"""Run folders: making, resuming, checking and collecting them."""
