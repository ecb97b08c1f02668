"""The images of one field of a dataset: decoded, and transformed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from packtrain._codec.decode import RecordDecoder
from packtrain._codec.pillow import has_pillow
from packtrain._codec.stages import OTHER, TRANSFORM, OnStage, untimed

from ..transforms.compose import Compose
from ..transforms.executors import Into
from ..transforms.pipeline import AnyPipeline, Pipeline, drawn, pipeline_of
from ..transforms.undecoded import UndecodedExecutor, require_plannable

if TYPE_CHECKING:
    from packtrain._codec.decoders import Decoder

    from ..transforms.views import Views
    from .records import Records


class StoredImages:
    """The images of a field, by row.

    Args:
        records: The records of the field.
        decoder: Decodes them.
        compose: The transform, or None.
        scaled: See `Pipeline`.
        undecoded: True to make `Undecoded` images.

    Attributes:
        records: The records of the field.
        pipeline: Transforms encoded images; None without a transform.
    """

    def __init__(
        self,
        records: Records,
        decoder: Decoder,
        compose: Compose | Views | None,
        *,
        scaled: bool,
        undecoded: bool = False,
    ) -> None:
        assert records.field.store is not None
        self.records: Final = records
        self._decoder = RecordDecoder(records.field.store, decoder)
        if undecoded:
            compose = require_plannable(compose, records.field.store)
            self.pipeline: AnyPipeline | None = Pipeline(
                compose, self._decoder, executors=[UndecodedExecutor(self._decoder)]
            )
        else:
            # Without Pillow there are no PIL images, and tensors take their place.
            compose = Compose(()) if compose is None and not has_pillow() else compose
            self.pipeline = None if compose is None else pipeline_of(compose, self._decoder, scaled=scaled)

    def make(
        self,
        row: int,
        random: Sequence[float] | None = None,
        into: Into = None,
        on_stage: OnStage = untimed,
        *,
        finish: bool = True,
    ) -> Any:
        """The image of `row`, decoded as far as the transform needs it, and transformed; None if it is missing.

        Args:
            row: The row.
            random: Uniform in [0, 1), at least as many as the transform draws; None draws them from torch's default
                generator.
            into: Memory for the result, see `Samples.make`.
            on_stage: Called at the end of each stage.
            finish: False to leave out the steps on tensors that the transform ends with.

        Raises:
            IndexError: There is no such row.
            CorruptFile: Its shard is missing or truncated, or the index is damaged there.
            UsageError: The transform cannot be applied to an image of this size.
            CorruptRecord: The bytes differ from what was written, or cannot be decoded.
        """
        encoded = self.records.image(row, on_stage)
        if encoded is None:
            return None
        if self.pipeline is None:
            try:
                return self._decoder.image(encoded, on_stage)
            except Exception as error:
                raise self.records.undecodable(row, error) from error
        if random is None:
            random = drawn(self.pipeline.draws)
        finish = finish and self.pipeline.finishes
        plan: Any = self.pipeline.plan(encoded.width, encoded.height, random)
        on_stage(OTHER)
        try:
            run_rest = self.pipeline.decode(encoded, plan, on_stage)
        except Exception as error:
            raise self.records.undecodable(row, error) from error
        # In a concatenation, the other samples may have other views.
        fits = isinstance(into, tuple) is self.pipeline.several and not finish
        made = run_rest(into if fits else None, on_stage)
        if finish:
            made = self.pipeline.finished(made, random)
            on_stage(TRANSFORM)
        return made
