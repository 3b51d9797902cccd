"""The live page of a run and the HTTP interface behind it: what the organizer shows and the volunteers join.

`server` is the thread that serves, `view` what it knows of the run, `static` the page; each other module has the routes
for one kind of people. Everything here runs in the launching process, which has neither torch nor hivemind.
"""
