"""Renders a chart, as `helm template` does: render.py CHART VALUES.json, and prints what comes of it as JSON."""

import json
import sys

import helm_python as helm

chart, values = sys.argv[1], json.load(open(sys.argv[2]))
answer = {"lint": helm.lint(chart, values, namespace="tollgate")}
try:
    with helm.Chart.load(chart) as loaded:
        answer["templates"] = loaded.render(values, name="tollgate", namespace="tollgate")
except helm.HelmError as error:
    answer["error"] = str(error)
print(json.dumps(answer))
