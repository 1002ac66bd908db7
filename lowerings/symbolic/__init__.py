"""Programs of open sizes in StableHLO's own terms: `tensor<?x8xf32>`, shapes that are computed."""
