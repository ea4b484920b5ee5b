"""Promises of the dashboard's door: who gets in, as whom, and what a stolen half is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.jumping_clock import JumpingClock
from support.served import Api, served
from tinkex.server.dashboard.door import GUESSES, GUESSES_S, Guesses, Invitations
from tinkex.server.dashboard.visits import VISIT_S
from tinkex.server.refusals import Busy
from tinkex.server.tenancy.keys import FILE_NAME, ActiveKeys, KeyFile, OperatorKeys
from tinkex.wire.routes import DASHBOARD_INVITATION, DASHBOARD_VISIT, TRAINING_RUNS

PAGE = "x-tinkex-page"
HERE = "http://127.0.0.1:8000"


class Browser:
    """Cookies and the page's secret, as a browser at this address would keep them."""

    def __init__(self, api: Api) -> None:
        self.client, self.secret = api.client, "new"
        self.client.cookies.clear()

    async def sign_in(self, expect: int = 200, **credentials: str) -> Any:
        answer = await self.client.post(
            HERE + DASHBOARD_VISIT, json=credentials, headers={PAGE: self.secret}
        )
        assert answer.status_code == expect, answer.text
        self.secret = answer.json().get("page_secret", self.secret)
        return answer.json()

    async def get(self, path: str, **headers: str) -> httpx.Response:
        return await self.client.get(HERE + path, headers={PAGE: self.secret, **headers})


def keyed(home: Path) -> tuple[KeyFile, dict[str, Any]]:
    file = KeyFile(home)
    return file, {"keys": ActiveKeys(file), "operators": OperatorKeys(file)}


def seen(answer: httpx.Response) -> set[str]:
    assert answer.status_code == 200, answer.text
    return {run["training_run_id"] for run in answer.json()["training_runs"]}


async def test_a_tenant_sees_its_own_and_an_operator_sees_all(tmp_path: Path) -> None:
    file, settings = keyed(tmp_path)
    (_, alice), (_, bob) = file.create("alice"), file.create("bob")
    _, operator = file.create("ops", operator=True)
    async with served(tmp_path, **settings) as api:
        runs = {}
        for name, key in {"alice": alice, "bob": bob}.items():
            as_tenant = api.as_tenant(key)
            runs[name] = await as_tenant.model(await as_tenant.session())
        browser = Browser(api)
        assert (await browser.sign_in(key=alice))["tenant"] == "alice"
        assert seen(await browser.get(TRAINING_RUNS)) == {runs["alice"]}
        assert (await browser.get(f"{TRAINING_RUNS}/{runs['bob']}")).status_code == 404
        assert (await browser.sign_in(key=operator))["sees_all"] is True
        assert seen(await browser.get(TRAINING_RUNS)) == set(runs.values())
        assert (await browser.get(f"{TRAINING_RUNS}/{runs['bob']}")).status_code == 200
        by_header = await api.as_tenant(operator).send("GET", "training_runs")
        assert seen(by_header) == set(runs.values())


