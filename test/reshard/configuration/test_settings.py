# SPDX-License-Identifier: Apache-2.0
"""Options of the JAX entries come from four places, in order; each mistake gives one line."""

import logging
import re

import pytest

import reshard
from reshard.configuration import contexts
from reshard.configuration.settings import SETTINGS, resolved, validated
from reshard.dialect_utils.xla.compile_targets import Target
from reshard.synthesis.network.topology import Topology

QUIET = {"logging_level": None, "progress": "auto"}


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """Removes environment variables and option files, so that a test sees only its own; restores the loggers."""
    for name in (*(each.variable for each in SETTINGS.values()), "RESHARD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("reshard")
    level, handlers = logger.level, logger.handlers[:]
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers


def write(path, text):
    path.write_text(text)
    return path


class TestPlaces:
    def test_nothing_said(self):
        values = {"verify_values": False, "verify_values_bytes": "256MiB"}
        stated = {"policy": "better", "oracle": "lone", "emit": "auto", "check": True}
        stated |= {"topology": None, "memory_limit": None, "effort": "1", "layouts": "given", "compile_for": None}
        stated |= {"at_hand": True}
        assert resolved() == {**stated, **values, "traffic": "auto", "dump_to": None} | QUIET

    def test_the_first_place_wins(self, monkeypatch, tmp_path):
        write(tmp_path / "reshard.toml", 'policy = "always"\ncheck = false\nemit = "local"\ndump_to = "of-file"\n')
        assert (resolved()["policy"], resolved()["check"]) == ("always", False)
        monkeypatch.setenv("RESHARD_EMIT", "sdy")
        monkeypatch.setenv("RESHARD_CHECK", "on")
        found = resolved({"emit": "manual"}, {"policy": "better"})
        assert found | QUIET == QUIET | {
            "policy": "better",  # from the context, not from the file
            "oracle": "lone",
            "topology": None,
            "memory_limit": None,
            "effort": "1",
            "layouts": "given",
            "compile_for": None,
            "at_hand": True,
            "emit": "manual",  # from the call, not from the environment
            "check": True,  # from the environment, not from the file
            "verify_values": False,
            "verify_values_bytes": "256MiB",
            "traffic": "auto",
            "dump_to": "of-file",
        }

    def test_a_file_that_a_variable_names(self, monkeypatch, tmp_path):
        write(tmp_path / "reshard.toml", 'policy = "better"\n')
        monkeypatch.setenv("RESHARD_CONFIG", str(write(tmp_path / "other.toml", 'policy = "always"\n')))
        assert resolved()["policy"] == "always"

    def test_an_empty_variable_says_nothing(self, monkeypatch):
        monkeypatch.setenv("RESHARD_POLICY", "")
        assert resolved()["policy"] == "better"

    def test_contexts_may_be_nested(self):
        with reshard.options(policy="always", check=False):
            with reshard.options(check=True):
                assert dict(contexts.current().options) == {"policy": "always", "check": True}
            assert dict(contexts.current().options) == {"policy": "always", "check": False}
        assert contexts.current().options == ()

    def test_a_context_ends_with_an_error(self):
        with pytest.raises(KeyError), reshard.options(policy="always"):
            raise KeyError
        assert contexts.current().options == ()


class TestMistakes:
    def fails(self, text):
        return pytest.raises(ValueError, match=f"^{re.escape(text)}$")

    known = (
        "known: policy, oracle, emit, topology, memory_limit, effort, layouts, compile_for, at_hand, check, "
        "verify_values, verify_values_bytes, traffic, dump_to, logging_level, progress"
    )

    def test_in_the_call(self):
        with self.fails(f"unknown option 'polcy'; {self.known}; did you mean 'policy'?"):
            validated({"polcy": "always"})
        with self.fails("check=perhaps is neither true nor false"):
            validated({"check": "perhaps"})
        with self.fails("dump_to=3 is no text"):
            validated({"dump_to": 3})
        with self.fails("verify_values_bytes: 'many' is no number of bytes; write 2GiB, 512MB or 4096"):
            validated({"verify_values_bytes": "many"})

    def test_numbers_of_bytes_may_be_numbers(self):
        assert validated({"verify_values_bytes": 4096}) == {"verify_values_bytes": "4096"}

    def test_a_topology_is_a_preset_or_an_object(self):
        assert validated({"topology": "h100:4"}) == {"topology": "h100:4"}
        assert validated({"topology": Topology.parse("v5e:4x4*2")}) == {"topology": "v5e:4x4*2"}
        with pytest.raises(ValueError, match='^topology: unknown topology "h10"'):
            validated({"topology": "h10"})
        with pytest.raises(ValueError, match="^topology: 4 is no topology; write a preset such as 'h100:4'"):
            validated({"topology": 4})

    def test_flags_that_do_not_reach_the_compiler_of_a_target_are_told_once(self, monkeypatch, caplog):
        monkeypatch.setattr("reshard.dialect_utils.xla.compile_targets._is_installed", lambda module: True)
        monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_a=true --xla_b=2")
        for _ in range(2):
            validated({"compile_for": "tpu:v5e:2x2"})
        (said,) = caplog.messages
        assert said.endswith("'tpu:v5e:2x2?xla_a=true&xla_b=2' compiles with it")

    def test_a_target_is_a_text_or_an_object_and_its_compiler_has_to_be_there(self, monkeypatch):
        assert validated({"compile_for": "cpu:8"}) == validated({"compile_for": Target.parse("cpu:8")})
        with pytest.raises(ValueError, match="^compile_for: 'tpu:v9:2x2' names no TPU: 'v9' is none of v2, "):
            validated({"compile_for": "tpu:v9:2x2"})
        monkeypatch.setattr("reshard.dialect_utils.xla.compile_targets._is_installed", lambda module: False)
        with pytest.raises(ValueError, match="^compile_for: compiling for tpu:v5e:2x4 needs libtpu, the TPU compiler"):
            validated({"compile_for": "tpu:v5e:2x4"})

    def test_limits_and_efforts(self):
        assert validated({"memory_limit": 4096, "effort": 3}) == {"memory_limit": "4096", "effort": "3"}
        assert validated({"memory_limit": "12GiB"}) == {"memory_limit": "12GiB"}
        for wrong in ("0", "many", "-1"):
            with pytest.raises(ValueError, match="effort"):
                validated({"effort": wrong})

    def test_in_a_context(self):
        refused = "policy=never is not available; choose from better, strict, always"
        with self.fails(refused), reshard.options(policy="never"):
            pass

    def test_in_the_environment(self, monkeypatch):
        monkeypatch.setenv("RESHARD_POLICY", "never")
        with self.fails("RESHARD_POLICY: policy=never is not available; choose from better, strict, always"):
            resolved()

    def test_in_a_file(self, tmp_path):
        write(tmp_path / "reshard.toml", "polcy = 3\n")
        with self.fails(f"reshard.toml: unknown option 'polcy'; {self.known}; did you mean 'policy'?"):
            resolved()

    def test_in_the_text_of_a_file(self, tmp_path):
        write(tmp_path / "reshard.toml", "policy = \n")
        with pytest.raises(ValueError, match=r"^reshard.toml: Invalid value \(at line 1, column 10\)$"):
            resolved()

    def test_a_file_that_is_not_there(self, monkeypatch):
        monkeypatch.setenv("RESHARD_CONFIG", "none.toml")
        with self.fails("RESHARD_CONFIG: cannot read none.toml: no such file or directory"):
            resolved()


class TestLogging:
    def test_nothing_is_printed_by_default(self, capfd):
        logging.getLogger("reshard.optimize").warning("something")
        assert capfd.readouterr() == ("", "")

    def test_a_level_prints(self, monkeypatch, capfd):
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        monkeypatch.setenv("RESHARD_LOGGING_LEVEL", "info")
        resolved()
        resolved()
        logging.getLogger("reshard.optimize").info("something")
        logging.getLogger("reshard.optimize").debug("something else")
        assert capfd.readouterr().err == "reshard.optimize: INFO: something\n"

    def test_a_program_with_its_own_logging_gets_no_handler(self, monkeypatch):
        monkeypatch.setattr(logging.getLogger(), "handlers", [logging.NullHandler()])
        before = logging.getLogger("reshard").handlers[:]
        resolved({"logging_level": "debug"})
        assert logging.getLogger("reshard").handlers == before
        assert logging.getLogger("reshard").level == logging.DEBUG
