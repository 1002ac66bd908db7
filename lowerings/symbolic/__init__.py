"""Programs with dynamic dimensions in StableHLO: `tensor<?x8xf32>`, and computed shapes."""
