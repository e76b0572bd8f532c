"""Errors, files, command lines, users' code, ranks and random numbers."""
