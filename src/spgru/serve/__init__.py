"""The local page: `spgru serve`. Needs the extra `web`.

From a request to an answer, one file a hop:

    app         routes;  guard: limits, headers and hosts around all of them
    requests    what a request may say, checked (scene.py, sequence.py, table.py: its three kinds)
    pool        computations at once, time for each: worker processes that can be ended
    worker      what such a process does: prediction.py, forecasting.py
    answers     what it found, as JSON, a GIF or arrays
"""
