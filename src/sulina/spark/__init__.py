"""Topics as Spark tables and streams; and tables, pipelines and audits made of them, through PySpark alone."""
