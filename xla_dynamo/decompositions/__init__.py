"""ATen to simpler ATen: which operators are taken apart before the lowering table sees them."""
