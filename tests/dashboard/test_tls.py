"""TLS before the live page: its own, and behind the proxies that the documentation describes."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from dedloc_kit.client import fetch_invitation
from dedloc_kit.dashboard.http.sockets import Certificate
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.distribution import running_wheel
from dedloc_kit.errors import UserError
from tests.certificates import self_signed
from tests.commands import assert_refused, coordinator_file, dedloc, launch, run_file, running
from tests.invitations import invited
from tests.swarm.harness import wait_until
from tests.tiny import tiny_run

DOCUMENTED = Path(__file__).parents[2] / "docs" / "operate"
DEADLINE = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def served(folder: Path, **more: object) -> Iterator[Dashboard]:
    dashboard = Dashboard(tiny_run(), folder / "ledger.sqlite", **more)  # type: ignore[arg-type]
    dashboard.start()
    dashboard.entrance.give_out(invited(tiny_run(), url=dashboard.url))
    try:
        yield dashboard
    finally:
        dashboard.stop()


@pytest.mark.soak
def test_a_page_with_a_certificate_is_read_by_who_trusts_it_and_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = self_signed(tmp_path)
    with served(tmp_path, certificate=Certificate(chain, key)) as dashboard:
        assert dashboard.url.startswith("https://127.0.0.1:")
        with pytest.raises(UserError, match=r"no certificate that this machine trusts.*; ask the organizer") as caught:
            fetch_invitation(dashboard.url)
        assert "\n" not in str(caught.value)
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(chain))
        assert fetch_invitation(dashboard.url).url == dashboard.url
        told = dedloc("join", dashboard.url, "--task-module", "tests.tiny", folder=tmp_path)
        assert_refused(told, "nobody answers at 127.0.0.1, port 9")
        plain = dashboard.url.replace("https:", "http:")
        with pytest.raises(UserError, match="no coordinator answers"):
            fetch_invitation(plain)


def test_files_that_serve_no_tls_are_named_with_the_fix(tmp_path: Path) -> None:
    chain, key = self_signed(tmp_path)
    _, other = self_signed(tmp_path, "other")
    _, locked = self_signed(tmp_path, "locked", b"secret")
    (tmp_path / "text").write_text("no certificate")
    for wrong, why in (
        ((chain, other), "belong together"),
        ((key, chain), "PEM files"),
        ((tmp_path / "text", key), "PEM files"),
        ((chain, tmp_path / "text"), "PEM files"),
        ((chain, locked), "without a passphrase"),
        ((tmp_path / "none", key), "cannot both be read"),
        ((tmp_path, key), "cannot both be read"),
    ):
        with pytest.raises(UserError, match=why) as caught:
            Certificate(*wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.soak
def test_launch_refuses_half_a_certificate_and_an_address_that_is_none(tmp_path: Path) -> None:
    chain, _ = self_signed(tmp_path)
    coordinator_file(tmp_path, tls_cert=chain)
    assert_refused(launch(run_file(tmp_path)), "give both tls_cert and tls_key")
    coordinator_file(tmp_path)
    assert "such as https://run.example.org" in launch(run_file(tmp_path), "--url", "run.example.org").stderr


@pytest.mark.soak
def test_a_run_is_launched_with_a_certificate(tmp_path: Path) -> None:
    chain, key = self_signed(tmp_path)
    folder, run = tmp_path / "run", tmp_path / "run.toml"
    run.write_text('name = "tiny"\nglobal_batch = 64\n[task]\nname = "tiny"\n[[data.train]]\ndataset = "none/none"\n')
    places = ("--swarm-host", "127.0.0.1", "--host", "127.0.0.1", "--port", "0", "--task-module", "tests.tiny")
    coordinator_file(tmp_path, tls_cert=chain, tls_key=key.name)
    with running("launch", run, "--folder", folder, *places, folder=tmp_path) as command:
        command.wait_for("to join:")
        url = json.loads((folder / "invitation.json").read_text())["url"]
        assert url.startswith("https://127.0.0.1:")
        assert requests.get(f"{url}/api/invitation", timeout=DEADLINE, verify=str(chain)).json()["url"] == url
        command.wait_for(f'pip install "{url}/wheel/{running_wheel().pinned}"')


def caddy(folder: Path, port: int, page: int, chain: Path, key: Path) -> list[str]:
    text = (DOCUMENTED / "Caddyfile").read_text(encoding="utf-8")
    text = text.replace("run.example.org {", f"https://localhost:{port} {{\n\ttls {chain} {key}")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{page}")
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{text}")
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def nginx_below_a_path(folder: Path, port: int, page: int, chain: Path, key: Path) -> list[str]:
    """As the comment in the documented file says."""
    command = nginx(folder, port, page, chain, key)
    text = (folder / "nginx.conf").read_text()
    for line, below in (
        ("location / {", "location /user/x/proxy/8000/ {"),
        (f"proxy_pass http://127.0.0.1:{page};", f"proxy_pass http://127.0.0.1:{page}/;"),
        ('X-Forwarded-Prefix "";', "X-Forwarded-Prefix /user/x/proxy/8000;"),
    ):
        assert line in text
        text = text.replace(line, below)
    (folder / "nginx.conf").write_text(text)
    return command


def nginx(folder: Path, port: int, page: int, chain: Path, key: Path) -> list[str]:
    text = (DOCUMENTED / "nginx.conf").read_text(encoding="utf-8")
    text, _, redirection = text.rpartition("\nserver {")
    assert "listen 80;" in redirection, "the rest is for another port of this machine"
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;").replace(
        "127.0.0.1:8000", f"127.0.0.1:{page}"
    )
    text = text.replace("/etc/letsencrypt/live/run.example.org/fullchain.pem", str(chain))
    text = text.replace("/etc/letsencrypt/live/run.example.org/privkey.pem", str(key))
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"pid {folder}/pid;\ndaemon off;\nevents {{}}\nhttp {{\naccess_log off;\n{places}\n{text}\n}}\n"
    )
    return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


@pytest.mark.parametrize(
    ("proxies", "told"), [("127.0.0.1", "https://host.example:8/a/b/"), ("192.0.2.1", "http://127.0.0.1:{port}/")]
)
def test_where_the_page_is_reached_is_believed_of_a_configured_proxy_only(
    proxies: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxies)
    with served(tmp_path) as dashboard:
        said = {"Proto": "https", "Host": "host.example:8", "Prefix": "/a/b"}
        headers = {f"X-Forwarded-{name}": value for name, value in said.items()}

        def feed(**more: str) -> str:
            return requests.get(f"{dashboard.url}/feed.atom", headers={**headers, **more}, timeout=DEADLINE).text

        address = told.format(port=dashboard.url.rpartition(":")[2])
        assert f'href="{address}feed.atom"' in feed()
        for hostile in ("//evil.example", "/a b", '/"onload=', "a", "/" + "a" * 200):
            port = dashboard.url.rpartition(":")[2]
            host = "https://host.example:8/" if proxies == "127.0.0.1" else f"http://127.0.0.1:{port}/"
            assert f'href="{host}feed.atom"' in feed(**{"X-Forwarded-Prefix": hostile}), "as if it said nothing"
        assert "evil" not in feed(**{"X-Forwarded-Host": "evil.example/x"})


def test_a_path_that_a_proxy_takes_off_without_a_word_is_that_of_the_pages_own_address(tmp_path: Path) -> None:
    port = free_port()
    with served(tmp_path, port=port, public="https://run.example.org/run"):
        said = {"Host": "run.example.org", "X-Forwarded-Proto": "https"}
        told = requests.get(f"http://127.0.0.1:{port}/requirements.txt", headers=said, timeout=DEADLINE).text
        assert told.startswith("dedloc_kit @ https://run.example.org/run/wheel/")
        past_the_proxy = requests.get(f"http://127.0.0.1:{port}/requirements.txt", timeout=DEADLINE).text
        assert past_the_proxy.startswith(f"dedloc_kit @ http://127.0.0.1:{port}/wheel/")


@pytest.mark.real
@pytest.mark.parametrize("proxy", [caddy, nginx, nginx_below_a_path])
def test_a_proxy_as_documented_serves_the_page_over_tls(
    proxy: Callable[[Path, int, int, Path, Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = self_signed(tmp_path)
    port, page = free_port(), free_port()
    url = f"https://localhost:{port}" + ("/user/x/proxy/8000" if proxy is nginx_below_a_path else "")
    (command, *arguments) = proxy(tmp_path, port, page, chain, key)
    program = shutil.which(command, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None and not os.environ.get("REQUIRE_PROXIES"):
        pytest.skip(f"{command} is not installed")
    assert program is not None
    with served(tmp_path, port=page, public=url) as dashboard:
        assert dashboard.url == url
        process = subprocess.Popen([program, *arguments], env={**os.environ, "HOME": str(tmp_path)})
        try:
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(chain))

            def answers() -> bool:
                try:
                    return requests.get(f"{url}/api/state", timeout=DEADLINE).ok
                except requests.ConnectionError:
                    return False

            wait_until(lambda: answers() or process.poll() is not None, "the proxy does not start", DEADLINE)
            assert process.poll() is None
            assert fetch_invitation(url).url == url
            told = requests.get(f"{url}/requirements.txt", timeout=DEADLINE).text
            assert told == f"dedloc_kit @ {url}/wheel/{running_wheel().pinned}\n"
            shown = requests.get(f"{url}/people", timeout=DEADLINE).text
            assert f'<meta property="og:image" content="{url}/card.png">' in shown
            assert f'href="{url}/feed.atom"' in shown
            assert f'href="{url}/"' in requests.get(f"{url}/feed.atom", timeout=DEADLINE).text
            pip: list[str | Path] = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--no-index",
                "--cert",
                chain,
            ]
            pip += ["--target", tmp_path / "installed", "-r", f"{url}/requirements.txt"]
            installed = subprocess.run(pip, capture_output=True, text=True)
            assert installed.returncode == 0, installed.stderr
            assert (tmp_path / "installed" / "dedloc_kit" / "worker.py").is_file()
            told = dedloc("join", url, "--task-module", "tests.tiny", folder=tmp_path).stderr
            assert "nobody answers at 127.0.0.1, port 9" in told, "it has read the invitation, whose peer is nobody"
            made_up = {"X-Forwarded-Prefix": "/made/up"}
            told = requests.get(f"{url}/requirements.txt", timeout=DEADLINE, headers=made_up).text
            assert told.startswith(f"dedloc_kit @ {url}/wheel/"), "a visitor is not believed"
            with requests.get(f"{url}/api/events", timeout=DEADLINE, stream=True) as events:
                assert next(events.iter_lines()) == b"event: state", "news come at once"
        finally:
            process.terminate()
            process.wait(DEADLINE)
