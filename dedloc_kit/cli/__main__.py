"""`python -m dedloc_kit.cli`."""

import sys

from dedloc_kit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
