from __future__ import annotations
from tests.support.servers import *

async def test_first(api: Api) -> None:
    r = await api.admin.post("/v1/jobs", a_job())
    print(r)
    assert r.status == 202
    r = await api.admin.get(r.headers['location'])
    print(r)
    assert r.status == 200
