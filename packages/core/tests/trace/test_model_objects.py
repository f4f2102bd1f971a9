"""What a model, its envoys and a tracer offer besides the values of a block."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest
import torch
from torch import nn

from nnsight import NNsight
from nnsight.diagnosis import Finding
from nnsight.errors import InvalidRequestError, OutsideTraceError, UnknownLocationError, UnsupportedFeatureError
from nnsight.events import EngineSpec

X = torch.ones(2, 4)


@pytest.fixture
def model() -> NNsight:
    torch.manual_seed(0)
    return NNsight(nn.Sequential(nn.Linear(4, 4), nn.ModuleDict({"inner": nn.Linear(4, 4)})["inner"], nn.ReLU()))


def test_a_model_is_a_sequence_where_its_module_is_one_and_always_true(model: NNsight) -> None:
    assert len(model) == 3
    assert [repr(each) for each in model] == [repr(each) for each in model._module]
    assert [repr(each) for each in model[1:]] == [repr(each) for each in model._module[1:]]
    assert model[-1]._path == "2"
    assert bool(model)
    assert bool(NNsight(nn.Sequential()))
    assert repr(model) == repr(model._module)
    with pytest.raises(UnknownLocationError, match="from 0 to 2"):
        model[3]
    with pytest.raises(TypeError, match="Linear, which has no length"):
        len(model[0])


def test_completion_offers_children_and_attributes(model: NNsight) -> None:
    assert {"trace", "run", "0", "1", "named_parameters"} <= set(dir(model))
    assert {"output", "input", "weight", "in_features"} <= set(dir(model[0]))
    assert model[0].in_features == 4


def test_an_envoy_refuses_to_be_pickled_and_copied_attributes(model: NNsight) -> None:
    with pytest.raises(OutsideTraceError, match="cannot be pickled"):
        pickle.dumps(model[0])
    with pytest.raises(AttributeError):
        model[0].__wrapped__
    with pytest.raises(AttributeError):
        model.__wrapped__


def test_a_trace_inside_a_block_is_refused(model: NNsight) -> None:
    with pytest.raises(UnsupportedFeatureError, match="traces do not nest"), model.trace(X):
        model.trace(X)


def test_a_whole_model_is_called_ad_hoc_in_a_block(model: NNsight) -> None:
    with torch.no_grad(), model.trace(X):
        again = model(X * 2).save()
        output = model.output.save()
    with torch.no_grad():
        assert torch.equal(again, model._module(X * 2))
        assert torch.equal(output, model._module(X))


def test_a_function_without_input_or_no_function_is_refused(model: NNsight) -> None:
    with pytest.raises(InvalidRequestError, match="the function to run last"):
        model.run(X)
    with pytest.raises(InvalidRequestError, match="needs an input"):
        model.run(lambda model: None)


def test_an_invoke_without_input_is_refused(model: NNsight) -> None:
    with pytest.raises(InvalidRequestError, match="invoke needs an input"), model.trace() as tracer:
        with tracer.invoke():
            model[0].output.save()


def test_the_tracer_of_an_outer_scope_is_the_blocks_own_inside(model: NNsight) -> None:
    def steps(tracer: object) -> list[int]:
        return list(tracer.iter[:1])  # type: ignore[attr-defined]

    with model.trace(X) as tracer:
        found = steps(tracer).save()
        every = [].save()
        for step in tracer.all():
            every.append(step)
    assert (found, every) == ([0], [0])


def test_the_stream_of_a_model_that_has_none_says_where_saves_are(model: NNsight) -> None:
    with model.trace(X) as tracer:
        model[0].output.save()
    with pytest.raises(InvalidRequestError, match="mode='async'"):
        tracer.backend


def test_engines_and_backends_are_found_by_name() -> None:
    from nnsight.errors import BackendNotFoundError
    from nnsight.plugins import find_engine, load_backend, registered_engines

    assert load_backend("torch") is NNsight
    engine = find_engine("torch", "in-process")
    assert isinstance(engine, EngineSpec)
    assert engine in registered_engines()
    with pytest.raises(BackendNotFoundError, match="no backend is called 'none'"):
        load_backend("none")
    with pytest.raises(BackendNotFoundError, match="has no engine called 'none'; it has: in-process"):
        find_engine("torch", "none")


def test_a_plugin_that_fails_to_load_names_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from nnsight import plugins
    from nnsight.errors import PluginLoadError

    broken = EntryPoint("broken", "no_such_module_at_all", plugins.GROUP)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [broken])
    monkeypatch.delenv("NNSIGHT_PLUGINS", raising=False)
    with pytest.raises(PluginLoadError, match=r"the plugin 'broken'.*NNSIGHT_PLUGINS"):
        plugins.create_plugin_manager()
    monkeypatch.setenv("NNSIGHT_PLUGINS", "other, another")
    assert not plugins.create_plugin_manager().get_plugins()


def test_what_a_block_has_is_refused_by_name_outside_one(model: NNsight) -> None:
    tracer = model.trace(X)
    for ask in (lambda: tracer.iter, tracer.all, tracer.cache, tracer.stop):
        with pytest.raises(OutsideTraceError, match="use it in the block of a trace"):
            ask()
    with pytest.raises(InvalidRequestError, match="mode='async'"):
        tracer.backend
    with pytest.raises(OutsideTraceError, match="source cannot be pickled"):
        pickle.dumps(model[0].source)
    with pytest.raises(OutsideTraceError, match="F_linear_0 cannot be pickled"):
        pickle.dumps(model[0].source.F_linear_0)


def test_the_doorway_to_a_backend_that_is_not_installed_names_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nnsight_vllm", None)
    monkeypatch.delitem(sys.modules, "nnsight.modeling.vllm", raising=False)
    with pytest.raises(ImportError, match="pip install nnsight-vllm"):
        importlib.import_module("nnsight.modeling.vllm")


def test_what_a_check_finds_is_plain_data() -> None:
    found = Finding("plugin", "ok", "torch 2")
    assert (found.name, found.status, found.found, found.advice) == ("plugin", "ok", "torch 2", "")
