"""Control tasks and policies for evolution strategies (Sec. 6.1)."""
