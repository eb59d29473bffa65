"""The paper's building blocks as ordinary `torch.nn` layers, and the constants that are known of each."""
