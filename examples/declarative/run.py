"""`spark-pipelines run`, on this machine: `python run.py`, or `python run.py --dry` to see whether it could be run."""

import os
import sys
from pathlib import Path

from sulina.spark.pipeline.declarative import run

here = Path(__file__).parent
os.environ.setdefault("SPARK_CONF_DIR", str(here / "conf"))
run(here / "spark-pipeline.yml", is_dry="--dry" in sys.argv)
