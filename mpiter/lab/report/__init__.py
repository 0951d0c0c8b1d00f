"""The page that `mpiter lab report` writes: `page` puts it together, `curves`, `bars` and `timelines` draw, `plots` and
`scales` have what they share, `markup` escapes.

Pure: values (`mpiter.lab.views`) in, one self-contained HTML document out.
"""
