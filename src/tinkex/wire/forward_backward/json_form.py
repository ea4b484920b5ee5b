"""Forward/backward in JSON, for servers and clients that do not speak protobuf.

Ten times the size and slower, but readable by hand: `curl` can train with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tinkex.types.csr import Csr
from tinkex.types.datum import Datum, ForwardBackwardOutput
from tinkex.types.model_input import EncodedTextChunk, ImageAssetPointerChunk, ModelInput
from tinkex.types.provenance import PromptProvenanceSpan, ProvenanceSpans, SampledProvenanceSpan
from tinkex.types.tensor_data import TensorData, tensor_fields
from tinkex.wire.calls import ForwardBackwardCall, WireDatum, WireTensor
from tinkex.wire.errors import WireError
from tinkex.wire.json_text import dumps, loads_object, validated
from tinkex.wire.limits import MAX_DATUMS_PER_REQUEST
from tinkex.wire.sample_json import tensor_from_json

_BACKWARD, _FORWARD = "forward_backward_input", "forward_input"


def encode_forward_backward_json(
    model_id: str,
    seq_id: int,
    data: Sequence[Datum],
    loss_fn: str,
    loss_fn_config: Mapping[str, float | str] | None = None,
    forward_only: bool = False,
) -> bytes:
    """The JSON body of a `forward_backward` request."""
    content: dict[str, Any] = {"data": [_datum_fields(datum) for datum in data], "loss_fn": loss_fn}
    if loss_fn_config is not None:
        content["loss_fn_config"] = dict(loss_fn_config)
    name = _FORWARD if forward_only else _BACKWARD
    return dumps({name: content, "model_id": model_id, "seq_id": seq_id})


def _datum_fields(datum: Datum) -> dict[str, Any]:
    inputs = {name: tensor_fields(tensor) for name, tensor in datum.loss_fn_inputs.items()}
    fields: dict[str, Any] = {
        "model_input": datum.model_input.model_dump(mode="json", exclude_none=True),
        "loss_fn_inputs": inputs,
    }
    if datum.model_input_spans is not None:
        fields["model_input_spans"] = _span_fields(datum.model_input_spans)
        fields["loss_fn_input_spans"] = _span_fields(datum.loss_fn_input_spans or [])
    return fields


def _span_fields(spans: ProvenanceSpans) -> list[dict[str, Any]]:
    return [
        {
            "type": "sampled" if isinstance(span, SampledProvenanceSpan) else "prompt",
            "sequence_id": span.sequence_id,
            "offset": span.offset,
            "length": span.length,
        }
        for span in spans
    ]


def decode_forward_backward_json(body: bytes | bytearray | memoryview) -> ForwardBackwardCall:
    """A server's reading of the JSON body; WireError names the place that is wrong."""
    value = loads_object(body)
    name = _FORWARD if _FORWARD in value else _BACKWARD
    content = value.get(name)
    if not isinstance(content, dict):
        raise WireError(name, "is missing: expected an object with data and loss_fn")
    config = content.get("loss_fn_config") or {}
    return ForwardBackwardCall(
        model_id=_text(value, "model_id"),
        seq_id=_seq_id(value.get("seq_id")),
        data=_data(content.get("data"), f"{name}.data"),
        loss_fn=_text(content, "loss_fn"),
        loss_fn_config=_config(config, f"{name}.loss_fn_config"),
        forward_only=name == _FORWARD,
    )


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not text:
        raise WireError(name, "is missing")
    return text


def _seq_id(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise WireError("seq_id", f"must be an integer in 1..{2**31 - 1}")
    return value


def _config(value: Any, place: str) -> dict[str, float | str]:
    if not isinstance(value, dict):
        raise WireError(place, "must be an object of numbers and texts")
    for key, entry in value.items():
        if isinstance(entry, bool) or not isinstance(entry, int | float | str):
            raise WireError(f"{place}[{key!r}]", "must be a number or a text")
    return {key: entry if isinstance(entry, str) else float(entry) for key, entry in value.items()}


def _data(value: Any, place: str) -> list[WireDatum]:
    if not isinstance(value, list):
        raise WireError(place, "must be a list of datums")
    if len(value) > MAX_DATUMS_PER_REQUEST:
        raise WireError(place, f"holds more than {MAX_DATUMS_PER_REQUEST} datums")
    return [_datum(item, f"{place}[{index}]") for index, item in enumerate(value)]


def _datum(item: Any, place: str) -> WireDatum:
    if not isinstance(item, dict):
        raise WireError(place, f"must be an object, got {type(item).__name__}")
    try:
        model_input = validated(ModelInput, item.get("model_input"))
    except WireError as error:
        raise error.inside(f"{place}.model_input") from None
    inputs = item.get("loss_fn_inputs") or {}
    if not isinstance(inputs, dict):
        raise WireError(f"{place}.loss_fn_inputs", "must be an object of tensors")
    return WireDatum(
        chunks=tuple(_chunk(chunk, place) for chunk in model_input.chunks),
        inputs={
            name: _wire_tensor(tensor_from_json(fields, f"{place}.loss_fn_inputs[{name!r}]"))
            for name, fields in inputs.items()
        },
        model_input_spans=_spans(item, "model_input_spans", place),
        loss_fn_input_spans=_spans(item, "loss_fn_input_spans", place),
    )


def _chunk(chunk: Any, place: str) -> Any:
    if isinstance(chunk, ImageAssetPointerChunk):
        raise WireError(f"{place}.model_input", "holds an image pointer; send the image itself")
    return chunk.ids if isinstance(chunk, EncodedTextChunk) else chunk


def _wire_tensor(tensor: TensorData) -> WireTensor:
    csr: Csr | None = tensor.csr
    return tensor.to_numpy() if csr is None else csr


def _spans(item: dict[str, Any], name: str, place: str) -> ProvenanceSpans:
    spans: ProvenanceSpans = []
    for index, fields in enumerate(item.get(name) or []):
        where = f"{place}.{name}[{index}]"
        try:
            kind = fields["type"]
            rest = {key: entry for key, entry in fields.items() if key != "type"}
            make = SampledProvenanceSpan if kind == "sampled" else PromptProvenanceSpan
            spans.append(make(**rest))
        except (KeyError, TypeError, ValueError) as error:
            raise WireError(where, f"is not a span: {error}") from error
    return spans


def forward_backward_output_from_json(value: Any) -> ForwardBackwardOutput:
    """The JSON form of a result, as older and third-party servers answer."""
    if not isinstance(value, dict) or not isinstance(value.get("loss_fn_outputs"), list):
        raise WireError("loss_fn_outputs", "must be a list with one object per datum")
    outputs = [
        _outputs(item, f"loss_fn_outputs[{index}]")
        for index, item in enumerate(value["loss_fn_outputs"])
    ]
    metrics = value.get("metrics") or {}
    if not isinstance(metrics, dict):
        raise WireError("metrics", "must be an object of numbers")
    kind = str(value.get("loss_fn_output_type", "")).rpartition(":")[2]
    return ForwardBackwardOutput(kind, outputs, {key: float(metrics[key]) for key in metrics})


def _outputs(item: Any, place: str) -> dict[str, TensorData]:
    if not isinstance(item, dict):
        raise WireError(place, f"must be an object of tensors, got {type(item).__name__}")
    return {name: tensor_from_json(item[name], f"{place}[{name!r}]") for name in item}
