"""`python -m jaxrl_par`: the command line."""

import sys

from jaxrl_par.cli import main

if __name__ == "__main__":
    sys.exit(main())
