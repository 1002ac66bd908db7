"""Running reductions along a dimension: cumsum, cumprod, cummax, logcumsumexp."""
