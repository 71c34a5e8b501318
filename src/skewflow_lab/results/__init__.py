"""The page of recorded results, and the figure and the table of README.md, from their files."""
