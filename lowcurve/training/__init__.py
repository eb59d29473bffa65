"""How is a method trained, and how does a run survive? Read `settings`, `step`, `loop` first."""
