"""dedloc_kit: a community trains one model together over the Internet.

Importing the package is cheap: what a function needs is imported when it is asked for.
"""

from dedloc_kit.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dedloc_kit.inference.model import from_pretrained
    from dedloc_kit.notebook.chat import chat
    from dedloc_kit.notebook.join import join
    from dedloc_kit.notebook.serve import serve
    from dedloc_kit.notebook.status import status

__all__ = ["__version__", "chat", "from_pretrained", "join", "serve", "status"]

_MODULES = {
    "chat": "notebook.chat",
    "from_pretrained": "inference.model",
    "join": "notebook.join",
    "serve": "notebook.serve",
    "status": "notebook.status",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"dedloc_kit.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'dedloc_kit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
