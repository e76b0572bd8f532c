"""A look at runs: pass@k, tables, plots, the report, and a simulation."""
