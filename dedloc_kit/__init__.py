"""dedloc_kit: a community trains one model together over the Internet.

Importing the package is cheap: what a function needs is imported when it is asked for.
"""

from dedloc_kit.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dedloc_kit.notebook.chat import chat
    from dedloc_kit.notebook.join import join
    from dedloc_kit.notebook.serve import serve

__all__ = ["__version__", "chat", "join", "serve"]


def __getattr__(name: str) -> object:
    if name in ("chat", "join", "serve"):
        from importlib import import_module

        return getattr(import_module(f"dedloc_kit.notebook.{name}"), name)
    raise AttributeError(f"module 'dedloc_kit' has no attribute {name!r}")
