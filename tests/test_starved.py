"""Too few descriptors, too little shared memory, too little address space: it works, or says clearly what is short.

Being written.
"""
