"""The page that `mpiter lab report` writes: `page` puts it together, `plots` draws on a `sheet`, `told` says the same
in words and figures, `markup` escapes.

Values (`mpiter.lab.views`) in, one self-contained HTML document out.  Plots take matplotlib, of the extra `lab`; the
page has their tables without it.
"""