async def test_an_invitation_lets_one_browser_in_once_as_the_owner(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        run = await api.model(await api.session())
        token, browser = api.core.invitations.issue(), Browser(api)
        assert (await browser.sign_in(invitation=token))["sees_all"] is True
        assert seen(await browser.get(TRAINING_RUNS)) == {run}
        refused = await Browser(api).sign_in(401, invitation=token)
        assert "tinkex dashboard" in refused["detail"]
        assert (await api.send("POST", DASHBOARD_INVITATION.removeprefix("/api/v1/"))).status_code


async def test_neither_half_of_a_visit_opens_anything_alone(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        browser = Browser(api)
        await browser.sign_in(key="tml-alice")
        cookie = dict(browser.client.cookies)
        assert (await browser.get(TRAINING_RUNS)).status_code == 200
        assert (await browser.client.get(HERE + TRAINING_RUNS)).status_code == 401
        assert (await browser.get(TRAINING_RUNS, **{PAGE: "another"})).status_code == 401
        stranger = Browser(api)
        await stranger.sign_in(key="tml-mallory")
        stranger.client.cookies.clear()
        stranger.client.cookies.update(cookie)
        assert (await stranger.get(TRAINING_RUNS)).status_code == 401


async def test_a_visit_cannot_be_altered_and_ends_with_its_key(tmp_path: Path) -> None:
    file, settings = keyed(tmp_path)
    key, secret = file.create("alice")
    _, other = file.create("bob")
    async with served(tmp_path, **settings) as api:
        browser = Browser(api)
        await browser.sign_in(key=secret)
        name, value = next(iter(dict(browser.client.cookies).items()))
        digest, invited, expires, half, mac = value.split(".")
        for forged in (
            f"{digest}.1.{expires}.{half}.{mac}",
            f"{digest}.{invited}.{int(expires) + 1}.{half}.{mac}",
            f"{'0' * 64}.{invited}.{expires}.{half}.{mac}",
            value[:-1],
            "",
            "....",
            "é" * 40,
        ):
            header = {"cookie": f"{name}={forged}".encode()}
            answer = await browser.client.get(
                HERE + TRAINING_RUNS, headers={**header, PAGE: browser.secret.encode()}
            )
            assert answer.status_code == 401, forged
        browser.client.cookies.set(name, value)
        file.revoke(key.id)
        assert (await browser.get(TRAINING_RUNS)).status_code == 401
        assert (await Browser(api).sign_in(key=other))["tenant"] == "bob"


async def test_foreign_pages_can_neither_sign_in_nor_rebind_a_name(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        without_header = await api.client.post(HERE + DASHBOARD_VISIT, json={"key": "tml-mallory"})
        assert without_header.status_code == 422
        assert "set-cookie" not in without_header.headers
        # The last is Firefox after a page gave itself another name, by plain HTTP.
        languages = {"user-agent": "nobody", "accept-language": ""}
        for mark in (
            {"origin": "http://evil.example"},
            {"referer": "http://evil.example"},
            {"user-agent": "Mozilla/5.0"},
            languages,
        ):
            for path in ("/", "/metrics", TRAINING_RUNS):
                headers = {"x-api-key": "tml-mallory", **mark}
                answer = await api.client.get(f"http://evil.example:8000{path}", headers=headers)
                assert answer.status_code == 403, (mark, path)
        program = await api.client.get(
            f"http://behind.a.proxy{TRAINING_RUNS}", headers={"x-api-key": "tml-x"}
        )
        assert program.status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1", "127.0.0.1:80", "localhost:", "[::1]:8000")),
        *((host, 403) for host in ("127.0.0.1:1.evil", "localhost:80:90", "[::1].evil:80")),
        *((host, 403) for host in ("[::1", "127.0.0.1@evil.example", "127.0.0.1.evil:80", "")),
    ],
)
async def test_a_host_is_this_machine_only_as_a_whole(
    tmp_path: Path, host: str, status: int
) -> None:
    async with served(tmp_path) as api:
        headers = {"x-api-key": "tml-x", "user-agent": "Mozilla/5.0", "host": host}
        answer = await api.client.get(HERE + TRAINING_RUNS, headers=headers)
        assert answer.status_code == status


async def test_a_server_with_keys_is_opened_by_a_proxys_name(tmp_path: Path) -> None:
    file, settings = keyed(tmp_path)
    _, secret = file.create("alice")
    async with served(tmp_path, **settings) as api:
        headers = {"x-api-key": secret, "user-agent": "Mozilla/5.0"}
        for path in ("/", TRAINING_RUNS):
            answer = await api.client.get(f"http://tinkex.example.org{path}", headers=headers)
            assert answer.status_code == 200, path


@pytest.mark.parametrize("wrong", [{"key": "tml-guess"}, {"invitation": "guess"}])
async def test_who_guesses_is_told_to_wait_and_keeps_nobody_else_out(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    file, settings = keyed(tmp_path)
    _, secret = file.create("alice")
    async with served(tmp_path, **settings) as api:
        browser = Browser(api)
        for _ in range(GUESSES):
            await browser.sign_in(401, **wrong)
        answer = await browser.sign_in(429, **wrong)
        assert "wait" in answer["detail"]
        await browser.sign_in(200, key=secret)


def test_a_clock_set_back_makes_nobody_wait_longer() -> None:
    clock = JumpingClock()
    guesses = Guesses(clock)
    for _ in range(GUESSES):
        guesses.failed("127.0.0.1")
    clock.wall = -86_400.0
    with pytest.raises(Busy) as refused:
        guesses.check("127.0.0.1")
    assert refused.value.retry_after is not None
    assert refused.value.retry_after <= GUESSES_S


async def test_signing_out_takes_the_cookie_away(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        browser = Browser(api)
        await browser.sign_in(key="tml-alice")
        await browser.client.delete(HERE + DASHBOARD_VISIT, headers={PAGE: browser.secret})
        assert not dict(browser.client.cookies)
        assert (await browser.get(DASHBOARD_VISIT)).status_code == 401


async def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        answer = await api.client.post(
            HERE + DASHBOARD_VISIT, json={"key": "tml-a"}, headers={PAGE: "1"}
        )
        parts = answer.headers["set-cookie"].lower().split("; ")
        assert {"httponly", "samesite=strict", "path=/", f"max-age={VISIT_S}"} <= set(parts)
        assert answer.headers["cache-control"] == "no-store"


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time


def test_an_invitation_that_nobody_used_ends_after_a_day() -> None:
    clock = Clock()
    invitations = Invitations(clock)
    token = invitations.issue()
    clock.time += 25 * 3600
    assert not invitations.redeem(token)


def test_keys_made_before_there_were_operators_are_still_read(tmp_path: Path) -> None:
    key, _ = KeyFile(tmp_path).create("alice")
    stored = json.loads((tmp_path / FILE_NAME).read_text())
    del stored["keys"][0]["operator"]
    (tmp_path / FILE_NAME).write_text(json.dumps(stored))
    assert KeyFile(tmp_path).list() == (key,)
    assert list(OperatorKeys(KeyFile(tmp_path))) == []
