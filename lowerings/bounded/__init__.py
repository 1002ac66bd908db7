"""Programs of bounded sizes: lowered at upper bounds, right at every size below them."""
