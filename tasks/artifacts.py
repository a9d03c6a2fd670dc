"""Tables, figures and texts in the UI, under keys that name the run."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.actions import ArtifactCreate
from prefect.runtime import flow_run, task_run

from rloop_core.printable import without_secrets
from rloop_core.results.plotting import Picture
from rloop_core.results.report.page import image_uri


@dataclass(frozen=True)
class Origin:
    """The task run and the flow run that an artifact belongs to; either may be missing."""

    task_run: UUID | None
    flow_run: UUID | None

    @classmethod
    def here(cls) -> "Origin":
        """Those under way where this is called."""
        task, flow = task_run.id, flow_run.id
        return cls(UUID(str(task)) if task else None, UUID(str(flow)) if flow else None)

    def artifact(self, kind: str, name: str, data: str, description: str) -> ArtifactCreate:
        """An artifact of a kind that Prefect knows, not yet sent."""
        return ArtifactCreate(
            type=kind,
            key=artifact_key(name),
            data=without_secrets(data),
            description=description,
            task_run_id=self.task_run,
            flow_run_id=self.flow_run,
        )

    def table(self, name: str, rows: list[dict[str, Any]], description: str) -> ArtifactCreate:
        """A table, a row a mapping."""
        plain = [{column: _finite(value) for column, value in row.items()} for row in rows]
        return self.artifact("table", name, json.dumps(plain), description)

    def markdown(self, name: str, text: str, description: str) -> ArtifactCreate:
        """A text in Markdown."""
        return self.artifact("markdown", name, text, description)

    def figure(self, name: str, picture: Picture, description: str) -> ArtifactCreate:
        """A picture with its caption; the UI shows one that is inside a text, and not one that is given as an image."""
        return ArtifactCreate(
            type="markdown",
            key=artifact_key(name),
            data=_figure_text(picture),
            description=description,
            task_run_id=self.task_run,
            flow_run_id=self.flow_run,
        )


def publish_table(name: str, rows: list[dict[str, Any]], description: str) -> None:
    """Show rows in the UI, now."""
    create_table_artifact(key=artifact_key(name), table=rows, description=description)


def publish_figure(name: str, picture: Picture, description: str) -> None:
    """Show a picture in the UI, now."""
    create_markdown_artifact(key=artifact_key(name), markdown=_figure_text(picture), description=description)


def artifact_key(name: str) -> str:
    """A name as a key: Prefect takes lower-case letters, digits and dashes alone."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def as_text(words: str) -> str:
    """Words that Markdown shows as they are; model output, problem texts and names are hostile."""
    return re.sub(r"([\\`*_{}\[\]#!|<>~$&])", r"\\\1", words)


def _figure_text(picture: Picture) -> str:
    title = as_text(picture.title)
    return f"### {title}\n\n![{title}]({image_uri(picture)})\n\n{as_text(picture.caption)}\n"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
