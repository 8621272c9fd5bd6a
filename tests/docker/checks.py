#!/usr/bin/env python3
"""Checks what tools/test-docker has started, from outside: by requests, by Prometheus, and by stopping and cutting off
containers. The last line is "N passed, N failed, N skipped".

    checks.py PROJECT     the name of the compose project
"""

import http.client
import json
import math
import pathlib
import re
import subprocess
import sys
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
# As in envoy/docker/demo.env and envoy/docker/envoy.yaml.
TOKEN = "demo-token-known-to-everybody"
CAPACITY, EMERGENCY = 10, 5
PROXIES = ("proxy-1", "proxy-2")
# The filter waits for an answer for 50 ms at the most; the rest is for a machine that is busy.
IN_TIME = 0.5
# Until the proxies know that what was away is back: a look-up of the name, a health check, the breaker.
BACK_SECONDS = 60

project = sys.argv[1]
begin = time.time()


# ---- Containers


def docker(*args):
    done = subprocess.run(("docker", *args), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"docker {' '.join(args)}: {done.stderr.strip()}"
    return done.stdout.strip()


def container(service):
    label = "label=com.docker.compose."
    return docker("ps", "-aq", "--filter", f"{label}project={project}", "--filter", f"{label}service={service}")


def inspect(service):
    return json.loads(docker("inspect", container(service)))[0]


def network():
    return docker("network", "ls", "-q", "--filter", f"label=com.docker.compose.project={project}")


# ---- Requests


class Reply:
    def __init__(self, response, body, seconds):
        self.status, self.headers, self.body, self.seconds = response.status, response.headers, body, seconds


def ask(service, port, path, method="GET", headers=None, body=None):
    """Asks a port of a container, by what it is on this machine: after a start it may be another one."""
    host, number = docker("port", container(service), str(port)).splitlines()[0].rsplit(":", 1)
    return send(host, int(number), path, method, headers, body)


def send(host, number, path, method="GET", headers=None, body=None):
    start = time.monotonic()
    connection = http.client.HTTPConnection(host, number, timeout=5)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        text = response.read().decode()
    finally:
        connection.close()
    return Reply(response, text, time.monotonic() - start)


class Round:
    """Requests with one API key, one after another, and how long all of it took."""

    keys = 0

    def __init__(self, key=None):
        Round.keys += 1
        self.key = key or f"key-{Round.keys}"
        self.replies, self.start = [], time.monotonic()
        self.ports = {name: docker("port", container(name), "10000").splitlines()[0] for name in PROXIES}

    def send(self, proxy, count, path="/v1/items"):
        host, number = self.ports[proxy].rsplit(":", 1)
        sent = [send(host, int(number), path, headers={"x-api-key": self.key}) for _ in range(count)]
        self.replies += sent
        return sent

    def admitted(self):
        return sum(reply.status == 200 for reply in self.replies)

    def refilled(self):
        """What has come back since the first request, at one unit a second."""
        return math.ceil(time.monotonic() - self.start)

    def statuses(self):
        return [reply.status for reply in self.replies]


def page(proxy):
    reply = ask(proxy, 9902, "/metrics")
    assert reply.status == 200, reply.status
    return reply.body


def count(text, name, **labels):
    """The sum of the series of a metric that have these labels."""
    total, found = 0.0, False
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)(?: \S+)?", line)
        if match and all(f'{label}="{value}"' in (match[1] or "") for label, value in labels.items()):
            total, found = total + float(match[2]), True
    assert found, f"there is no {name} with {labels}"
    return total


def failures():
    return sum(count(page(proxy), "tollgate_failure") for proxy in PROXIES)


def eventually(what, seconds, attempt):
    deadline = time.monotonic() + seconds
    while True:
        try:
            return attempt()
        except (AssertionError, OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}, after {seconds} s: {error}") from error
        time.sleep(0.5)


def require(found):
    assert found, "nothing yet"


# ---- What is checked again and again


