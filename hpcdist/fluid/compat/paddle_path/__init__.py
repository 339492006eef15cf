"""On PYTHONPATH under --as-paddle: so processes that a script starts find `paddle` as well."""
