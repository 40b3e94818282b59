"""What operators do to a server's releases and settings, by the command line; each act is in the journal."""

from __future__ import annotations

from support.command import fcil
from support.consortium import Build

from fcil.deployment.server import audit_log


def test_releases_and_settings_are_changed_by_commands_that_the_journal_names(build: Build) -> None:
    made = build("icarl", "deployment.release_every=2", rounds=4)
    for place, site in enumerate(("aachen", "berlin", "cork")):
        made.add(site, "ant", *range(100 * place, 100 * place + 6))
    made.play()
    run = made.place / "run"
    where = ("--run", str(run), "--keys", str(made.place / "none"))

    def said(*words: str) -> list[str]:
        done = fcil("federation", *words, *where)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    def refused(*words: str) -> str:
        done = fcil("federation", *words, *where)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    first, second = said("release", "--list")
    assert first.startswith("  release 1, round 2, accuracy")
    assert second.startswith("* release 2, round 4, accuracy")
    assert said("rollback", "1")[0].endswith("is the current one; sites get it after the server's next round")
    assert said("release", "--list")[0].startswith("* release 1")
    assert "release 7: there is no such release" in refused("rollback", "7")
    assert said("release") == ["asked for; the server makes it after its next round"]
    assert said("set") == ["nothing is changed: the server's own settings hold"]
    assert said("set", "deployment.rounds=open", "deployment.deadline=60.0") == [
        "deployment.rounds='open', deployment.deadline=60.0"
    ]
    assert "deployment.channels: it cannot change while a federation runs" in refused("set", "deployment.channels=1")
    assert said("set", "--clear") == ["nothing is changed: the server's own settings hold"]
    acts = [entry["event"] for entry in audit_log.entries(run)]
    assert acts == ["released", "released", "rolled back", "release asked for", "reconfigured", "reconfigured"]
    made.config = made.config.model_copy(update={"deployment": made.config.deployment.model_copy(update={"rounds": 5})})
    made.serve()
    assert [record.round for record in made.rounds()] == [5]
    listed = said("release", "--list")
    assert listed[-1].startswith("* release 3, round 5"), "the wish, and the end"
    assert "no such folder" in fcil("federation", "release", "--run", str(made.place / "absent")).stderr
    for name in ("aachen", "cork"):
        assert fcil("export", str(made.state(name)), "--format", "safetensors").returncode == 0
    assert fcil("export", str(run), "--format", "torchscript").returncode == 0