def budgets_are_shared():
    """One budget over both proxies, decided by the endpoint."""
    before = failures()
    spent = Round()
    spent.send("proxy-1", 7)
    spent.send("proxy-2", 7)
    # What is lent to one proxy comes back in time; never is there more than the budget.
    limit = CAPACITY + spent.refilled()
    assert failures() == before, "a fail mode has decided"
    assert CAPACITY <= spent.admitted() <= limit, f"{spent.statuses()}, at most {limit}"
    assert set(spent.statuses()) == {200, 429}, spent.statuses()


def fail_modes_answer_in_time():
    """Each proxy has its emergency budget, and nobody waits."""
    before = failures()
    slowest = 0
    for proxy in PROXIES:
        emergency = Round()
        emergency.send(proxy, 12)
        limit = EMERGENCY + emergency.refilled()
        assert EMERGENCY <= emergency.admitted() <= limit, f"{proxy}: {emergency.statuses()}, at most {limit}"
        assert set(emergency.statuses()) == {200, 429}, emergency.statuses()
        slowest = max(slowest, *(reply.seconds for reply in emergency.replies))
    assert slowest < IN_TIME, f"the slowest answer took {slowest:.3f} s"
    assert failures() > before, "no proxy has counted a failure"
    return f"the slowest of 24 answers took {slowest * 1000:.0f} ms"


def limits_are_back():
    eventually("one budget over both proxies again", BACK_SECONDS, budgets_are_shared)


# ---- The checks, in their order


def everything_is_up():
    for proxy in PROXIES:
        eventually(proxy, 60, lambda proxy=proxy: page(proxy))
    limits_are_back()


def the_endpoint_is_healthy_and_may_do_little():
    def healthy():
        state = inspect("endpoint")["State"]["Health"]
        assert state["Status"] == "healthy", state

    eventually("the health check of the image", 30, healthy)
    known = inspect("endpoint")
    assert known["Config"]["User"] == "65532:65532", known["Config"]["User"]
    assert known["HostConfig"]["ReadonlyRootfs"] and known["HostConfig"]["CapDrop"] == ["ALL"]


def a_request_is_admitted_and_told_what_is_left():
    reply = Round().send("proxy-1", 1)[0]
    assert reply.status == 200 and reply.body == "hello from the upstream\n", (reply.status, reply.body)
    assert '"per-key";r=9' in reply.headers["ratelimit"], reply.headers["ratelimit"]
    assert '"per-key";q=10' in reply.headers["ratelimit-policy"], reply.headers["ratelimit-policy"]


def beyond_the_budget_it_is_rejected_with_429_and_the_fields():
    refused = Round().send("proxy-1", 14)[-1]
    assert refused.status == 429, refused.status
    assert refused.headers["retry-after"] == "1" and refused.headers["cache-control"] == "no-store", refused.headers
    assert '"per-key";r=0' in refused.headers["ratelimit"], refused.headers["ratelimit"]
    assert refused.headers["content-type"] == "application/problem+json"
    assert json.loads(refused.body)["violated-policies"] == ["per-key"], refused.body


def a_key_that_proxy_1_has_spent_is_spent_in_proxy_2():
    spent = Round()
    spent.send("proxy-1", 14)
    elsewhere = spent.send("proxy-2", 4)
    admitted = sum(reply.status == 200 for reply in elsewhere)
    assert admitted <= spent.refilled() and elsewhere[-1].status == 429, spent.statuses()


def a_dear_route_costs_more_and_health_checks_nothing():
    dear = Round()
    dear.send("proxy-1", 3, "/v1/reports/7")
    assert dear.statuses() == [200, 200, 429], dear.statuses()
    assert {reply.status for reply in Round(dear.key).send("proxy-1", 12, "/healthz")} == {200}


def the_metrics_say_what_happened():
    text = page("proxy-1")
    assert count(text, "tollgate_requests", outcome="denied") > 0
    assert count(text, "tollgate_policy", policy="per-key", outcome="allowed") > 0
    assert count(text, "tollgate_policy", policy="per-key-stricter", outcome="shadow_denied") > 0
    assert ask("proxy-1", 9902, "/stats").status == 404, "the rest of the admin page"
    shown = ask("endpoint", 10002, "/metrics", headers={"authorization": f"Bearer {TOKEN}"})
    assert shown.status == 200 and count(shown.body, "tollgate_decisions_total", outcome="admitted") > 0


