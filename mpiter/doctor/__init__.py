"""The doctor: is this machine fit for mpiter, and what to do if not.

`probes` ask the machine, `software_checks` and `system_checks` decide from the answers, `examine` runs them one by one,
`command` is `mpiter doctor`.  A wing: the core knows nothing of it.
"""
