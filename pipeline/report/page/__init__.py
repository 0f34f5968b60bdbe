"""The report of a model as one page of HTML that opens anywhere, offline and without a script."""
