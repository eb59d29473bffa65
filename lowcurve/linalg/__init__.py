"""Linear maps that are never written out: their norms, by Lanczos and by power iterations."""
