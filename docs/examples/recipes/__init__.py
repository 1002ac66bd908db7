"""What people come for, each a script that runs on a CPU in minutes, and downloads nothing.

docs/examples.md tells what each shows. Their models are small and have random weights, unless
`--model` names a folder of real ones.
"""

from xla_dynamo.torchvision_operators import declare_missing_operators

# transformers and timm import torchvision, whose plain wheel lacks its operators beside a CPU build
# of torch.
declare_missing_operators()
