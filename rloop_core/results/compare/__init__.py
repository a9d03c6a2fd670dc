"""Arms side by side: tables, figures and the page of `rloop compare`."""
