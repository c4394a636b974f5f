"""The built-in plugins. Nothing imports them but the registry, by name, as it does a third party's."""
