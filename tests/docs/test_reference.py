"""The guide of Spark and the reference of metadata name everything that the code has."""

import re
from pathlib import Path

from sulina.spark import delta_data_source, delta_sink, options, sink
from sulina.spark.schema import DATA, ERROR, RAW_COLUMNS

ROOT = Path(__file__).parents[2]


def test_the_guide_of_spark_names_every_option_and_column() -> None:
    guide = (ROOT / "docs" / "guides" / "spark.md").read_text()
    names = {
        *options.READ_OPTIONS,
        *sink.WRITE_OPTIONS,
        *sink.COLUMNS,
        *delta_data_source.READ_OPTIONS,
        *delta_sink.WRITE_OPTIONS,
        *(*RAW_COLUMNS, DATA, ERROR),
    }
    theirs = {name for name in names if name.lower() in options.SPARK_OPTIONS}
    assert not {name for name in names - theirs if f"`{name}`" not in guide}


def test_the_reference_of_metadata_lists_every_key() -> None:
    page = (ROOT / "docs" / "reference" / "metadata.md").read_text()
    listed = page.partition("## Keys\n")[2].partition("```\n")[2].partition("```\n")[0]
    source = (ROOT / "src" / "sulina" / "core" / "cluster" / "keys.py").read_text()
    literals = re.findall(r'"([^"\n]*)"', re.sub(r'""".*?"""', "", source, flags=re.DOTALL))
    words = {word for text in literals for word in re.findall(r"[a-z_]+", re.sub(r"{[^}]*}", "", text))}
    assert {"holder", "cur", "register"} <= words
    assert not {word for word in words if not re.search(rf"\b{word}\b", listed)}
