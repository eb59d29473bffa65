"""How is a method trained, and how does a run survive? Read `config`, `step`, `loop` first."""
