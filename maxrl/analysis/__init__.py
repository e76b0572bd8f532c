"""A look at runs: pass@k, tables, figures, the report, and a simulation."""
