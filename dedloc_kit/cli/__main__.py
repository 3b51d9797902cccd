"""`python -m dedloc_kit.cli`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # `python -m` has put the current folder there: what lies in it is not for us
    from dedloc_kit.cli.main import main

    sys.exit(main())
