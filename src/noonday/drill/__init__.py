"""``noonday drill``: does Noonday keep its promises while things break? Anybody can try it here.

It starts a Postgres, a small cluster of the service and receivers of its own, lets clients work,
and strikes: kills, pauses, crashes, cut networks, wrong clocks. Then it checks the invariants by
what receivers and clients saw and by what the database holds, and says what it found.
"""
