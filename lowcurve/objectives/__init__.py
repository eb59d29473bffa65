"""What does training minimize besides cross-entropy? One term per file, all per sample."""
