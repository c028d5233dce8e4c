#!/bin/sh
# The Python that Spark starts in tests. What spark_python.py has ready is forked; everything else is Python itself.
case "$2" in
sulina.spark.daemon)
  [ -z "$SULINA_DAEMON_IS_FORKED" ] || exec "$SULINA_PYTHON" -IS "${0%/*}/spark_python_client.py" "$@"
  ;;
pyspark.daemon | pyspark.sql.streaming.python_streaming_source_runner)
  exec "$SULINA_PYTHON" -IS "${0%/*}/spark_python_client.py" "$@"
  ;;
esac
exec "$SULINA_PYTHON" "$@"
