"""The sizes at which rules and passes choose another form of an operation on XLA:CPU.

Each was measured on x86 cores, by the command above it or as `bench/RESULTS.md` tells. What has
nothing to do with speed, as the 32 bits in which oneDNN counts, stands with its rule.
"""

import torch

# --- library calls: `python -m bench.forms`, with and without `--dtype bfloat16` -----------------

# Multiplications of a convolution, and of a matrix product, below which a call of oneDNN costs more
# than it gains.
FEWEST_IN_CONVOLUTION = 1 << 19
FEWEST_IN_PRODUCT = {torch.bfloat16: 1 << 22, torch.float32: 1 << 26}
# Multiplications of one of attention's two products below which a call of torch's kernel costs more
# than it gains.
FEWEST_IN_ATTENTION = 1 << 23
# Keys up to which XLA's products and softmax cost less in bfloat16: torch's kernel packs blocks of
# keys.
MOST_KEYS_IN_BFLOAT16 = 256

# --- library calls of training: `python -m bench run --suite training --mode training` -----------

# Multiplications of a convolution's weight gradient below which a call costs more than it gains.
FEWEST_IN_WEIGHT_GRADIENT = 1 << 20
# Elements of a weight for one of the convolution's result, above which XLA's own weight gradient
# costs less: oneDNN puts the weight into blocks and back.
LARGEST_WEIGHT = 8
# Parts of the batch whose weight gradients are computed side by side and summed, if together they
# are no larger than the convolution's result.
MOST_PARTS = 8

# --- other forms of one operator: bench/RESULTS.md -----------------------------------------------

# Multiplications of all rows with all groups' matrices below which a call for each group costs more
# than it gains ("Calls of torch's kernels").
FEWEST_IN_GROUPS = 1 << 22
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
