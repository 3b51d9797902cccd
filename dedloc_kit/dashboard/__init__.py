"""The live page of a run and the HTTP interface behind it: what the organizer shows and the volunteers join.

`server` is the thread that serves, `live` what it knows of the run, `routes` which address answers what, `static` the
page. Everything here runs in the launching process, which has neither torch nor hivemind.
"""
