"""What /openapi.json says in words alone, as its schemas cannot.

Cases that are to be right are made so, and stay cases; those that are to be wrong are left as they are.
"""

import schemathesis

# Of a token bucket or a GCRA, in the description of `per_us`.
UNITS_PER_MICROSECOND = 10


@schemathesis.hook
def map_case(context, case):
    if case.operation.path == "/v1/admit" and case.meta.generation.mode.is_positive:
        for decision in case.body["decisions"]:
            # No two charges of a decision have the same policy, key and group.
            charges = {(charge["policy"], charge["key"], charge["group"]): charge for charge in decision["charges"]}
            decision["charges"] = list(charges.values())
            for charge in decision["charges"]:
                slow_down(charge.get("token_bucket") or charge.get("gcra"))
    return case


def slow_down(limit):
    if limit:
        limit["refill"] = min(limit["refill"], UNITS_PER_MICROSECOND * limit["per_us"])
