"""ATen to simpler ATen: which operators are decomposed before the lowering table sees them."""
