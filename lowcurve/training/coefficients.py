"""Which numbers does a method have in a recipe? The section `[method]`, made of the coefficients of every term."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field, create_model, model_validator

from lowcurve.errors import UserError
from lowcurve.methods import FirstValues, Method, find_method
from lowcurve.objectives import TERMS, Term


class MethodConfig(FirstValues):
    """Which method, and its coefficients where they differ from the method's own.

    The section of a recipe, `method_section()`, has the coefficients of every term too.
    """

    name: str = Field(default="lcnn", description="a key of METHODS, or several joined by +")

    @model_validator(mode="before")
    @classmethod
    def _own_coefficients(cls, given: Any) -> Any:
        """Put the method's own coefficients where the recipe names none."""
        if not isinstance(given, Mapping) or not isinstance(name := given.get("name", "lcnn"), str):
            return given
        return {**find_method(name).coefficients, **given}

    @property
    def method(self) -> Method:
        """The method by that name."""
        return find_method(self.name)

    @property
    def coefficients(self) -> dict[str, Any]:
        """The numbers alone."""
        return {key: getattr(self, key) for key in type(self).model_fields if key != "name"}

    def foreign(self) -> list[str]:
        """Return what a reader may not know: coefficients of others' terms that the method has not and nobody set."""
        others = [term for name, term in TERMS.items() if name not in self.method.terms]
        return [
            key
            for term in others
            if not term.__module__.startswith("lowcurve.")
            for key, info in term.model_fields.items()
            if getattr(self, key) == info.default
        ]

    def __reduce__(self) -> Any:
        return _restored, (self.model_dump(),)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """The coefficients of terms."""


def method_section() -> type[MethodConfig]:
    """Return the schema of `[method]`: the coefficients of every term of `TERMS` as it is now."""
    return _assembled(tuple(TERMS.items()))


@cache
def _assembled(terms: tuple[tuple[str, type[Term]], ...]) -> type[MethodConfig]:
    fields: dict[str, Any] = {}
    for name, term in terms:
        for key, info in term.model_fields.items():
            if key in fields or key in MethodConfig.model_fields:
                raise UserError(f"term {name!r} declares the coefficient {key!r}, which exists already; rename it")
            fields[key] = (info.annotation, info)
    return create_model("MethodConfig", __base__=MethodConfig, **fields)


def _restored(values: dict[str, Any]) -> MethodConfig:
    return method_section().model_validate(values)
