"""dedloc_kit: a community trains one model together over the Internet.

Importing the package is cheap: neither torch nor hivemind is loaded until a role starts.
"""

__version__ = "0.1.0"
