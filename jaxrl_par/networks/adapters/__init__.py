"""Networks of other libraries as `networks.base` factories, imported when used."""
