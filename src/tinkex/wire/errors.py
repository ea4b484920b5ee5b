"""The one error of this floor: bytes or values that are not what the protocol says."""


class WireError(ValueError):
    """`field` names the place (`data[3].loss_fn_inputs['weights']`), the text says what is wrong.

    The text never quotes a value that could be a secret.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type["WireError"], tuple[str, str]]:
        return WireError, (self.field, self.problem)

    def inside(self, outer: str) -> "WireError":
        """The same error seen from one level further out."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        return WireError(f"{outer}{joint}{self.field}", self.problem)
