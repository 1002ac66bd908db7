"""FX to FX: analyse, split and rewrite an ATen graph before it is lowered."""
