"""Fake secrets to plant, one of each kind, in their typical context.

Each contains ``MARK``, so that any remaining part can be found.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MARK: Final = "pLaNtEd"


class Planted(NamedTuple):
    """``text`` contains ``secret``, which is of this kind."""

    kind: str
    secret: str
    text: str


_PEM: Final = f"MIIEpAIBAAKCAQEA{MARK}x7+Qk/\nq9{MARK}ZZ==\n"
_PEM_KEY: Final = f"-----BEGIN OPENSSH PRIVATE KEY-----\n{_PEM}-----END OPENSSH PRIVATE KEY-----"
_JWT: Final = f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIi{MARK}.sig-{MARK}_1"

PLANTED: Final = (
    Planted("anthropic_key", f"sk-ant-api03-{MARK}-1", f"my key is sk-ant-api03-{MARK}-1."),
    Planted("api_key", f"sk-proj-{MARK}123456", f"(sk-proj-{MARK}123456)"),
    Planted("api_key", f"sk-{MARK}7890123", f"use sk-{MARK}7890123 here"),
    Planted("google_key", f"AIza{MARK}ABCDEFGHIJKLMNOPQRSTUVWXYZ01", "")._replace(
        text=f"?x=AIza{MARK}ABCDEFGHIJKLMNOPQRSTUVWXYZ01&y"
    ),
    Planted("github_token", f"ghp_{MARK}0123456789abcdef", f"ghp_{MARK}0123456789abcdef"),
    Planted("github_token", f"github_pat_{MARK}_0123456789", f"a github_pat_{MARK}_0123456789"),
    Planted("gitlab_token", f"glpat-{MARK}0123456789", f"glpat-{MARK}0123456789"),
    Planted("slack_token", f"xoxb-1234-{MARK}-5", f"slack: xoxb-1234-{MARK}-5"),
    Planted(
        "gitlab_token",
        f"glcbt-64_{MARK}0123456789abc",
        f"CI_JOB_TOKEN is glcbt-64_{MARK}0123456789abc",
    ),
    Planted(
        "slack_token",
        f"T0{MARK}/B0{MARK}/{MARK}",
        f"https://hooks.slack.com/services/T0{MARK}/B0{MARK}/{MARK}",
    ),
    Planted(
        "age_key",
        "AGE-SECRET-KEY-1QQPLANTED0123456789QQ",
        "age: AGE-SECRET-KEY-1QQPLANTED0123456789QQ",
    ),
    Planted(
        "sendgrid_key", f"SG.{MARK}abcdefghijklmno.{MARK}abcdefghijklmnopqrstuvwxyz0123456789", ""
    )._replace(text=f"'SG.{MARK}abcdefghijklmno.{MARK}abcdefghijklmnopqrstuvwxyz0123456789'"),
    Planted("telegram_token", f"123456789:{MARK}abcdefghijklmnopqrstuvwxyz01", "")._replace(
        text=f"https://api.telegram.org/bot123456789:{MARK}abcdefghijklmnopqrstuvwxyz01/getMe"
    ),
    Planted("cookie", f"session={MARK}; theme=dark", f"Cookie: session={MARK}; theme=dark"),
    Planted("cookie", f"id={MARK}; HttpOnly", f'"Set-Cookie": "id={MARK}; HttpOnly"'),
    Planted("hub_token", f"hf_{MARK}012345678901234567", f"hf_{MARK}012345678901234567"),
    Planted(
        "aws_key",
        f"{MARK}/abcdefghijklmnopqrstuvwxyz012345",
        f"AKIAIOSFODNN7EXAMPLE, {MARK}/abcdefghijklmnopqrstuvwxyz012345",
    ),
    Planted("jwt", _JWT, f"jwt {_JWT} end"),
    Planted("authorization", f"{MARK}.b3~r", f"Authorization: Bearer {MARK}.b3~r"),
    Planted("authorization", f"{MARK}dXNlcg==", f'"authorization": "Basic {MARK}dXNlcg=="'),
    Planted("authorization", f"{MARK}tok1", f"-H 'Authorization: token {MARK}tok1'"),
    Planted("authorization", f"{MARK}bearer9", f"sent bearer {MARK}bearer9 to it"),
    Planted("url_password", f"p@{MARK}", f"postgres://bob:p@{MARK}@db.local/x"),
    Planted("url_password", f"{MARK}%40", f"see https://bob:{MARK}%40@host/path?q=1"),
    Planted("private_key", _PEM, f"here:\n{_PEM_KEY}\nthat was it"),
    Planted("private_key", _PEM, f"{{'k': '{_PEM_KEY!r}'}}"),
    Planted("private_key", _PEM, f"cut off: -----BEGIN RSA PRIVATE KEY-----\n{_PEM}"),
    Planted("variable", f"{MARK}1", f"export MY_API_KEY={MARK}1"),
    Planted("variable", f"{MARK}2 {MARK}", f'GITHUB_TOKEN="{MARK}2 {MARK}" make'),
    Planted("variable", f"{MARK}3", f'{{"client_secret": "{MARK}3"}}'),
    Planted("variable", f"{MARK}4", f'{{\\"dbPassword\\": \\"{MARK}4\\"}}'),
    Planted("variable", f"{MARK}5", f'[server]\npassword = "{MARK}5"\nport = 1'),
    Planted("variable", f"{MARK}6", f"AWS_SECRET_ACCESS_KEY: '{MARK}6'"),
    Planted("variable", f"{MARK}7", f"TOKEN='{MARK}7 never closed"),
    Planted("variable", f"{MARK}8", f"secret_word = '''{MARK}8'''"),
    Planted("variable", f"{MARK}9", f'passphrase = """\n{MARK}9 "quoted" {MARK}\n"""'),
    Planted("variable", f"{MARK}10", f"run --api-key {MARK}10 --verbose"),
    Planted("variable", f"{MARK}11", f"apiKey: {MARK}11,"),
    Planted("cut", f"postgres://me:{MARK}", f"first line postgres://me:{MARK}…\nsecond line"),
    Planted("variable", f"{MARK}12", f"[(b'x-api-key', b'{MARK}12'), (b'host', b'h')]"),
    Planted("variable", f"{MARK}13", f'[[\\"X-Auth-Token\\", \\"{MARK}13\\"]]'),
)

HARMLESS: Final = (
    "max_tokens: 100, total_tokens=5, tokens_estimated: 12",
    "provider_usage: input=3 output=2 total=5",
    'the key: value, "key": "value", monkey: banana, keyboard=1',
    "the secret of success is work; nobody knows the password",
    "see https://example.com:8080/a/b?c=d#e and git@github.com:a/b.git",
    "OPENAI_API_KEY: $OTHER, api_key = set  (environment X), password: null, token: None",
    '{"tool_call_id": "msg-1.0", "args": {"path": "a.txt"}, "text_ref": "sha256:00ff"}',
    "class Keyboard:\n    def token_count(self) -> int:\n        return len(self.tokens)\n",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "task-force, disk-0123456789abcdef, risk-averse-people-everywhere",
)
"""Texts without secrets."""
