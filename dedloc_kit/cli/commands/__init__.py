"""The commands of `dedloc`, a file each: `add(parser)` adds the options, `run(options)` does it.

A command comes to be by a file here and its line in `dedloc_kit.cli.table`. What takes long to import is imported in
`run`: `--help` and a wrong option are answered without it.
"""
