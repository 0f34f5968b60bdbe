"""The report of a model as one page of HTML that opens anywhere, offline and without a script."""

PAGE = "report.html"
"""The name of a page, in the folder of a model's artifacts and in `artifacts/`."""
