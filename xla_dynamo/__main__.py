"""`python -m xla_dynamo`: the command line."""

import sys

from xla_dynamo.command_line import main

if __name__ == "__main__":
    sys.exit(main())
