"""What stages are given and answer with: for each, frozen `Params` and `Facts` in a module of its name.

The plan makes Params and a stage reads them; a stage makes Facts, and later stages, gates, reports and manifests read
them. On disk and between processes both are JSON (:mod:`pipeline.contracts.codec`).
"""
