"""The local page: `spgru serve`. Needs the extra `web`.

From a request to an answer, one file a hop:

    run         the server;  app: its routes;  files: those of the page
    connections a time limit for heads, and room for new connections
    hosts       names under which it may be asked
    guard       hosts, sizes and headers, around all routes
    fields      what a request may say, checked;  scene, sequence, table: its three kinds
    pool        so many computations at once, so long each: processes that can be ended
    worker      what such a process does;  prediction, forecasting: how
    answers     what it found, as JSON, a GIF or arrays
"""
