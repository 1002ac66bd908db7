"""FX to FX: what is read off an ATen graph, and what is changed in it before it is lowered."""
