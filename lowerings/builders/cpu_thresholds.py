"""The sizes at which rules and passes choose another form of an operation on XLA:CPU.

Each was measured on x86 cores, by the command above it or as `bench/RESULTS.md` tells. The sizes
from which a kernel is called stand with the kernel (`xla_dynamo.kernels`).
"""

# --- other forms of one operator: bench/RESULTS.md -----------------------------------------------

# Convolutions that one with zeros between the elements of its image is split into, and the
# multiplications of each below which that does not pay ("Transposed convolutions by phases").
MOST_PHASES, FEWEST_IN_PHASE = 16, 1 << 23
# Elements of a window up to which a depthwise convolution is a sum of shifted products: more take
# long to compile.
MOST_SHIFTED_PRODUCTS = 64

# --- reductions: `python -m bench.reductions` ----------------------------------------------------

# Elements below which a reduction is left as it is.
FEWEST_REDUCED = 1 << 12
# Rows that are reduced at a time, and the elements of a window. As few rows are not split.
ROWS_AT_A_TIME, REDUCED_BY_WINDOW = 16, 32
# Elements of a row that one loop reduces, some 32 sums side by side. Beyond twice that a row is
# split, for precision's sake, and for other threads where there are few rows.
LONGEST_ROW = 1 << 11

# --- outlined updates: `python -m bench.decode` --------------------------------------------------
# --- outlined conversions: `python -m bench run --suite bfloat16 --dtype bfloat16` ---------------

# Elements below which nothing is outlined, and elements of a weight's last dimension from which its
# conversion is not: XLA converts along that dimension fast enough.
FEWEST_OUTLINED, ENOUGH_IN_ROW = 1 << 14, 16

# --- materialized values: `python -m bench run --suite training --mode training` -----------------

# Arrays that a value may be recomputed from, and how many a value of few elements may: a kernel of
# its own would cost as much.
MOST_ARRAYS, MOST_ARRAYS_OF_FEW = 1, 4
FEW_ELEMENTS = 1 << 14
# Operations that a value may be recomputed by where a user needs it at several indices.
MOST_RECOMPUTED_OPERATIONS = 32
# Operations, one behind another, that a value may be recomputed by in several kernels.
MOST_OPERATIONS_IN_A_ROW = 24
