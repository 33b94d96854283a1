"""A git work tree as an archive with a stamp, and the archive as one job's import path."""
