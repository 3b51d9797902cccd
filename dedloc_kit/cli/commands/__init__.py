"""The commands of `dedloc`, a file each: `add(commands)` declares the options, `run(options)` does it.

What takes long to import is imported in `run`: every call of `dedloc` imports all these files. A command comes to be by
a file here and its place in `dedloc_kit.cli.main.COMMANDS`.
"""
