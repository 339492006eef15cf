"""The ground: settings, errors, checks, arrays on devices; it knows no graph and no network."""