def redis_evicts_nothing():
    said = docker("exec", container("redis"), "redis-cli", "config", "get", "maxmemory-policy")
    assert said.split() == ["maxmemory-policy", "noeviction"], said
    keys = docker("exec", container("redis"), "redis-cli", "keys", "*").split()
    assert any(key.startswith("tollgate:") for key in keys), keys
    assert not [key for key in keys if "key-" in key.replace("per-key", "")], "an API key is in Redis"


def an_endpoint_that_is_stopped_is_replaced_by_the_fail_modes():
    docker("stop", "--time", "5", container("endpoint"))
    return fail_modes_answer_in_time()


def and_when_it_is_started_limits_apply_again():
    docker("start", container("endpoint"))
    limits_are_back()


def an_endpoint_that_is_cut_off_is_replaced_by_the_fail_modes():
    # Nothing refuses a connection here: packets vanish.
    docker("network", "disconnect", network(), container("endpoint"))
    return fail_modes_answer_in_time()


def and_when_it_is_connected_limits_apply_again():
    docker("network", "connect", "--alias", "endpoint", network(), container("endpoint"))
    limits_are_back()


def without_redis_the_fail_modes_apply():
    docker("stop", "--time", "5", container("redis"))
    # Beside the proxies, which stop asking when they know.
    charge = {"policy": "p", "key": "0" * 32, "group": "0" * 32, "cost": 1,
              "token_bucket": {"capacity": 1, "refill": 1, "per_us": 1000000}}
    answer = ask("endpoint", 10002, "/v1/admit", "POST", {"authorization": f"Bearer {TOKEN}"},
                 json.dumps({"decisions": [{"charges": [charge]}]}))
    assert answer.status == 200 and "failed" in answer.body, (answer.status, answer.body)
    assert ask("endpoint", 10002, "/readyz").status == 503
    assert ask("endpoint", 10002, "/healthz").status == 200
    return fail_modes_answer_in_time()


def and_with_redis_again_limits_apply_again():
    docker("start", container("redis"))
    limits_are_back()


def strangers_get_no_decision_and_no_metrics():
    # Prometheus has asked this endpoint before, so it sees that the number grows.
    known = 'tollgate_refused_total{reason="unauthorized"} == 0'
    eventually("Prometheus knows the endpoint", 30, lambda: require(prometheus("query", query=known)["result"]))
    for headers in ({}, {"authorization": "Bearer not-the-token-of-the-demo"}):
        assert ask("endpoint", 10002, "/metrics", headers=headers).status == 401
        assert ask("endpoint", 10002, "/v1/admit", "POST", headers, "{}").status == 401


def nothing_has_trapped():
    for service in (*PROXIES, "endpoint"):
        known = inspect(service)
        assert known["State"]["Running"] and known["RestartCount"] == 0, service
        said = subprocess.run(("docker", "logs", container(service)), capture_output=True, text=True, timeout=60)
        found = re.findall(r".*(?:panicked|\[critical\]).*", said.stdout + said.stderr)
        assert not found, f"{service}: {found[0]}"


# ---- Prometheus, and the dashboard's queries


