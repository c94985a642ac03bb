"""A small table of texts and numbers, shown whole in a notebook, a terminal or a log."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """Rows under a header. pandas would cut long texts and, in a log, columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple, ...]

    def frame(self):
        import pandas as pd

        return pd.DataFrame(list(self.rows), columns=list(self.columns))

    def _repr_html_(self):
        import pandas as pd

        with pd.option_context("display.max_colwidth", None):
            return self.frame().to_html(index=False, justify="left")

    def __repr__(self):
        lines = [self.columns, *self.rows]
        widths = [max(len(str(line[i])) for line in lines) for i in range(len(self.columns))]
        return "\n".join(
            "  ".join(str(c).ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )
