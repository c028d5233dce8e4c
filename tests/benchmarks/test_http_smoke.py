"""The benchmark of serving still runs: its load, its peer and its consumers, for a moment each. Nothing is timed."""

from pathlib import Path

from benchmarks.serving.processes import bare_server, client, load, put_topic, sulina_server


def test_the_load_finds_its_way_through_a_node_and_its_peer(tmp_path: Path) -> None:
    with sulina_server(str(tmp_path)) as ours, bare_server() as bare, load() as loading:
        topic = put_topic(ours, "smoke")
        for server in (ours, bare):
            path = f"/v1/topics{topic}/records"
            result = loading("http", port=server.port, path=path, batch=2, connections=2, seconds=0.05)
            assert result["p50_ms"] > 0
            assert server.memory_mib() > 0
        ways = {"topic": topic, "port": ours.port}
        assert loading("publish", **ways, batch=1, connections=1, window=2, seconds=0.05)["seconds"] > 0
        assert loading("fill", **ways, batch=100, records=1000) == {"records": 1000}
        assert loading("count", **ways, records=1000)["seconds"] > 0
        assert loading("live", **ways, batch=100, window=2, seconds=0.05)["seconds"] > 0
        assert loading("latency", **ways, rate=100, seconds=0.05)["p50_ms"] > 0
        assert loading("idle", port=ours.port, topics=[topic])["seconds"] > 0
        with client(ours.url, topic, "earliest", 0, "1000") as out:
            assert '"rate"' in out.readline()