def prometheus(path, **query):
    reply = ask("prometheus", 9090, f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
    answer = json.loads(reply.body)
    assert answer["status"] == "success", f"{query}: {answer.get('error')}"
    return answer["data"]


def prometheus_reaches_all_and_has_the_alerts():
    def up():
        targets = prometheus("targets", state="active")["activeTargets"]
        down = [(target["scrapeUrl"], target["lastError"]) for target in targets if target["health"] != "up"]
        assert len(targets) == 3 and not down, down

    def rules():
        known = [rule for group in prometheus("rules")["groups"] for rule in group["rules"]]
        written = (ROOT / "envoy/prometheus/alerts.yaml").read_text().count("- alert:")
        assert len(known) == written > 0, f"{len(known)} of {written} alerts"
        wrong = [(rule["name"], rule.get("lastError")) for rule in known if rule["health"] != "ok"]
        assert not wrong, wrong

    eventually("all targets are up", 30, up)
    eventually("all alerts are evaluated", 30, rules)


def samples(expression):
    """The numbers that a panel with this query shows of the time since the checks began."""
    # What Grafana makes of the variables: the interval is at least four times Prometheus' own.
    expression = expression.replace("$__rate_interval", "20s").replace("$policy", ".*")
    assert "$" not in expression, f"an unknown variable: {expression}"
    series = prometheus("query_range", query=expression, start=begin, end=time.time(), step=5)["result"]
    return [value for one in series for _, value in one["values"] if value != "NaN"]


def every_panel_of_the_dashboard_shows_something():
    dashboard = json.loads((ROOT / "envoy/grafana/tollgate.json").read_text())
    queries = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 30, len(queries)

    def filled():
        empty = [f"{title}: {expression}" for title, expression in queries if not samples(expression)]
        assert not empty, "\n".join(["these show nothing", *empty])

    eventually("the dashboard", 30, filled)
    policies = prometheus("label/policy/values", **{"match[]": "tollgate_policy"})
    assert policies == ["guard", "per-key", "per-key-stricter"], policies
    # It would be seen.
    assert not samples('sum(rate(tollgate_requests{outcome="alowed"}[$__rate_interval]))')
    assert not samples("sum(rate(tollgate_request[$__rate_interval]))")
    return f"{len(queries)} queries"


def grafana_shows_the_dashboard_to_whoever_looks():
    if not container("grafana"):
        return Skipped("there is no image of Grafana without a registry")

    def provisioned():
        shown = ask("grafana", 3000, "/api/dashboards/uid/tollgate")
        assert shown.status == 200, shown.status
        assert len(json.loads(shown.body)["dashboard"]["panels"]) >= 20
        data = ask("grafana", 3000, "/api/datasources/proxy/uid/prometheus/api/v1/query?query=tollgate_version")
        assert data.status == 200 and json.loads(data.body)["data"]["result"], data.body

    eventually("Grafana", 90, provisioned)


class Skipped(str):
    pass


CHECKS = [
    everything_is_up,
    the_endpoint_is_healthy_and_may_do_little,
    a_request_is_admitted_and_told_what_is_left,
    beyond_the_budget_it_is_rejected_with_429_and_the_fields,
    a_key_that_proxy_1_has_spent_is_spent_in_proxy_2,
    a_dear_route_costs_more_and_health_checks_nothing,
    the_metrics_say_what_happened,
    redis_evicts_nothing,
    an_endpoint_that_is_stopped_is_replaced_by_the_fail_modes,
    and_when_it_is_started_limits_apply_again,
    an_endpoint_that_is_cut_off_is_replaced_by_the_fail_modes,
    and_when_it_is_connected_limits_apply_again,
    without_redis_the_fail_modes_apply,
    and_with_redis_again_limits_apply_again,
    strangers_get_no_decision_and_no_metrics,
    nothing_has_trapped,
    prometheus_reaches_all_and_has_the_alerts,
    every_panel_of_the_dashboard_shows_something,
    grafana_shows_the_dashboard_to_whoever_looks,
]


def main():
    passed, failed, skipped = 0, 0, 0
    for check in CHECKS:
        start = time.monotonic()
        try:
            said = check()
        except Exception as error:  # a check that breaks has failed; the others go on
            failed += 1
            print(f"FAILED: {check.__name__}: {error or repr(error)}", flush=True)
            continue
        if isinstance(said, Skipped):
            skipped += 1
            print(f"SKIPPED: {check.__name__}: {said}", flush=True)
            continue
        passed += 1
        note = f": {said}" if said else ""
        print(f"ok {check.__name__} ({time.monotonic() - start:.1f} s){note}", flush=True)
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
