"""dtype and layout conversions: _to_copy, clone, copies, bit views, real and complex views."""
