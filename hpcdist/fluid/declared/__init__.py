"""What scripts without a Program keep on servers: declared as facts, trained by an own step.

`facts` says what there is, `servers` keeps it; `hpcdist.torch` and `hpcdist.ps.connect` declare.
"""
