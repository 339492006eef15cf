"""The operators, each whole in one place: importing this package fills the registry."""
