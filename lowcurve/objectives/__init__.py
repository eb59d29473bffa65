"""What does training minimize besides cross-entropy? One loss term per file, each per sample and free of batch size."""
