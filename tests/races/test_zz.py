import time
from tests.support.invariants import wipe, broken
from tests.support import seeds
async def test_z(store):
    for f in (wipe, broken, wipe, broken):
        t=time.perf_counter()
        for _ in range(10): await f(store)
        print(f.__name__, (time.perf_counter()-t)/10*1e3)
    async with store.transaction() as tx:
        for q in ("DELETE FROM timers","DELETE FROM runs","DELETE FROM occurrences","DELETE FROM executions","SELECT job_id FROM timers GROUP BY job_id HAVING count(*) > 1"):
            t=time.perf_counter(); await tx.execute(q); print(q, (time.perf_counter()-t)*1e3)
            t=time.perf_counter(); await tx.execute(q); print(q, (time.perf_counter()-t)*1e3)
