"""What a type says about JSON, taken apart once, for reading it field by field."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, cached_property
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

LATER: Final = "later"
"""A key of ``Meta.extra``: which values are understood, but not carried out in this release.

Its value is a tuple of words, or a type; ``object`` stands for everything."""


@dataclass(frozen=True)
class Struct:
    """A struct: its class and the shapes of its fields."""

    cls: Any
    fields: dict[str, Shape]
    required: tuple[str, ...]

    def made_of(self, values: dict[str, Any]) -> Any:
        """One of it, of values by the names that its fields have in a document."""
        names = {field.encode_name: field.name for field in msgspec.structs.fields(self.cls)}
        return self.cls(**{names[name]: value for name, value in values.items()})


@dataclass(frozen=True)
class Shape:
    """What a value may be: a struct, one of several by their tags, a map, an array, or plain."""

    decoder: msgspec.json.Decoder[Any]
    """Of a map or an array it leaves the members as they stand in the text."""
    examples: tuple[Any, ...] = ()
    later: tuple[str, ...] | type = ()
    words: tuple[str, ...] = ()
    """The only strings it may be."""
    struct: Struct | None = None
    tagged: dict[str, Struct] = field(default_factory=dict)
    tag_field: str = ""
    entries: tuple[Shape, Shape] | None = None
    """The keys and the values of a map."""
    items: Shape | None = None
    forms: tuple[Shape, Shape] | None = None
    """Of what may be an array or an object: the one and the other."""

    def form_of(self, raw: bytes | Raw) -> Shape:
        """The shape that a value is meant to have, by its first character."""
        if self.forms is None:
            return self
        return self.forms[bytes(raw).lstrip().startswith(b"{")]

    @property
    def holds_objects(self) -> bool:
        """Whether it is or may be an object, or an array of such."""
        if self.forms is not None:
            return True
        if self.items is not None:
            return self.items.holds_objects
        return bool(self.struct or self.tagged or self.entries)

    @cached_property
    def containers(self) -> dict[str, Shape]:
        """The fields that hold objects."""
        structs = [self.struct] if self.struct else self.tagged.values()
        return {
            name: inner
            for struct in structs
            for name, inner in struct.fields.items()
            if inner.holds_objects
        }

    @cached_property
    def outline(self) -> Any:
        """A type that takes in the members of the named objects, and leaves plain values as they
        stand in the text."""
        if self.forms is not None:
            return self.forms[0].outline | self.forms[1].outline
        if self.items is not None:
            return list[self.items.outline]  # type: ignore[name-defined]
        if not self.containers:
            return dict[str, Raw] if self.holds_objects else Raw
        structs = [self.struct] if self.struct else self.tagged.values()
        names = dict.fromkeys(name for struct in structs for name in struct.fields)
        fields = [
            (f"member_{n}", self.containers[name].outline if name in self.containers else Raw)
            for n, name in enumerate(names)
        ]
        return msgspec.defstruct(
            "Outline",
            [(field, kind | UnsetType, UNSET) for field, kind in fields],
            rename=dict(zip((field for field, _ in fields), names, strict=True)),
            gc=False,
        )

    @cached_property
    def outline_decoder(self) -> msgspec.json.Decoder[Any]:
        """Reads into the outline."""
        return msgspec.json.Decoder(self.outline)

    def stand_in(self) -> Any:
        """A good value, to go on with in place of one that is at fault."""
        if self.forms is not None:
            return self.forms[0].stand_in()
        struct = self.struct or next(iter(self.tagged.values()), None)
        if struct is None:
            return {} if self.entries else [] if self.items else self.examples[0]
        return struct.made_of({name: struct.fields[name].stand_in() for name in struct.required})

    def is_later(self, value: Any) -> bool:
        """Whether a value is understood, but not carried out in this release."""
        if isinstance(self.later, tuple):
            return value in self.later
        return isinstance(value, self.later)


@cache
def shape_of(cls: Any) -> Shape:
    """The shape of a body that a struct describes."""
    return _shape(cls)


def _shape(kind: Any) -> Shape:
    kinds, metas = _options(kind)
    later = next((meta.extra[LATER] for meta in metas if meta.extra and LATER in meta.extra), ())
    examples = next((tuple(meta.examples) for meta in metas if meta.examples), ())
    decoder = msgspec.json.Decoder(Union[tuple(kinds)])  # noqa: UP007
    bare = [option.__origin__ if get_origin(option) is Annotated else option for option in kinds]
    if all(isinstance(option, type) and issubclass(option, msgspec.Struct) for option in bare):
        return _of_structs(decoder, bare)
    if get_origin(bare[0]) is list and len(kinds) > 1 and bare[1] is not type(None):
        return Shape(decoder, forms=(_shape(kinds[0]), _shape(kinds[1])))
    if get_origin(bare[0]) is dict:
        keys, values = map(_shape, get_args(bare[0]))
        return Shape(_outer(dict[str, Raw], metas), entries=(keys, values))
    if get_origin(bare[0]) is list and not later:
        return Shape(_outer(list[Raw], metas), items=_shape(*get_args(bare[0])))
    return Shape(decoder, examples, later, _words(bare[0]))


def _words(kind: Any) -> tuple[str, ...]:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(word.value for word in kind)
    return get_args(kind) if get_origin(kind) is Literal else ()


def _of_structs(decoder: msgspec.json.Decoder[Any], classes: list[Any]) -> Shape:
    structs = [_struct(cls) for cls in classes]
    if len(structs) == 1:
        return Shape(decoder, struct=structs[0])
    tagged = {struct.cls.__struct_config__.tag: struct for struct in structs}
    return Shape(decoder, tagged=tagged, tag_field=classes[0].__struct_config__.tag_field)


def _outer(kind: Any, metas: list[Meta]) -> msgspec.json.Decoder[Any]:
    """Looks at how many members there are, not at what they are."""
    for meta in metas:
        kind = Annotated[kind, meta]
    return msgspec.json.Decoder(kind)


def _struct(cls: Any) -> Struct:
    fields = msgspec.structs.fields(cls)
    return Struct(
        cls,
        {field.encode_name: _shape(field.type) for field in fields},
        tuple(field.encode_name for field in fields if field.required),
    )


def _options(kind: Any) -> tuple[list[Any], list[Meta]]:
    """The types that a union is made of, "not given" left out, and all that is noted of them."""
    metas: list[Meta] = []
    while get_origin(kind) is Annotated and get_origin(kind.__origin__) in (Union, UnionType):
        metas += kind.__metadata__
        kind = kind.__origin__
    kinds = list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]
    kinds = [option for option in kinds if option is not UnsetType]
    for option in kinds:
        metas += option.__metadata__ if get_origin(option) is Annotated else ()
    return kinds, metas
