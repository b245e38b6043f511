"""Shapes in signatures are checked while the tests run; and the small models and orders that the
laws are tried on."""

from jaxtyping import install_import_hook

with install_import_hook("armd", "beartype.beartype"):
    import armd.likelihood
    import armd.modeling_armd
    import armd.order
    import armd.reference  # noqa: F401
