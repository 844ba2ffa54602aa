"""The process inside a measured environment: standard library, msgpack, torch and the workload.

It is copied beside the workloads and started as ``python -m runner``; it knows neither the server nor the farm.
"""
